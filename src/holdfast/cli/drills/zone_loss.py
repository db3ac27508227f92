"""One zone of a region dies: its agents and their work. The region replaces what ran there in its other zones."""

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
    incident.facts |= {"zone": zone, "replicas_in_the_zone": len(inside)}
    incident.expect(inside, f"nothing of the drill's ran in zone {zone}")
    incident.undo_with(f"zone {zone}", lambda: _back(incident, names))
    hold_down(incident.layout, names)
    incident.struck(f"zone {zone}: {', '.join(names)} killed with all they run")
    incident.facts["processes_killed"] = kill(incident.layout, names)
    incident.until("the region sees the zone's nodes as lost", lambda: _lost(incident, zone), within_s=60)
    incident.until("all serve outside of the zone", lambda: _outside(incident, load, zone) == REPLICAS, within_s=120)
    region = incident.watcher.get("regions", incident.region)
    incident.facts["region_health"] = region["status"].get("health", {}).get("state", "")
    rows = region["status"].get("report", {}).get("zones", [])
    incident.facts["zones_reported"] = "; ".join(
        f"{r['zone']}: {r.get('liveNodes', 0)} of {r.get('nodes', 0)} live" for r in rows
    )
    restore(incident.layout, names)
    incident.until("the zone's nodes are back", lambda: not _lost(incident, zone), within_s=120)


def _back(incident: Incident, names: list[str]) -> None:
    restore(incident.layout, names)


def _lost(incident: Incident, zone: str) -> bool:
    nodes = [n for n in incident.watcher.list("nodes", incident.region) if n["spec"]["zone"] == zone]
    return bool(nodes) and all(n.get("status", {}).get("contact", {}).get("state") != "Live" for n in nodes)


def _outside(incident: Incident, load: Load, zone: str) -> int:
    return sum(serves(r) and r["status"]["placement"].get("zone") != zone for r in load.replicas(NAME))
