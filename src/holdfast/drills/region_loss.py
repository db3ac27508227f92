"""Drill region-loss: a region's cell, agents and tasks are killed, and the recovery is timed."""

from __future__ import annotations

import socket
from typing import Any

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.outage import allow_restart, hold_down, kill_processes, process_names
from holdfast.drills.platform_observer import Item
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.times import parse_time

RECORDED_WITHIN_S = 5.0
CLOCK_FIELDS = (
    ("detectedAt", "recovery opened"), ("assignedAt", "assigned"), ("boundAt", "bound"), ("readyAt", "ready"),
    ("servingAt", "serving"),
)  # fmt: skip


def run(incident: DrillRun, *, fail_back: bool) -> None:
    """Waits until every critical workload serves `minServing` in one other region, and optionally for failback."""
    watcher = incident.observer
    if not watcher.critical_workloads():
        raise CommandError(
            "drill region-loss: no workload has a recovery objective",
            next_step="set spec.recovery of a workload",
            code=ExitCode.USAGE,
        )
    names = process_names(incident.plan)
    seconds: dict[str, float] = {}
    incident.add_undo(f"region {incident.region}", lambda: _back(incident, names))
    hold_down(incident.layout, names)
    incident.failure_starts(f"region {incident.region} is killed")
    lost_at = incident.wall_s()
    incident.facts["processesKilled"] = kill_processes(incident.layout, names)
    served = incident.wait_until("every critical workload serves minServing", lambda: _served(incident, seconds))
    recovery = _recorded(incident)
    incident.expect(recovery, f"no Recovery was opened for region {incident.region}")
    _read_clock(incident, recovery, lost_at)
    _check_addresses(incident)
    _tell(incident, recovery, seconds, served=served)
    if fail_back and recovery:
        incident.say(f"restarting region {incident.region}; waiting for failback")
        allow_restart(incident.layout, names)
        incident.wait_until("recovery Closed", lambda: _closed(incident))


def _back(incident: DrillRun, names: list[str]) -> None:
    allow_restart(incident.layout, names)


def _served(incident: DrillRun, seconds: dict[str, float]) -> bool:
    """Records when each critical workload serves `minServing` in one other region. Returns whether all do."""
    region = incident.observer.get("regions", incident.region)
    state = region.get("status", {}).get("health", {}).get("state", "")
    if state != "Healthy":
        incident.mark(f"region {state.lower()}")
    if state != "Lost":
        return False
    done = True
    for workload in incident.observer.critical_workloads():
        name = f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"
        enough = workload["spec"]["recovery"].get("minServing", 4)
        elsewhere = {r: n for r, n in incident.observer.serving_by_region(workload).items() if r != incident.region}
        if name not in seconds and max(elsewhere.values(), default=0) >= enough:
            seconds[name] = round(incident.now_s(), 2)
            incident.say(f"{seconds[name]:6.1f} s  {name}: {elsewhere}")
        done = done and name in seconds
    return done


def _recorded(incident: DrillRun) -> Item:
    """Waits until the Recovery's own status shows the success, and returns it. Its clock is part of the report."""
    incident.wait_until(
        "the Recovery records it",
        lambda: _recovery(incident).get("status", {}).get("phase") != "Open",
        within_s=RECORDED_WITHIN_S,
    )
    return _recovery(incident)


def _recovery(incident: DrillRun) -> Item:
    found = [r for r in incident.observer.list("recoveries") if r["spec"]["region"] == incident.region]
    newest: Item = max(found, key=lambda r: r["metadata"]["creationTimestamp"], default={})
    return newest


def _read_clock(incident: DrillRun, recovery: Item, lost_at: float) -> None:
    clock = recovery.get("status", {}).get("clock", {})
    for field, stage in CLOCK_FIELDS:
        if clock.get(field):
            incident.clock[stage] = round(parse_time(clock[field]) - lost_at, 2)


def _check_addresses(incident: DrillRun) -> None:
    """Checks that every endpoint address of critical workloads in other regions accepts a connection."""
    critical = {(w["metadata"]["namespace"], w["metadata"]["name"]) for w in incident.observer.critical_workloads()}
    answered = 0
    for endpoint in incident.observer.list("endpoints"):
        spec = endpoint["spec"]
        if spec["region"] == incident.region or (endpoint["metadata"]["namespace"], spec["workload"]) not in critical:
            continue
        for address in spec.get("addresses", []):
            for port in address.get("ports", {}).values():
                try:
                    socket.create_connection((address["address"], port), timeout=2.0).close()
                    answered += 1
                except OSError as error:
                    incident.failures.append(f"{address['replica']}: its endpoint address is not reachable ({error})")
    incident.facts["reachableAddresses"] = answered


def _closed(incident: DrillRun) -> bool:
    phase = _recovery(incident).get("status", {}).get("phase", "")
    if phase and phase != "Open":
        incident.mark(f"recovery {phase}")
    return bool(phase == "Closed")


def _tell(incident: DrillRun, recovery: Item, seconds: dict[str, float], *, served: bool) -> None:
    rows: list[dict[str, Any]] = recovery.get("status", {}).get("workloads", [])
    slowest = max(seconds.values(), default=0.0)
    deadline_s = float(recovery.get("spec", {}).get("deadlineSeconds", 300))
    if served:
        incident.expect(
            slowest <= deadline_s, f"recovery objective missed (expected {deadline_s:.0f} s, found {slowest:.1f} s)"
        )
    incident.facts |= {
        "secondsToMinServing": slowest if served else None,
        "deadlineSeconds": deadline_s,
        "recovery": recovery.get("metadata", {}).get("name", "none"),
        "workloads": [{**r, "seconds": seconds.get(f"{r['tenant']}/{r['workload']}")} for r in rows],
    }
