"""Drill zone-loss: a zone's agents and tasks are killed. The region replaces the replicas in its other zones."""

from __future__ import annotations

from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.load import Load
from holdfast.cli.drills.outage import hold_down, kill, names_of, restore
from holdfast.cli.drills.world import serves

NAME = "zoned"
REPLICAS = 4


def run(incident: Incident) -> None:
    zone = incident.plan.zones[-1]
    names = names_of(incident.plan, zone=zone)
    load = Load(incident)
    rule = {"topology": "zone", "maxSkew": 1, "preferred": True}
    load.workload(NAME, REPLICAS, placement={"spread": [rule]})
    if not incident.until("the drill's workload serves", lambda: load.serving(NAME) == REPLICAS, within_s=60):
        return
    inside = [b for b in load.bindings(NAME) if b["spec"]["zone"] == zone]
    incident.facts |= {"zone": zone, "replicasInZone": len(inside)}
    incident.expect(inside, f"no replica of the drill ran in zone {zone}")
    incident.undo_with(f"zone {zone}", lambda: _back(incident, names))
    hold_down(incident.layout, names)
    incident.struck(f"zone {zone}: {', '.join(names)} and their tasks are killed")
    incident.facts["processesKilled"] = kill(incident.layout, names)
    incident.until("the zone's nodes are not live", lambda: _lost(incident, zone), within_s=60)
    incident.until(
        "all replicas serve in other zones", lambda: _outside(incident, load, zone) == REPLICAS, within_s=120
    )
    region = incident.watcher.get("regions", incident.region)
    incident.facts["regionHealth"] = region["status"].get("health", {}).get("state", "")
    rows = region["status"].get("report", {}).get("zones", [])
    incident.facts["zonesReported"] = "; ".join(
        f"{r['zone']}: {r.get('liveNodes', 0)} of {r.get('nodes', 0)} live" for r in rows
    )
    restore(incident.layout, names)
    incident.until("the zone's nodes are live", lambda: not _lost(incident, zone), within_s=120)


def _back(incident: Incident, names: list[str]) -> None:
    restore(incident.layout, names)


def _lost(incident: Incident, zone: str) -> bool:
    nodes = [n for n in incident.watcher.list("nodes", incident.region) if n["spec"]["zone"] == zone]
    return bool(nodes) and all(n.get("status", {}).get("contact", {}).get("state") != "Live" for n in nodes)


def _outside(incident: Incident, load: Load, zone: str) -> int:
    return sum(serves(r) and r["status"]["placement"].get("zone") != zone for r in load.replicas(NAME))
