"""Drill repair-in-incident: repair during an incident obeys its pause, then acts exactly once.

The node's capacity is released only after the stop is confirmed or the node is fenced.
"""

from __future__ import annotations

from typing import Any

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


def run(drill: DrillRun) -> None:
    """Binds a replica to an inert agent and kills another node, while repair is paused by an override."""
    tenant = DrillTenant(drill)
    mute = InertAgent(drill, LABELS)
    victim = f"agent-{drill.plan.agents[-1].name}"
    _pause(drill)
    tolerates = [{"key": TAINT["key"], "value": TAINT["value"], "effect": TAINT["effect"]}]
    tenant.workload(NAME, 1, placement={"nodeSelector": LABELS, "tolerations": tolerates})
    if not drill.wait_until("the replica is bound", lambda: len(tenant.bindings(NAME)) == 1, within_s=30):
        return
    drill.failure_starts(f"a replica is bound to the inert node {NODE}; {victim} is killed")
    drill.add_undo(victim, lambda: _restore(drill, [victim]))
    hold_down(drill.layout, [victim])
    kill_processes(drill.layout, [victim])
    drill.wait_until("repair is paused", lambda: _state(tenant) == "Paused", within_s=SEEN_WITHIN_S)
    first = tenant.replicas(NAME)[0]
    drill.expect(not _released(first), "the replica was released while repair was paused")
    drill.facts["found"] = (first["status"].get("repair") or {}).get("message", "")
    allow_restart(drill.layout, [victim])
    _resume(drill)
    drill.mark("the pause is revoked")
    drill.wait_until("repair requests a reschedule", lambda: _state(tenant) == "ReleaseRequested", within_s=30)
    drill.wait_until("the release is decided", lambda: _released(tenant.replicas(NAME)[0]), within_s=30)
    bindings = tenant.bindings(NAME)
    drill.expect(
        len(bindings) == 1 and not bindings[0]["spec"].get("quotaReleased"),
        "the claim was released before the stop was acknowledged or the node was fenced",
    )
    mute.stop_renewing()
    drill.mark("the inert agent stops renewing its lease")
    attempt = first["status"]["placement"].get("attempt", 1)
    drill.wait_until(
        "the node is fenced and the claim is released",
        lambda: tenant.replicas(NAME)[0]["status"]["placement"].get("attempt", 1) > attempt,
        within_s=90,
    )
    repairs = [
        s
        for s in drill.changes()
        if s.kind == "Replica" and s.name == first["metadata"]["name"] and "status.repair" in s.groups
    ]
    states = [((s.after or {}).get("status", {}).get("repair") or {}).get("state", "none") for s in repairs]
    drill.facts["repairStates"] = " → ".join(states)
    drill.expect(
        states.count("ReleaseRequested") == 1, f"repair requested a reschedule {states.count('ReleaseRequested')} times"
    )


def _pause(drill: DrillRun) -> None:
    spec = {
        "kind": "PauseRepair",
        "scope": {"region": drill.region},
        "reason": "drill repair-in-incident",
        "ttlSeconds": 600.0,
    }
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Override", "metadata": {"name": OVERRIDE}, "spec": spec}
    drill.add_undo("the override", lambda: _delete(drill))
    drill.observer.api().request("POST", PATH, body)


def _resume(drill: DrillRun) -> None:
    body: dict[str, Any] = {"spec": {"revoked": True}}
    drill.observer.api().request("PATCH", f"{PATH}/{OVERRIDE}", body, content_type=MERGE_PATCH)


def _delete(drill: DrillRun) -> None:
    drill.remove_override(OVERRIDE)


def _restore(drill: DrillRun, names: list[str]) -> None:
    allow_restart(drill.layout, names)


def _state(tenant: DrillTenant) -> str:
    found = tenant.replicas(NAME)
    return (found[0]["status"].get("repair") or {}).get("state", "") if found else ""


def _released(replica: dict[str, Any]) -> bool:
    block = replica["status"].get("release") or {}
    return bool(block) and block.get("attempt") == replica["status"]["placement"].get("attempt", 1)
