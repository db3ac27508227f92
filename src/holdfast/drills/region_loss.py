"""Drill region-loss: a region's cell, agents and tasks are killed, and the recovery is timed.

The drill's own critical workload runs in that region only, so that its recovery starts all replicas elsewhere.
"""

from __future__ import annotations

import socket
from typing import Any

from holdfast.drills.critical_workload import DrillCriticalWorkload
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.outage import allow_restart, hold_down, kill_processes, process_names
from holdfast.drills.platform_observer import Item, serving_by_region
from holdfast.drills.shortfalls import missed_objective
from holdfast.model.times import parse_time

RECORDED_WITHIN_S = 5.0
CLOCK_FIELDS = (
    ("detectedAt", "recovery opened"),
    ("assignedAt", "assigned"),
    ("boundAt", "bound"),
    ("readyAt", "ready"),
    ("servingAt", "serving"),
)


def run(drill: DrillRun, *, fail_back: bool) -> None:
    """Waits until every critical workload serves `minServing` in one other region, and optionally for failback."""
    critical = DrillCriticalWorkload(drill)
    if not critical.start():
        return
    names = process_names(drill.plan)
    seconds: dict[str, float] = {}
    drill.add_undo(f"region {drill.region}", lambda: _restore(drill, names))
    hold_down(drill.layout, names)
    drill.failure_starts(f"region {drill.region} is killed")
    lost_at = drill.wall_s()
    drill.facts["processesKilled"] = kill_processes(drill.layout, names)
    served = drill.wait_until("every critical workload serves minServing", lambda: _served(drill, seconds))
    critical.expect_all_started_elsewhere()
    recovery = _recorded(drill)
    drill.expect(recovery, f"no Recovery was opened for region {drill.region}")
    _read_clock(drill, recovery, lost_at)
    _check_addresses(drill)
    _print_timeline(drill, recovery, seconds, served=served)
    if fail_back and recovery:
        drill.say(f"restarting region {drill.region}; waiting for failback")
        allow_restart(drill.layout, names)
        drill.wait_until("recovery Closed", lambda: _marked_phase(drill) == "Closed")


def _restore(drill: DrillRun, names: list[str]) -> None:
    allow_restart(drill.layout, names)


def _served(drill: DrillRun, seconds: dict[str, float]) -> bool:
    """Records when each critical workload serves `minServing` in one other region. Returns whether all do."""
    region = drill.observer.get("regions", drill.region)
    state = region.get("status", {}).get("health", {}).get("state", "")
    if state != "Healthy":
        drill.mark(f"region {state.lower()}")
    if state != "Lost":
        return False
    all_recovered = True
    for workload in drill.observer.critical_workloads():
        name = f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"
        enough = workload["spec"]["recovery"].get("minServing", 4)
        elsewhere = {r: n for r, n in serving_by_region(workload).items() if r != drill.region}
        if name not in seconds and max(elsewhere.values(), default=0) >= enough:
            seconds[name] = round(drill.now_s(), 2)
            drill.say(f"{seconds[name]:6.1f} s  {name}: {elsewhere}")
        all_recovered = all_recovered and name in seconds
    return all_recovered


def _recorded(drill: DrillRun) -> Item:
    """Waits until the Recovery's own status shows the success, and returns it. Its clock is part of the report."""
    drill.wait_until(
        "the Recovery records it", lambda: _marked_phase(drill) not in ("", "Open"), within_s=RECORDED_WITHIN_S
    )
    return newest_recovery(drill)


def newest_recovery(drill: DrillRun) -> Item:
    found = [r for r in drill.observer.list("recoveries") if r["spec"]["region"] == drill.region]
    newest: Item = max(found, key=lambda r: r["metadata"]["creationTimestamp"], default={})
    return newest


def expect_objective_met(drill: DrillRun, recovery: Item | None) -> None:
    """Records a failure with the late workloads if the Recovery's own condition does not say that it was in time."""
    missed = missed_objective(recovery) if recovery else "no Recovery of the region: objective not met"
    drill.facts["objective"] = "met" if not missed else "missed"
    drill.expect(not missed, missed)


def _read_clock(drill: DrillRun, recovery: Item, lost_at: float) -> None:
    clock = recovery.get("status", {}).get("clock", {})
    for field, stage in CLOCK_FIELDS:
        if clock.get(field):
            drill.clock[stage] = round(parse_time(clock[field]) - lost_at, 2)


def _check_addresses(drill: DrillRun) -> None:
    """Checks that every endpoint address of critical workloads in other regions accepts a connection."""
    critical = {(w["metadata"]["namespace"], w["metadata"]["name"]) for w in drill.observer.critical_workloads()}
    answered = 0
    for endpoint in drill.observer.list("endpoints"):
        spec = endpoint["spec"]
        if spec["region"] == drill.region or (endpoint["metadata"]["namespace"], spec["workload"]) not in critical:
            continue
        for address in spec.get("addresses", []):
            for port in address.get("ports", {}).values():
                try:
                    socket.create_connection((address["address"], port), timeout=2.0).close()
                    answered += 1
                except OSError as error:
                    drill.failures.append(f"{address['replica']}: its endpoint address is not reachable ({error})")
    drill.facts["reachableAddresses"] = answered


def _marked_phase(drill: DrillRun) -> str:
    """The phase of the newest Recovery. Each phase after `Open` is a stage of the report."""
    phase = str(newest_recovery(drill).get("status", {}).get("phase", ""))
    if phase and phase != "Open":
        drill.mark(f"recovery {phase}")
    return phase


def _print_timeline(drill: DrillRun, recovery: Item, seconds: dict[str, float], *, served: bool) -> None:
    rows: list[dict[str, Any]] = recovery.get("status", {}).get("workloads", [])
    slowest = max(seconds.values(), default=0.0)
    deadline_s = float(recovery.get("spec", {}).get("deadlineSeconds", 300))
    if served:
        late = ", ".join(f"{name} after {took_s:.1f} s" for name, took_s in seconds.items() if took_s > deadline_s)
        drill.expect(not late, f"recovery objective of {deadline_s:.0f} s missed: {late}")
    expect_objective_met(drill, recovery)
    drill.facts |= {
        "secondsToMinServing": slowest if served else None,
        "deadlineSeconds": deadline_s,
        "recovery": recovery.get("metadata", {}).get("name", "none"),
        "workloads": [{**r, "seconds": seconds.get(f"{r['tenant']}/{r['workload']}")} for r in rows],
    }
