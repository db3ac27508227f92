"""Drill repair-in-incident: repair during an incident obeys its pause, then acts exactly once.

The node's capacity is released only after the stop is confirmed or the node is fenced.
"""

from __future__ import annotations

from typing import Any

from holdfast.client.sync_api import ApiRefusal
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import MERGE_PATCH, DrillTenant
from holdfast.drills.inert_agent import NODE, TAINT, InertAgent
from holdfast.drills.outage import allow_restart, hold_down, kill_processes
from holdfast.model import limits
from holdfast.model.labels import LABEL_DRILL

NAME = "stuck"
OVERRIDE = "drill-pause-repair"
PATH = "/apis/holdfast.dev/v1/overrides"
LABELS = {LABEL_DRILL: "mute"}
SEEN_WITHIN_S = limits.STAGE_DEADLINE_S["Bound"] + 2 * limits.REPAIR_CHECK_EVERY_S + 15.0


def run(incident: DrillRun) -> None:
    """Binds a replica to an inert agent and kills another node, while repair is paused by an override."""
    load = DrillTenant(incident)
    mute = InertAgent(incident, LABELS)
    victim = f"agent-{incident.plan.agents[-1].name}"
    _pause(incident)
    tolerates = [{"key": TAINT["key"], "value": TAINT["value"], "effect": TAINT["effect"]}]
    load.workload(NAME, 1, placement={"nodeSelector": LABELS, "tolerations": tolerates})
    incident.failure_starts(f"a replica is bound to the inert node {NODE}; {victim} is killed")
    incident.add_undo(victim, lambda: _back(incident, [victim]))
    hold_down(incident.layout, [victim])
    kill_processes(incident.layout, [victim])
    if not incident.wait_until("the replica is bound", lambda: len(load.bindings(NAME)) == 1, within_s=30):
        return
    incident.wait_until("repair is paused", lambda: _state(load) == "Paused", within_s=SEEN_WITHIN_S)
    first = load.replicas(NAME)[0]
    incident.expect(not _released(first), "the replica was released while repair was paused")
    incident.facts["found"] = (first["status"].get("repair") or {}).get("message", "")
    allow_restart(incident.layout, [victim])
    _resume(incident)
    incident.mark("the pause is revoked")
    incident.wait_until("repair requests a reschedule", lambda: _state(load) == "ReleaseRequested", within_s=30)
    incident.wait_until("the release is decided", lambda: _released(load.replicas(NAME)[0]), within_s=30)
    kept = load.bindings(NAME)
    incident.expect(
        len(kept) == 1 and not kept[0]["spec"].get("quotaReleased"),
        "the claim was released before the stop was acknowledged or the node was fenced",
    )
    mute.stop_renewing()
    incident.mark("the inert agent stops renewing its lease")
    attempt = first["status"]["placement"].get("attempt", 1)
    incident.wait_until(
        "the node is fenced and the claim is released",
        lambda: load.replicas(NAME)[0]["status"]["placement"].get("attempt", 1) > attempt,
        within_s=90,
    )
    repairs = [
        s for s in incident.changes()
        if s.kind == "Replica" and s.name == first["metadata"]["name"] and "status.repair" in s.groups
    ]  # fmt: skip
    states = [((s.after or {}).get("status", {}).get("repair") or {}).get("state", "none") for s in repairs]
    incident.facts["repairStates"] = " → ".join(states)
    incident.expect(states.count("ReleaseRequested") == 1, f"repair requested a reschedule {states.count('ReleaseRequested')} times")


def _pause(incident: DrillRun) -> None:
    spec = {"kind": "PauseRepair", "scope": {"region": incident.region}, "reason": "drill repair-in-incident",
            "ttlSeconds": 600.0}  # fmt: skip
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Override", "metadata": {"name": OVERRIDE}, "spec": spec}
    incident.add_undo("the override", lambda: _delete(incident))
    incident.observer.api().request("POST", PATH, body)


def _resume(incident: DrillRun) -> None:
    body: dict[str, Any] = {"spec": {"revoked": True}}
    incident.observer.api().request("PATCH", f"{PATH}/{OVERRIDE}", body, content_type=MERGE_PATCH)


def _delete(incident: DrillRun) -> None:
    try:
        incident.observer.api().request("DELETE", f"{PATH}/{OVERRIDE}")
    except ApiRefusal as refusal:
        if refusal.status != 404:
            raise


def _back(incident: DrillRun, names: list[str]) -> None:
    allow_restart(incident.layout, names)


def _state(load: DrillTenant) -> str:
    found = load.replicas(NAME)
    return (found[0]["status"].get("repair") or {}).get("state", "") if found else ""


def _released(replica: dict[str, Any]) -> bool:
    block = replica["status"].get("release") or {}
    return bool(block) and block.get("attempt") == replica["status"]["placement"].get("attempt", 1)
