"""Drill zone-loss: a zone's agents and tasks are killed. The region replaces the replicas in its other zones."""

from __future__ import annotations

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import DrillTenant
from holdfast.drills.outage import allow_restart, hold_down, kill_processes, process_names
from holdfast.drills.platform_observer import serves

NAME = "zoned"
REPLICAS = 4


def run(incident: DrillRun) -> None:
    zone = incident.plan.zones[-1]
    names = process_names(incident.plan, zone=zone)
    load = DrillTenant(incident)
    rule = {"topology": "zone", "maxSkew": 1, "preferred": True}
    load.workload(NAME, REPLICAS, placement={"spread": [rule]})
    if not incident.wait_until("the drill's workload serves", lambda: load.serving(NAME) == REPLICAS, within_s=60):
        return
    inside = [b for b in load.bindings(NAME) if b["spec"]["zone"] == zone]
    incident.facts |= {"zone": zone, "replicasInZone": len(inside)}
    incident.expect(inside, f"no replica of the drill ran in zone {zone}")
    incident.add_undo(f"zone {zone}", lambda: _back(incident, names))
    hold_down(incident.layout, names)
    incident.failure_starts(f"zone {zone}: {', '.join(names)} and their tasks are killed")
    incident.facts["processesKilled"] = kill_processes(incident.layout, names)
    incident.wait_until("the zone's nodes are not live", lambda: _lost(incident, zone), within_s=60)
    incident.wait_until(
        "all replicas serve in other zones", lambda: _outside(incident, load, zone) == REPLICAS, within_s=120
    )
    region = incident.observer.get("regions", incident.region)
    incident.facts["regionHealth"] = region["status"].get("health", {}).get("state", "")
    rows = region["status"].get("report", {}).get("zones", [])
    incident.facts["zonesReported"] = "; ".join(
        f"{r['zone']}: {r.get('liveNodes', 0)} of {r.get('nodes', 0)} live" for r in rows
    )
    allow_restart(incident.layout, names)
    incident.wait_until("the zone's nodes are live", lambda: not _lost(incident, zone), within_s=120)


def _back(incident: DrillRun, names: list[str]) -> None:
    allow_restart(incident.layout, names)


def _lost(incident: DrillRun, zone: str) -> bool:
    nodes = [n for n in incident.observer.list("nodes", incident.region) if n["spec"]["zone"] == zone]
    return bool(nodes) and all(n.get("status", {}).get("contact", {}).get("state") != "Live" for n in nodes)


def _outside(incident: DrillRun, load: DrillTenant, zone: str) -> int:
    return sum(serves(r) and r["status"]["placement"].get("zone") != zone for r in load.replicas(NAME))
