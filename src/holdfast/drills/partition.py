"""Drill partition: the global cell is killed for a while, and a node is lost meanwhile.

Bound replicas keep running. The region's authority replaces the replicas of the lost node within its stored limits.
After its restart the global cell must not declare a region lost because of its own downtime.
"""

from __future__ import annotations

import time

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.outage import allow_restart, hold_down, kill_processes
from holdfast.drills.platform_observer import Item, serves


def run(incident: DrillRun, *, seconds: float) -> None:
    watcher = incident.observer
    node = _busiest(incident)
    names = ["cell-global", f"agent-{node}"]
    wanted = len(_serving(incident))
    incident.expect(wanted, f"no replica served in {incident.region} before the partition")
    known = {r["metadata"]["name"] for r in watcher.list("recoveries")}
    incident.facts |= {"lostNode": node, "partitionSeconds": seconds, "servingBefore": wanted}
    incident.add_undo("the global cell and the node", lambda: _back(incident, names))
    hold_down(incident.layout, names)
    incident.failure_starts(f"the global cell and node {node} are killed; {wanted} replicas serve in {incident.region}")
    kill_processes(incident.layout, names)
    ends_mono_s = time.monotonic() + seconds
    incident.wait_until("the region detects the lost node", lambda: len(_serving(incident)) < wanted, within_s=seconds)
    left_s = ends_mono_s - time.monotonic()
    incident.wait_until(
        "replaced without the global cell", lambda: len(_serving(incident)) >= wanted, within_s=max(1.0, left_s)
    )
    incident.wait_until("the partition ends", lambda: time.monotonic() >= ends_mono_s, within_s=seconds)
    allow_restart(incident.layout, names)
    incident.wait_until("all regions are healthy", lambda: _all_healthy(incident))
    opened = [r["metadata"]["name"] for r in watcher.list("recoveries") if r["metadata"]["name"] not in known]
    incident.expect(not opened, f"the global cell opened a Recovery because of its own downtime: {', '.join(opened)}")
    incident.invariants_held.append(f"no Recovery because of the global cell's downtime: {len(opened)} opened")


def _busiest(incident: DrillRun) -> str:
    """The node with the most serving replicas."""
    served = [r["status"]["placement"].get("node", "") for r in _serving(incident)]
    return max((a.name for a in incident.plan.agents), key=served.count)


def _back(incident: DrillRun, names: list[str]) -> None:
    allow_restart(incident.layout, names)


def _serving(incident: DrillRun) -> list[Item]:
    found = incident.observer.list("replicas", incident.region)
    return [r for r in found if r["spec"].get("type", "Service") == "Service" and serves(r)]


def _all_healthy(incident: DrillRun) -> bool:
    regions = incident.observer.list("regions")
    return all(r["status"].get("health", {}).get("state") == "Healthy" for r in regions)
