"""Drill timeout-after-commit: the responses of reserve and bind are lost. A retry finds the first commit."""

from __future__ import annotations

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import TENANT, DrillTenant
from holdfast.drills.external_scheduler import ExternalScheduler, proposal_item
from holdfast.drills.platform_observer import Item
from holdfast.model.labels import LABEL_DRILL

NAME = "asked-twice"
OWN = {LABEL_DRILL: NAME}


def run(incident: DrillRun) -> None:
    """Places a replica with the drill's own scheduler. The platform's scheduler ignores it, because its node selector
    matches no node; the authority does not check node selectors."""
    load = DrillTenant(incident)
    proposer = ExternalScheduler(incident)
    load.workload(NAME, 1, placement={"nodeSelector": OWN})
    if not incident.wait_until("the replica is queued", lambda: len(load.replicas(NAME)) == 1, within_s=30):
        return
    replica = load.replicas(NAME)[0]
    node = incident.plan.agents[0].name
    item = proposal_item(replica, node)
    incident.failure_starts("a reserve request is sent, and its response is lost")
    proposer.send_without_reading_response("reserve", {"items": [item], "bind": False})
    if not incident.wait_until("the reservation exists", lambda: bool(_reservations(incident)), within_s=15):
        return
    first = _reservations(incident)[0]
    again = proposer.reserve([item], bind=False)[0]
    incident.mark("the reserve request is repeated")
    _already(incident, "reserve", again, node)
    bound = {key: item[key] for key in ("namespace", "replica", "intent")}
    proposer.send_without_reading_response("bind", {"items": [bound]})
    incident.wait_until("the binding exists", lambda: len(load.bindings(NAME)) == 1, within_s=15)
    binding = load.bindings(NAME)[0]
    _already(incident, "bind", proposer.bind([bound])[0], node)
    other = next(a.name for a in incident.plan.agents if a.name != node)
    elsewhere = proposer.reserve([proposal_item(replica, other)])[0]
    incident.expect(elsewhere["result"] != "Accepted", f"the same intent was accepted on another node: {elsewhere}")
    incident.invariants_held.append(f"the same intent on {other}: {elsewhere['result']} {elsewhere.get('reason', '')}".rstrip())
    incident.wait_until("exactly one replica serves", lambda: load.serving(NAME) == 1, within_s=60)
    now = load.bindings(NAME)
    incident.expect(
        len(now) == 1 and now[0]["metadata"]["uid"] == binding["metadata"]["uid"],
        f"{len(now)} bindings (expected only the first)",
    )
    incident.facts |= {
        "reservation": first["metadata"]["name"],
        "binding": binding["metadata"]["name"],
        "secondReserve": again["result"],
    }


def _already(incident: DrillRun, call: str, answer: Item, node: str) -> None:
    incident.expect(
        answer["result"] == "Already" and answer.get("node") == node,
        f"second {call}: expected Already on {node}, found {answer['result']} {answer.get('reason', '')}",
    )
    incident.invariants_held.append(f"the second {call}: {answer['result']}, node {answer.get('node', '')}")


def _reservations(incident: DrillRun) -> list[Item]:
    found = incident.observer.list("reservations", incident.region)
    return [r for r in found if r["metadata"]["namespace"] == TENANT and r["spec"]["replica"].startswith(NAME)]
