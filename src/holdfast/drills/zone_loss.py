"""Drill zone-loss: a zone's agents and tasks are killed. The region replaces the replicas in its other zones."""

from __future__ import annotations

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import DrillTenant
from holdfast.drills.outage import allow_restart, hold_down, kill_processes, process_names
from holdfast.drills.platform_observer import serves

NAME = "zoned"
REPLICAS = 4


def run(drill: DrillRun) -> None:
    zone = drill.plan.zones[-1]
    names = process_names(drill.plan, zone=zone)
    tenant = DrillTenant(drill)
    rule = {"topology": "zone", "maxSkew": 1, "preferred": True}
    tenant.workload(NAME, REPLICAS, placement={"spread": [rule]})
    if not drill.wait_until("the drill's workload serves", lambda: tenant.serving(NAME) == REPLICAS, within_s=60):
        return
    inside = [b for b in tenant.bindings(NAME) if b["spec"]["zone"] == zone]
    drill.facts |= {"zone": zone, "replicasInZone": len(inside)}
    drill.expect(inside, f"no replica of the drill ran in zone {zone}")
    drill.add_undo(f"zone {zone}", lambda: _restore(drill, names))
    hold_down(drill.layout, names)
    drill.failure_starts(f"zone {zone}: {', '.join(names)} and their tasks are killed")
    drill.facts["processesKilled"] = kill_processes(drill.layout, names)
    drill.wait_until("the zone's nodes are not live", lambda: _lost(drill, zone), within_s=60)
    drill.wait_until(
        "all replicas serve in other zones", lambda: _outside(drill, tenant, zone) == REPLICAS, within_s=120
    )
    region = drill.observer.get("regions", drill.region)
    drill.facts["regionHealth"] = region["status"].get("health", {}).get("state", "")
    rows = region["status"].get("report", {}).get("zones", [])
    drill.facts["zonesReported"] = "; ".join(
        f"{r['zone']}: {r.get('liveNodes', 0)} of {r.get('nodes', 0)} live" for r in rows
    )
    allow_restart(drill.layout, names)
    drill.wait_until("the zone's nodes are live", lambda: not _lost(drill, zone), within_s=120)


def _restore(drill: DrillRun, names: list[str]) -> None:
    allow_restart(drill.layout, names)


def _lost(drill: DrillRun, zone: str) -> bool:
    nodes = [n for n in drill.observer.list("nodes", drill.region) if n["spec"]["zone"] == zone]
    return bool(nodes) and all(n.get("status", {}).get("contact", {}).get("state") != "Live" for n in nodes)


def _outside(drill: DrillRun, tenant: DrillTenant, zone: str) -> int:
    return sum(serves(r) and r["status"]["placement"].get("zone") != zone for r in tenant.replicas(NAME))
