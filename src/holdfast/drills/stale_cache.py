"""Drill stale-cache: a scheduler proposes from stale state. The authority checks every proposal on current state."""

from __future__ import annotations

from holdfast.drills import counters
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import DrillTenant, patch_node
from holdfast.drills.external_scheduler import ExternalScheduler, current_intent, proposal_item
from holdfast.drills.platform_observer import Item

ALMOST_A_NODE = {"cpu": "7500m", "memory": "64Mi"}


def run(incident: DrillRun) -> None:
    """Reads state, changes it (a drain, a smaller workload, a full node), and proposes from the old state."""
    load = DrillTenant(incident)
    load.workload("moving", 2)
    load.workload("leaving", 1)
    if not incident.wait_until(
        "the drill's workloads serve", lambda: load.serving("moving") + load.serving("leaving") == 3, within_s=60
    ):  # fmt: skip
        return
    moving, leaving = load.replicas("moving"), load.replicas("leaving")
    node = moving[0]["status"]["placement"]["node"]
    other = next(a.name for a in incident.plan.agents if a.name != node)
    proposer = ExternalScheduler(incident)
    incident.failure_starts(f"a scheduler's cache becomes stale; then node {node} is drained, and a workload is scaled down")
    incident.add_undo(f"the drain of {node}", lambda: patch_node(incident, node, {"drain": False}))
    patch_node(incident, node, {"drain": True})
    load.scale("leaving", 0)
    incident.wait_until("the drained replica is rescheduled", lambda: _moved(load, moving[0]), within_s=60)
    incident.wait_until("the other replica is gone", lambda: not load.replicas("leaving"), within_s=60)
    load.workload("large", 1, resources=ALMOST_A_NODE)
    incident.wait_until("a large replica is pending", lambda: bool(load.replicas("large")), within_s=30)
    large = load.replicas("large")[0]
    stays = next((r for r in load.replicas("moving") if r["metadata"]["uid"] != moving[0]["metadata"]["uid"]), None)
    asked: dict[str, Item] = {
        "ended attempt": proposal_item(moving[0], node),
        "deleted replica": proposal_item(leaving[0], other),
        "draining node": {**proposal_item(large, node), "intent": current_intent(large)},
        "full node": proposal_item(large, other),
    }
    if stays is not None:
        asked["bound replica"] = proposal_item(stays, node)
    answers = proposer.reserve(list(asked.values()))
    incident.mark("the stale proposals are answered")
    told = {}
    for what, answer in zip(asked, answers, strict=True):
        told[what] = f"{answer['result']} {answer.get('reason', '')}".strip()
        incident.expect(answer["result"] != "Accepted", f"a proposal for a {what} was accepted: {answer}")
        if answer["result"] == "Rejected":
            incident.invariants_held.append(f"proposal for a {what}: rejected, {answer['reason']}: {answer.get('message', '')}")
    incident.facts["answers"] = told
    incident.facts["responses"] = "; ".join(f"{what}: {said}" for what, said in told.items())
    moved = incident.counter_increases()
    refused = counters.sum_series(moved, "holdfast_authority_responses_total", "Rejected")
    incident.expect(
        refused >= len([t for t in told.values() if t.startswith("Rejected")]), "rejections are missing in the metrics"
    )
    load.scale("large", 0)
    patch_node(incident, node, {"drain": False})
    incident.wait_until("the node is schedulable again", lambda: load.serving("moving") == 2, within_s=60)


def _moved(load: DrillTenant, replica: Item) -> bool:
    was = replica["status"]["placement"]
    for found in load.replicas("moving"):
        if found["metadata"]["uid"] == replica["metadata"]["uid"]:
            now = found["status"]["placement"]
            return bool(now.get("attempt", 1) > was.get("attempt", 1) and now.get("node") not in ("", was["node"]))
    return False
