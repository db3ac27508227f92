"""Reserve and bind commit, and the caller never hears of it: asking again finds the first commit, never a second."""

from __future__ import annotations

from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.load import TENANT, Load
from holdfast.cli.drills.proposer import Proposer, place_item
from holdfast.cli.drills.world import Item
from holdfast.model.labels import LABEL_DRILL

NAME = "asked-twice"
OWN = {LABEL_DRILL: NAME}


def run(incident: Incident) -> None:
    """The platform's own scheduler leaves the replica alone, as it looks for a label no node has; the drill's does not
    mind, and labels are a matter of choosing, not of the authority's promises."""
    load = Load(incident)
    proposer = Proposer(incident)
    load.workload(NAME, 1, placement={"nodeSelector": OWN})
    if not incident.until("the replica is queued", lambda: len(load.replicas(NAME)) == 1, within_s=30):
        return
    replica = load.replicas(NAME)[0]
    node = incident.plan.agents[0].name
    item = place_item(replica, node)
    incident.struck("a reserve is sent, and the line goes dead before the answer")
    proposer.send_and_hang_up("reserve", {"items": [item], "bind": False})
    if not incident.until("the reservation is there all the same", lambda: bool(_reservations(incident)), within_s=15):
        return
    first = _reservations(incident)[0]
    again = proposer.reserve([item], bind=False)[0]
    incident.mark("asked again")
    _already(incident, "reserve", again, node)
    bound = {key: item[key] for key in ("namespace", "replica", "intent")}
    proposer.send_and_hang_up("bind", {"items": [bound]})
    incident.until("the binding is there all the same", lambda: len(load.bindings(NAME)) == 1, within_s=15)
    binding = load.bindings(NAME)[0]
    _already(incident, "bind", proposer.bind([bound])[0], node)
    other = next(a.name for a in incident.plan.agents if a.name != node)
    elsewhere = proposer.reserve([place_item(replica, other)])[0]
    incident.expect(elsewhere["result"] != "Accepted", f"the same intent was accepted on another node: {elsewhere}")
    incident.held.append(f"the same intent on {other}: {elsewhere['result']} {elsewhere.get('reason', '')}".rstrip())
    incident.until("it serves, once", lambda: load.serving(NAME) == 1, within_s=60)
    now = load.bindings(NAME)
    incident.expect(
        len(now) == 1 and now[0]["metadata"]["uid"] == binding["metadata"]["uid"], f"{len(now)} bindings, not the first"
    )
    incident.facts |= {
        "reservation": first["metadata"]["name"],
        "binding": binding["metadata"]["name"],
        "reserve_again": again["result"],
    }


def _already(incident: Incident, call: str, answer: Item, node: str) -> None:
    incident.expect(
        answer["result"] == "Already" and answer.get("node") == node,
        f"the second {call} was answered {answer['result']} {answer.get('reason', '')} instead of Already on {node}",
    )
    incident.held.append(f"the second {call}: {answer['result']}, node {answer.get('node', '')}")


def _reservations(incident: Incident) -> list[Item]:
    found = incident.watcher.list("reservations", incident.region)
    return [r for r in found if r["metadata"]["namespace"] == TENANT and r["spec"]["replica"].startswith(NAME)]
