"""Drill timeout-after-commit: the responses of reserve and bind are lost. A retry finds the first commit."""

from __future__ import annotations

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import TENANT, DrillTenant
from holdfast.drills.external_scheduler import ExternalScheduler, proposal_item
from holdfast.drills.platform_observer import Item
from holdfast.model.labels import LABEL_DRILL

NAME = "asked-twice"
OWN = {LABEL_DRILL: NAME}


def run(drill: DrillRun) -> None:
    """Places a replica with the drill's own scheduler. The platform's scheduler ignores it, because its node selector
    matches no node; the authority does not check node selectors."""
    tenant = DrillTenant(drill)
    proposer = ExternalScheduler(drill)
    tenant.workload(NAME, 1, placement={"nodeSelector": OWN})
    if not drill.wait_until("the replica is queued", lambda: len(tenant.replicas(NAME)) == 1, within_s=30):
        return
    replica = tenant.replicas(NAME)[0]
    node = drill.plan.agents[0].name
    item = proposal_item(replica, node)
    drill.failure_starts("a reserve request is sent, and its response is lost")
    proposer.send_without_reading_response("reserve", {"items": [item], "bind": False})
    if not drill.wait_until("the reservation exists", lambda: bool(_reservations(drill)), within_s=15):
        return
    first = _reservations(drill)[0]
    again = proposer.reserve([item], bind=False)[0]
    drill.mark("the reserve request is repeated")
    _already(drill, "reserve", again, node)
    bound = {key: item[key] for key in ("namespace", "replica", "intent")}
    proposer.send_without_reading_response("bind", {"items": [bound]})
    drill.wait_until("the binding exists", lambda: len(tenant.bindings(NAME)) == 1, within_s=15)
    binding = tenant.bindings(NAME)[0]
    _already(drill, "bind", proposer.bind([bound])[0], node)
    other = next(a.name for a in drill.plan.agents if a.name != node)
    elsewhere = proposer.reserve([proposal_item(replica, other)])[0]
    drill.expect(elsewhere["result"] != "Accepted", f"the same intent was accepted on another node: {elsewhere}")
    drill.invariants_held.append(
        f"the same intent on {other}: {elsewhere['result']} {elsewhere.get('reason', '')}".rstrip()
    )
    drill.wait_until("exactly one replica serves", lambda: tenant.serving(NAME) == 1, within_s=60)
    now = tenant.bindings(NAME)
    drill.expect(
        len(now) == 1 and now[0]["metadata"]["uid"] == binding["metadata"]["uid"],
        f"{len(now)} bindings (expected only the first)",
    )
    drill.facts |= {
        "reservation": first["metadata"]["name"],
        "binding": binding["metadata"]["name"],
        "secondReserve": again["result"],
    }


def _already(drill: DrillRun, call: str, answer: Item, node: str) -> None:
    drill.expect(
        answer["result"] == "Already" and answer.get("node") == node,
        f"second {call}: expected Already on {node}, found {answer['result']} {answer.get('reason', '')}",
    )
    drill.invariants_held.append(f"the second {call}: {answer['result']}, node {answer.get('node', '')}")


def _reservations(drill: DrillRun) -> list[Item]:
    found = drill.observer.list("reservations", drill.region)
    return [r for r in found if r["metadata"]["namespace"] == TENANT and r["spec"]["replica"].startswith(NAME)]
