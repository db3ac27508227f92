"""Drill region-away: a whole region hangs for longer than its grant lease, and then continues with its old state.

Its critical work is recovered elsewhere. When it continues, its leases have expired: it must place nothing before the
global cell has renewed them, and give its quota back for what was recovered, until failback.
"""

from __future__ import annotations

import time

from holdfast.drills.critical_workload import REPLICAS, DrillCriticalWorkload
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.outage import pause_processes, process_names, resume_processes
from holdfast.drills.region_loss import expect_objective_met, newest_recovery
from holdfast.model import limits

MARGIN_S = 15.0
"""Longer than the lease by this much, because the last contact may be later than the start of the hang."""


def run(drill: DrillRun, *, seconds: float) -> None:
    observer = drill.observer
    critical = DrillCriticalWorkload(drill)
    if not critical.start():
        return
    names = process_names(drill.plan)
    away_s = max(seconds, limits.GRANT_LEASE_S + MARGIN_S)
    drill.add_undo(f"region {drill.region}", lambda: _resume(drill, names))
    drill.failure_starts(f"region {drill.region} is paused for {away_s:.0f} s")
    ends_mono_s = time.monotonic() + away_s
    drill.facts |= {"awaySeconds": away_s, "processesPaused": pause_processes(drill.layout, names)}
    drill.wait_until("region lost", lambda: _health(drill) == "Lost", within_s=60)
    drill.wait_until(
        "four recovery replicas serve elsewhere",
        lambda: critical.serving_elsewhere() >= REPLICAS,
        within_s=drill.timeout_s,
    )
    critical.expect_all_started_elsewhere()
    drill.wait_until("longer away than the grant lease", lambda: time.monotonic() >= ends_mono_s, within_s=away_s + 5)
    _resume(drill, names)
    returned_s = drill.now_s()
    drill.mark("the region continues")
    drill.wait_until("the region is healthy", lambda: _health(drill) == "Healthy", within_s=120)
    early = [
        step.name
        for step in drill.changes()
        if step.cell == drill.region
        and step.kind == "Binding"
        and step.op == "created"
        and step.at_s - drill.failure_s < returned_s
    ]
    drill.expect(not early, f"the region bound replicas while it was away: {', '.join(early)}")
    drill.wait_until(
        "recovery Closed",
        lambda: newest_recovery(drill).get("status", {}).get("phase") == "Closed",
        within_s=drill.timeout_s,
    )
    expect_objective_met(drill, newest_recovery(drill))
    drill.wait_until("all replicas serve at home", lambda: critical.serving_at_home() >= REPLICAS, within_s=120)
    opened = [
        r
        for r in observer.list("recoveries")
        if r["spec"]["region"] != drill.region and r["status"].get("phase") != "Closed"
    ]
    drill.expect(not opened, "a Recovery of another region is open")


def _health(drill: DrillRun) -> str:
    return str(drill.observer.get("regions", drill.region)["status"].get("health", {}).get("state", ""))


def _resume(drill: DrillRun, names: list[str]) -> None:
    resume_processes(drill.layout, names)
