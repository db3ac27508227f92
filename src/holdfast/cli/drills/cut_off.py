"""Regions cut off from the global cell: it is killed for a while, a node is lost meanwhile, the region goes on alone.

Committed work runs on; what the lost node ran is placed anew by the region's own authority, within the limits it holds
durably. When the global cell is back nothing is concluded from its own silence.
"""

from __future__ import annotations

import time

from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.outage import hold_down, kill, restore
from holdfast.cli.drills.world import Item, serves


def run(incident: Incident, *, seconds: float) -> None:
    watcher = incident.watcher
    node = _busiest(incident)
    names = ["cell-global", f"agent-{node}"]
    wanted = len(_serving(incident))
    incident.expect(wanted, f"nothing served in {incident.region} before the cut")
    known = {r["metadata"]["name"] for r in watcher.list("recoveries")}
    incident.facts |= {"node_lost": node, "seconds_cut_off": seconds, "served_before": wanted}
    incident.undo_with("the global cell and the node", lambda: _back(incident, names))
    hold_down(incident.layout, names)
    incident.struck(f"the global cell and node {node} are killed; {wanted} replicas serve in {incident.region}")
    kill(incident.layout, names)
    ends_mono_s = time.monotonic() + seconds
    incident.until("the region misses what the node ran", lambda: len(_serving(incident)) < wanted, within_s=seconds)
    left_s = ends_mono_s - time.monotonic()
    incident.until(
        "replaced without the global cell", lambda: len(_serving(incident)) >= wanted, within_s=max(1.0, left_s)
    )
    incident.until("the cut is over", lambda: time.monotonic() >= ends_mono_s, within_s=seconds)
    restore(incident.layout, names)
    incident.until("every region is heard again", lambda: _all_healthy(incident))
    opened = [r["metadata"]["name"] for r in watcher.list("recoveries") if r["metadata"]["name"] not in known]
    incident.expect(not opened, f"the global cell took its own silence for a loss: {', '.join(opened)}")
    incident.held.append(f"no Recovery was opened from the global cell's own silence: {len(opened)} opened")


def _busiest(incident: Incident) -> str:
    """The node whose loss is felt most."""
    served = [r["status"]["placement"].get("node", "") for r in _serving(incident)]
    return max((a.name for a in incident.plan.agents), key=served.count)


def _back(incident: Incident, names: list[str]) -> None:
    restore(incident.layout, names)


def _serving(incident: Incident) -> list[Item]:
    found = incident.watcher.list("replicas", incident.region)
    return [r for r in found if r["spec"].get("type", "Service") == "Service" and serves(r)]


def _all_healthy(incident: Incident) -> bool:
    regions = incident.watcher.list("regions")
    return all(r["status"].get("health", {}).get("state") == "Healthy" for r in regions)
