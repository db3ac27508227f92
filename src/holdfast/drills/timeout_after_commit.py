"""Drill timeout-after-commit: the responses of reserve and bind are lost. A retry finds the first commit."""

from __future__ import annotations

import itertools

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import TENANT, DrillTenant, label_node
from holdfast.drills.external_scheduler import ExternalScheduler, proposal_item
from holdfast.drills.platform_observer import Item
from holdfast.model.labels import LABEL_DRILL

NAME = "asked-twice"
TRIES = 4
"""Workloads tried until the drill's reserve request comes before the platform's scheduler."""
ATTEMPTS_MIN = 6
"""Failed attempts after which the platform's scheduler waits 1.6 s before it tries again."""


def run(drill: DrillRun) -> None:
    """Places a replica with the drill's own scheduler."""
    tenant = DrillTenant(drill)
    proposer = ExternalScheduler(drill)
    node = drill.plan.agents[0].name
    drill.add_undo(f"the label of {node}", lambda: label_node(drill, node, {LABEL_DRILL: None}))
    name = next((n for n in _names() if _reserve_first(drill, tenant, proposer, n, node)), None)
    if name is None:
        drill.expect(False, f"the platform's scheduler came before the drill's in {TRIES} tries")
        return
    replica = tenant.replicas(name)[0]
    item = proposal_item(replica, node)
    first = _reservations(drill)[0]
    again = proposer.reserve([item], bind=False)[0]
    drill.mark("the reserve request is repeated")
    _already(drill, "reserve", again, node)
    bound = {key: item[key] for key in ("namespace", "replica", "intent")}
    proposer.send_without_reading_response("bind", {"items": [bound]})
    drill.wait_until("the binding exists", lambda: len(tenant.bindings(name)) == 1, within_s=15)
    binding = tenant.bindings(name)[0]
    _already(drill, "bind", proposer.bind([bound])[0], node)
    other = next(a.name for a in drill.plan.agents if a.name != node)
    elsewhere = proposer.reserve([proposal_item(replica, other)])[0]
    drill.expect(elsewhere["result"] != "Accepted", f"the same intent was accepted on another node: {elsewhere}")
    drill.invariants_held.append(
        f"the same intent on {other}: {elsewhere['result']} {elsewhere.get('reason', '')}".rstrip()
    )
    drill.wait_until("exactly one replica serves", lambda: tenant.serving(name) == 1, within_s=60)
    now = tenant.bindings(name)
    drill.expect(
        len(now) == 1 and now[0]["metadata"]["uid"] == binding["metadata"]["uid"],
        f"{len(now)} bindings (expected only the first)",
    )
    drill.facts |= {
        "reservation": first["metadata"]["name"],
        "binding": binding["metadata"]["name"],
        "secondReserve": again["result"],
    }


def _names() -> list[str]:
    return [f"{NAME}-{number}" for number in range(1, TRIES + 1)]


def _reserve_first(drill: DrillRun, tenant: DrillTenant, proposer: ExternalScheduler, name: str, node: str) -> bool:
    """Whether the drill reserved a place for the workload.

    Its node selector matches no node, so the platform's scheduler tries it in vain, at growing intervals. Between two
    such attempts the node gets the label, and the drill asks at once.
    """
    tenant.workload(name, 1, placement={"nodeSelector": {LABEL_DRILL: name}})
    if not drill.wait_until("the replica is queued", lambda: len(tenant.replicas(name)) == 1, within_s=30):
        return False
    others = itertools.count()

    def is_waiting() -> bool:
        """Wakes the request by a change of the node, until its scheduler has tried it often enough."""
        label_node(drill, node, {LABEL_DRILL: f"other-{next(others)}"})
        return _attempts(drill, name) >= ATTEMPTS_MIN

    if not drill.wait_until("the scheduler waits between attempts", is_waiting, within_s=60):
        return False
    drill.failure_starts("a reserve request is sent, and its response is lost")
    if not drill.wait_until("the scheduler still waits", is_waiting, within_s=15):
        return False
    item = proposal_item(tenant.replicas(name)[0], node)
    label_node(drill, node, {LABEL_DRILL: name})
    proposer.send_without_reading_response("reserve", {"items": [item], "bind": False})
    drill.wait_until(
        "the replica is reserved or bound", lambda: bool(_reservations(drill) or tenant.bindings(name)), within_s=15
    )
    return bool(_reservations(drill))


def _attempts(drill: DrillRun, name: str) -> int:
    found = drill.observer.list("schedulingrequests", drill.region)
    own = [r for r in found if r["metadata"]["namespace"] == TENANT and r["metadata"]["name"].startswith(name)]
    return max((r.get("status", {}).get("attempts", 0) for r in own), default=0)


def _already(drill: DrillRun, call: str, answer: Item, node: str) -> None:
    drill.expect(
        answer["result"] == "Already" and answer.get("node") == node,
        f"second {call}: expected Already on {node}, found {answer['result']} {answer.get('reason', '')}",
    )
    drill.invariants_held.append(f"the second {call}: {answer['result']}, node {answer.get('node', '')}")


def _reservations(drill: DrillRun) -> list[Item]:
    found = drill.observer.list("reservations", drill.region)
    return [r for r in found if r["metadata"]["namespace"] == TENANT and r["spec"]["replica"].startswith(NAME)]
