"""Drill timeout-after-commit: the responses of reserve and bind are lost. A retry finds the first commit."""

from __future__ import annotations

from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.load import TENANT, Load
from holdfast.cli.drills.proposer import Proposer, place_item
from holdfast.cli.drills.world import Item
from holdfast.model.labels import LABEL_DRILL

NAME = "asked-twice"
OWN = {LABEL_DRILL: NAME}


def run(incident: Incident) -> None:
    """Places a replica with the drill's own scheduler. The platform's scheduler ignores it, because its node selector
    matches no node; the authority does not check node selectors."""
    load = Load(incident)
    proposer = Proposer(incident)
    load.workload(NAME, 1, placement={"nodeSelector": OWN})
    if not incident.until("the replica is queued", lambda: len(load.replicas(NAME)) == 1, within_s=30):
        return
    replica = load.replicas(NAME)[0]
    node = incident.plan.agents[0].name
    item = place_item(replica, node)
    incident.struck("a reserve request is sent, and its response is lost")
    proposer.send_and_hang_up("reserve", {"items": [item], "bind": False})
    if not incident.until("the reservation exists", lambda: bool(_reservations(incident)), within_s=15):
        return
    first = _reservations(incident)[0]
    again = proposer.reserve([item], bind=False)[0]
    incident.mark("the reserve request is repeated")
    _already(incident, "reserve", again, node)
    bound = {key: item[key] for key in ("namespace", "replica", "intent")}
    proposer.send_and_hang_up("bind", {"items": [bound]})
    incident.until("the binding exists", lambda: len(load.bindings(NAME)) == 1, within_s=15)
    binding = load.bindings(NAME)[0]
    _already(incident, "bind", proposer.bind([bound])[0], node)
    other = next(a.name for a in incident.plan.agents if a.name != node)
    elsewhere = proposer.reserve([place_item(replica, other)])[0]
    incident.expect(elsewhere["result"] != "Accepted", f"the same intent was accepted on another node: {elsewhere}")
    incident.held.append(f"the same intent on {other}: {elsewhere['result']} {elsewhere.get('reason', '')}".rstrip())
    incident.until("exactly one replica serves", lambda: load.serving(NAME) == 1, within_s=60)
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


def _already(incident: Incident, call: str, answer: Item, node: str) -> None:
    incident.expect(
        answer["result"] == "Already" and answer.get("node") == node,
        f"second {call}: expected Already on {node}, found {answer['result']} {answer.get('reason', '')}",
    )
    incident.held.append(f"the second {call}: {answer['result']}, node {answer.get('node', '')}")


def _reservations(incident: Incident) -> list[Item]:
    found = incident.watcher.list("reservations", incident.region)
    return [r for r in found if r["metadata"]["namespace"] == TENANT and r["spec"]["replica"].startswith(NAME)]
