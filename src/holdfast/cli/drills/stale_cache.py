"""A scheduler that decides from an old picture: every proposal it makes is judged by what is true now."""

from __future__ import annotations

from holdfast.cli.drills import meters
from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.load import Load, patch_node
from holdfast.cli.drills.proposer import Proposer, intent_of, place_item
from holdfast.cli.drills.world import Item

ALMOST_A_NODE = {"cpu": "7500m", "memory": "64Mi"}


def run(incident: Incident) -> None:
    """Takes a picture, changes the world (a drain, a smaller workload, full nodes, a cordon), and proposes from it."""
    load = Load(incident)
    load.workload("moving", 2)
    load.workload("leaving", 1)
    if not incident.until(
        "the drill's workloads serve", lambda: load.serving("moving") + load.serving("leaving") == 3, within_s=60
    ):  # fmt: skip
        return
    moving, leaving = load.replicas("moving"), load.replicas("leaving")
    node = moving[0]["status"]["placement"]["node"]
    other = next(a.name for a in incident.plan.agents if a.name != node)
    proposer = Proposer(incident)
    incident.struck(f"a scheduler stops hearing of changes; then node {node} is drained, and work leaves")
    incident.undo_with(f"the drain of {node}", lambda: patch_node(incident, node, {"drain": False}))
    patch_node(incident, node, {"drain": True})
    load.scale("leaving", 0)
    incident.until("the drained replica runs elsewhere", lambda: _moved(load, moving[0]), within_s=60)
    incident.until("the other one is gone", lambda: not load.replicas("leaving"), within_s=60)
    load.workload("large", 1, resources=ALMOST_A_NODE)
    incident.until("a large replica waits", lambda: bool(load.replicas("large")), within_s=30)
    large = load.replicas("large")[0]
    stays = next((r for r in load.replicas("moving") if r["metadata"]["uid"] != moving[0]["metadata"]["uid"]), None)
    asked: dict[str, Item] = {
        "an attempt that is over": place_item(moving[0], node),
        "a replica that is gone": place_item(leaving[0], other),
        "a node that is drained": {**place_item(large, node), "intent": intent_of(large)},
        "a node that is full by now": place_item(large, other),
    }
    if stays is not None:
        asked["a replica that has a place"] = place_item(stays, node)
    answers = proposer.reserve(list(asked.values()))
    incident.mark("the stale proposals were answered")
    told = {}
    for what, answer in zip(asked, answers, strict=True):
        told[what] = f"{answer['result']} {answer.get('reason', '')}".strip()
        incident.expect(answer["result"] != "Accepted", f"a proposal for {what} was accepted: {answer}")
        if answer["result"] == "Rejected":
            incident.held.append(f"{what}: refused, {answer['reason']}: {answer.get('message', '')}")
    incident.facts["answers"] = told
    incident.facts["told"] = "; ".join(f"{what}: {said}" for what, said in told.items())
    moved = incident.moved()
    refused = meters.total(moved, "holdfast_authority_answers_total", "Rejected")
    incident.expect(refused >= len([t for t in told.values() if t.startswith("Rejected")]), "refusals were not counted")
    load.scale("large", 0)
    patch_node(incident, node, {"drain": False})
    incident.until("the node takes work again", lambda: load.serving("moving") == 2, within_s=60)


def _moved(load: Load, replica: Item) -> bool:
    was = replica["status"]["placement"]
    for found in load.replicas("moving"):
        if found["metadata"]["uid"] == replica["metadata"]["uid"]:
            now = found["status"]["placement"]
            return bool(now.get("attempt", 1) > was.get("attempt", 1) and now.get("node") not in ("", was["node"]))
    return False
