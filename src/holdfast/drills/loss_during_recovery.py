"""Drill loss-during-recovery: a region is lost, and during the recovery a node of the target region is lost too."""

from __future__ import annotations

from holdfast.drills.critical_workload import DrillCriticalWorkload
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.outage import allow_restart, hold_down, kill_processes, process_names, region_plan
from holdfast.drills.platform_observer import Item, serves, serving_by_region
from holdfast.drills.region_loss import expect_objective_met


def run(drill: DrillRun) -> None:
    observer = drill.observer
    critical = DrillCriticalWorkload(drill)
    if not critical.start():
        return
    known = {r["metadata"]["name"] for r in observer.list("recoveries")}
    names = process_names(drill.plan)
    drill.add_undo(f"region {drill.region}", lambda: _restore(drill, names))
    hold_down(drill.layout, names)
    drill.failure_starts(f"region {drill.region} is killed")
    drill.facts["processesKilled"] = kill_processes(drill.layout, names)
    if not drill.wait_until("a recovery target is chosen", lambda: bool(_targets(drill, known)), within_s=90):
        return
    target = _targets(drill, known)[0]
    node = f"agent-{region_plan(drill.platform, target).agents[-1].name}"
    drill.add_undo(f"node {node}", lambda: _restore(drill, [node]))
    hold_down(drill.layout, [node])
    kill_processes(drill.layout, [node])
    drill.mark(f"a node of {target} is killed")
    drill.facts |= {"recoveryTarget": target, "secondLoss": node}
    drill.wait_until("every critical workload serves minServing", lambda: _all_serve(drill))
    critical.expect_all_started_elsewhere()
    drill.facts["secondsToMinServing"] = drill.clock.get("every critical workload serves minServing")
    recovery = _new(drill, known)
    drill.facts["recovery"] = recovery["metadata"]["name"] if recovery else "none"
    opened = [r for r in observer.list("recoveries") if r["metadata"]["name"] not in known]
    regions = [r["spec"]["region"] for r in opened]
    drill.expect(len(regions) == len(set(regions)), f"a region has two recoveries: {regions}")
    allow_restart(drill.layout, [*names, node])
    drill.wait_until("the recovery is closed", lambda: _closed(drill, known))
    expect_objective_met(drill, _new(drill, known))


def _restore(drill: DrillRun, names: list[str]) -> None:
    allow_restart(drill.layout, names)


def _new(drill: DrillRun, known: set[str]) -> Item | None:
    found = [r for r in drill.observer.list("recoveries") if r["metadata"]["name"] not in known]
    return next((r for r in found if r["spec"]["region"] == drill.region), None)


def _targets(drill: DrillRun, known: set[str]) -> list[str]:
    recovery = _new(drill, known) or {}
    return [row["target"] for row in recovery.get("status", {}).get("workloads", []) if row.get("target")]


def _all_serve(drill: DrillRun) -> bool:
    for workload in drill.observer.critical_workloads():
        enough = workload["spec"]["recovery"].get("minServing", 4)
        elsewhere = [n for region, n in serving_by_region(workload).items() if region != drill.region]
        if max(elsewhere, default=0) < enough:
            return False
    # The summary counts replicas of the lost node until the region detects the loss, so the replicas are checked too.
    for workload in drill.observer.critical_workloads():
        enough = workload["spec"]["recovery"].get("minServing", 4)
        if max((_serving_count(drill, workload, r) for r in drill.observer.regions), default=0) < enough:
            return False
    return True


def _serving_count(drill: DrillRun, workload: Item, region: str) -> int:
    replicas = drill.observer.try_list("replicas", region) or []
    lost = {
        n["metadata"]["name"]
        for n in drill.observer.try_list("nodes", region) or []
        if n.get("status", {}).get("contact", {}).get("state") != "Live"
    }
    down = {p.name.removeprefix("agent-") for p in drill.layout.held_down("any").parent.glob("agent-*")}
    return sum(
        serves(r) and r["status"]["placement"].get("node") not in lost | down
        for r in replicas
        if r["spec"]["workloadUid"] == workload["metadata"]["uid"]
    )


def _closed(drill: DrillRun, known: set[str]) -> bool:
    found = [r for r in drill.observer.list("recoveries") if r["metadata"]["name"] not in known]
    return bool(found) and all(r["status"].get("phase") == "Closed" for r in found)
