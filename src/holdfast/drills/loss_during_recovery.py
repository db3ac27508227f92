"""Drill loss-during-recovery: a region is lost, and during the recovery a node of the target region is lost too."""

from __future__ import annotations

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.outage import allow_restart, hold_down, kill_processes, process_names, region_plan
from holdfast.drills.platform_observer import Item, serves


def run(incident: DrillRun) -> None:
    watcher = incident.observer
    known = {r["metadata"]["name"] for r in watcher.list("recoveries")}
    names = process_names(incident.plan)
    incident.add_undo(f"region {incident.region}", lambda: _back(incident, names))
    hold_down(incident.layout, names)
    incident.failure_starts(f"region {incident.region} is killed")
    incident.facts["processesKilled"] = kill_processes(incident.layout, names)
    if not incident.wait_until("a recovery target is chosen", lambda: bool(_targets(incident, known)), within_s=90):
        return
    target = _targets(incident, known)[0]
    node = f"agent-{region_plan(incident.platform, target).agents[-1].name}"
    incident.add_undo(f"node {node}", lambda: _back(incident, [node]))
    hold_down(incident.layout, [node])
    kill_processes(incident.layout, [node])
    incident.mark(f"a node of {target} is killed")
    incident.facts |= {"recoveryTarget": target, "secondLoss": node}
    incident.wait_until("every critical workload serves minServing", lambda: _all_serve(incident))
    incident.facts["secondsToMinServing"] = incident.clock.get("every critical workload serves minServing")
    recovery = _new(incident, known)
    incident.facts["recovery"] = recovery["metadata"]["name"] if recovery else "none"
    deadline_s = float((recovery or {}).get("spec", {}).get("deadlineSeconds", 300))
    took_s = incident.clock.get("every critical workload serves enough", deadline_s + 1)
    incident.expect(took_s <= deadline_s, f"it took {took_s:.0f} s; the promise allows {deadline_s:.0f} s")
    opened = [r for r in watcher.list("recoveries") if r["metadata"]["name"] not in known]
    regions = [r["spec"]["region"] for r in opened]
    incident.expect(len(regions) == len(set(regions)), f"a region has two recoveries: {regions}")
    allow_restart(incident.layout, [*names, node])
    incident.wait_until("the recovery is closed", lambda: _closed(incident, known))


def _back(incident: DrillRun, names: list[str]) -> None:
    allow_restart(incident.layout, names)


def _new(incident: DrillRun, known: set[str]) -> Item | None:
    found = [r for r in incident.observer.list("recoveries") if r["metadata"]["name"] not in known]
    return next((r for r in found if r["spec"]["region"] == incident.region), None)


def _targets(incident: DrillRun, known: set[str]) -> list[str]:
    recovery = _new(incident, known) or {}
    return [row["target"] for row in recovery.get("status", {}).get("workloads", []) if row.get("target")]


def _all_serve(incident: DrillRun) -> bool:
    for workload in incident.observer.critical_workloads():
        enough = workload["spec"]["recovery"].get("minServing", 4)
        elsewhere = [n for region, n in incident.observer.serving_by_region(workload).items() if region != incident.region]
        if max(elsewhere, default=0) < enough:
            return False
    # The summary counts replicas of the lost node until the region detects the loss, so the replicas are checked too.
    for workload in incident.observer.critical_workloads():
        if max((_really(incident, workload, r) for r in incident.observer.regions), default=0) < 4:
            return False
    return True


def _really(incident: DrillRun, workload: Item, region: str) -> int:
    replicas = incident.observer.try_list("replicas", region) or []
    lost = {
        n["metadata"]["name"]
        for n in incident.observer.try_list("nodes", region) or []
        if n.get("status", {}).get("contact", {}).get("state") != "Live"
    }
    down = {p.name.removeprefix("agent-") for p in incident.layout.held_down("any").parent.glob("agent-*")}
    return sum(
        serves(r) and r["status"]["placement"].get("node") not in lost | down
        for r in replicas
        if r["spec"]["workloadUid"] == workload["metadata"]["uid"]
    )


def _closed(incident: DrillRun, known: set[str]) -> bool:
    found = [r for r in incident.observer.list("recoveries") if r["metadata"]["name"] not in known]
    return bool(found) and all(r["status"].get("phase") == "Closed" for r in found)
