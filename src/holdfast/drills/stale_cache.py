"""Drill stale-cache: a scheduler proposes from stale state. The authority checks every proposal on current state."""

from __future__ import annotations

from holdfast.drills import counters
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import DrillTenant, patch_node
from holdfast.drills.external_scheduler import ExternalScheduler, current_intent, proposal_item
from holdfast.drills.platform_observer import Item

ALMOST_A_NODE = {"cpu": "7500m", "memory": "64Mi"}


def run(drill: DrillRun) -> None:
    """Reads state, changes it (a drain, a smaller workload, a full node), and proposes from the old state."""
    tenant = DrillTenant(drill)
    tenant.workload("moving", 2)
    tenant.workload("leaving", 1)
    if not drill.wait_until(
        "the drill's workloads serve", lambda: tenant.serving("moving") + tenant.serving("leaving") == 3, within_s=60
    ):
        return
    moving, leaving = tenant.replicas("moving"), tenant.replicas("leaving")
    node = moving[0]["status"]["placement"]["node"]
    other = next(a.name for a in drill.plan.agents if a.name != node)
    proposer = ExternalScheduler(drill)
    drill.failure_starts(
        f"a scheduler's cache becomes stale; then node {node} is drained, and a workload is scaled down"
    )
    drill.add_undo(f"the drain of {node}", lambda: patch_node(drill, node, {"drain": False}))
    patch_node(drill, node, {"drain": True})
    tenant.scale("leaving", 0)
    drill.wait_until("the drained replica is rescheduled", lambda: _moved(tenant, moving[0]), within_s=60)
    drill.wait_until("the other replica is gone", lambda: not tenant.replicas("leaving"), within_s=60)
    tenant.workload("large", 1, resources=ALMOST_A_NODE)
    drill.wait_until("a large replica is pending", lambda: bool(tenant.replicas("large")), within_s=30)
    large = tenant.replicas("large")[0]
    stays = next((r for r in tenant.replicas("moving") if r["metadata"]["uid"] != moving[0]["metadata"]["uid"]), None)
    proposals: dict[str, Item] = {
        "ended attempt": proposal_item(moving[0], node),
        "deleted replica": proposal_item(leaving[0], other),
        "draining node": {**proposal_item(large, node), "intent": current_intent(large)},
        "full node": proposal_item(large, other),
    }
    if stays is not None:
        proposals["bound replica"] = proposal_item(stays, node)
    answers = proposer.reserve(list(proposals.values()))
    drill.mark("the stale proposals are answered")
    responses = {}
    for what, answer in zip(proposals, answers, strict=True):
        responses[what] = f"{answer['result']} {answer.get('reason', '')}".strip()
        drill.expect(answer["result"] != "Accepted", f"a proposal for a {what} was accepted: {answer}")
        if answer["result"] == "Rejected":
            drill.invariants_held.append(
                f"proposal for a {what}: rejected, {answer['reason']}: {answer.get('message', '')}"
            )
    drill.facts["responses"] = responses
    moved = drill.counter_increases()
    refused = counters.sum_series(moved, "holdfast_authority_responses_total", "Rejected")
    drill.expect(
        refused >= len([t for t in responses.values() if t.startswith("Rejected")]),
        "rejections are missing in the metrics",
    )
    tenant.scale("large", 0)
    patch_node(drill, node, {"drain": False})
    drill.wait_until("the node is schedulable again", lambda: tenant.serving("moving") == 2, within_s=60)


def _moved(tenant: DrillTenant, replica: Item) -> bool:
    placement = replica["status"]["placement"]
    for found in tenant.replicas("moving"):
        if found["metadata"]["uid"] == replica["metadata"]["uid"]:
            now = found["status"]["placement"]
            return bool(
                now.get("attempt", 1) > placement.get("attempt", 1) and now.get("node") not in ("", placement["node"])
            )
    return False
