"""Drill repair-in-incident: repair during an incident obeys its pause, then acts exactly once.

The node's capacity is released only after the stop is confirmed or the node is fenced.
"""

from __future__ import annotations

from typing import Any

from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.load import MERGE, Load
from holdfast.cli.drills.mute_agent import NODE, TAINT, MuteAgent
from holdfast.cli.drills.outage import hold_down, kill, restore
from holdfast.cli.http import Refusal
from holdfast.model import limits
from holdfast.model.labels import LABEL_DRILL

NAME = "stuck"
OVERRIDE = "drill-pause-repair"
PATH = "/apis/holdfast.dev/v1/overrides"
LABELS = {LABEL_DRILL: "mute"}
SEEN_WITHIN_S = limits.STAGE_DEADLINE_S["Bound"] + 2 * limits.REPAIR_LOOK_EVERY_S + 15.0


def run(incident: Incident) -> None:
    """Binds a replica to an inert agent and kills another node, while repair is paused by an override."""
    load = Load(incident)
    mute = MuteAgent(incident, LABELS)
    victim = f"agent-{incident.plan.agents[-1].name}"
    _pause(incident)
    tolerates = [{"key": TAINT["key"], "value": TAINT["value"], "effect": TAINT["effect"]}]
    load.workload(NAME, 1, placement={"nodeSelector": LABELS, "tolerations": tolerates})
    incident.struck(f"a replica is bound to the inert node {NODE}; {victim} is killed")
    incident.undo_with(victim, lambda: _back(incident, [victim]))
    hold_down(incident.layout, [victim])
    kill(incident.layout, [victim])
    if not incident.until("the replica is bound", lambda: len(load.bindings(NAME)) == 1, within_s=30):
        return
    incident.until("repair is paused", lambda: _state(load) == "Paused", within_s=SEEN_WITHIN_S)
    first = load.replicas(NAME)[0]
    incident.expect(not _released(first), "the replica was released while repair was paused")
    incident.facts["found"] = (first["status"].get("repair") or {}).get("message", "")
    restore(incident.layout, [victim])
    _resume(incident)
    incident.mark("the pause is revoked")
    incident.until("repair requests a reschedule", lambda: _state(load) == "Asked", within_s=30)
    incident.until("the release is decided", lambda: _released(load.replicas(NAME)[0]), within_s=30)
    kept = load.bindings(NAME)
    incident.expect(
        len(kept) == 1 and not kept[0]["spec"].get("quotaReleased"),
        "the claim was released before the stop was acknowledged or the node was fenced",
    )
    mute.hush()
    incident.mark("the inert agent stops renewing its lease")
    attempt = first["status"]["placement"].get("attempt", 1)
    incident.until(
        "the node is fenced and the claim is released",
        lambda: load.replicas(NAME)[0]["status"]["placement"].get("attempt", 1) > attempt,
        within_s=90,
    )
    repairs = [
        s for s in incident.steps()
        if s.kind == "Replica" and s.name == first["metadata"]["name"] and "status.repair" in s.groups
    ]  # fmt: skip
    states = [((s.after or {}).get("status", {}).get("repair") or {}).get("state", "none") for s in repairs]
    incident.facts["repairStates"] = " → ".join(states)
    incident.expect(states.count("Asked") == 1, f"repair requested a reschedule {states.count('Asked')} times")


def _pause(incident: Incident) -> None:
    spec = {"kind": "PauseRepair", "scope": {"region": incident.region}, "reason": "drill repair-in-incident",
            "ttlSeconds": 600.0}  # fmt: skip
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Override", "metadata": {"name": OVERRIDE}, "spec": spec}
    incident.undo_with("the override", lambda: _delete(incident))
    incident.watcher.api().request("POST", PATH, body)


def _resume(incident: Incident) -> None:
    body: dict[str, Any] = {"spec": {"revoked": True}}
    incident.watcher.api().request("PATCH", f"{PATH}/{OVERRIDE}", body, content_type=MERGE)


def _delete(incident: Incident) -> None:
    try:
        incident.watcher.api().request("DELETE", f"{PATH}/{OVERRIDE}")
    except Refusal as refusal:
        if refusal.status != 404:
            raise


def _back(incident: Incident, names: list[str]) -> None:
    restore(incident.layout, names)


def _state(load: Load) -> str:
    found = load.replicas(NAME)
    return (found[0]["status"].get("repair") or {}).get("state", "") if found else ""


def _released(replica: dict[str, Any]) -> bool:
    block = replica["status"].get("release") or {}
    return bool(block) and block.get("attempt") == replica["status"]["placement"].get("attempt", 1)
