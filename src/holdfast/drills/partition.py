"""Drill partition: the global cell is killed for a while, and a node is lost meanwhile.

Bound replicas keep running. The region's authority replaces the replicas of the lost node within its stored limits.
After its restart the global cell must not declare a region lost because of its own downtime.
"""

from __future__ import annotations

import time

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.outage import allow_restart, hold_down, kill_processes
from holdfast.drills.platform_observer import Item, serves


def run(drill: DrillRun, *, seconds: float) -> None:
    observer = drill.observer
    node = _busiest(drill)
    names = ["cell-global", f"agent-{node}"]
    expected = len(_serving(drill))
    drill.expect(expected, f"no replica served in {drill.region} before the partition")
    known = {r["metadata"]["name"] for r in observer.list("recoveries")}
    drill.facts |= {"lostNode": node, "partitionSeconds": seconds, "servingBefore": expected}
    drill.add_undo("the global cell and the node", lambda: _restore(drill, names))
    hold_down(drill.layout, names)
    drill.failure_starts(f"the global cell and node {node} are killed; {expected} replicas serve in {drill.region}")
    kill_processes(drill.layout, names)
    ends_mono_s = time.monotonic() + seconds
    drill.wait_until("the region detects the lost node", lambda: len(_serving(drill)) < expected, within_s=seconds)
    left_s = ends_mono_s - time.monotonic()
    drill.wait_until(
        "replaced without the global cell", lambda: len(_serving(drill)) >= expected, within_s=max(1.0, left_s)
    )
    drill.wait_until("the partition ends", lambda: time.monotonic() >= ends_mono_s, within_s=seconds)
    allow_restart(drill.layout, names)
    drill.wait_until("all regions are healthy", lambda: _all_healthy(drill))
    opened = [r["metadata"]["name"] for r in observer.list("recoveries") if r["metadata"]["name"] not in known]
    drill.expect(not opened, f"the global cell opened a Recovery because of its own downtime: {', '.join(opened)}")
    drill.invariants_held.append(f"no Recovery because of the global cell's downtime: {len(opened)} opened")


def _busiest(drill: DrillRun) -> str:
    """The node with the most serving replicas."""
    served = [r["status"]["placement"].get("node", "") for r in _serving(drill)]
    return max((a.name for a in drill.plan.agents), key=served.count)


def _restore(drill: DrillRun, names: list[str]) -> None:
    allow_restart(drill.layout, names)


def _serving(drill: DrillRun) -> list[Item]:
    found = drill.observer.list("replicas", drill.region)
    return [r for r in found if r["spec"].get("type", "Service") == "Service" and serves(r)]


def _all_healthy(drill: DrillRun) -> bool:
    regions = drill.observer.list("regions")
    return all(r["status"].get("health", {}).get("state") == "Healthy" for r in regions)
