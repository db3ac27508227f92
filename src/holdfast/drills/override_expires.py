"""Drill override-expires: an override must expire and be reverted even while the global cell is down."""

from __future__ import annotations

from holdfast.client.sync_api import ApiRefusal
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import TENANT, DrillTenant
from holdfast.drills.outage import allow_restart, hold_down, kill_processes
from holdfast.model.times import parse_time

NAME = "drill-avoid-zone"
TTL_S = 20.0
LATE_S = 10.0
PATH = "/apis/holdfast.dev/v1/overrides"


def run(incident: DrillRun) -> None:
    """Avoids a zone, kills the global cell, and checks the zones of new replicas before and after the expiry."""
    watcher = incident.observer
    zone = incident.plan.zones[0]
    load = DrillTenant(incident)
    load.workload("early", 2)
    if not incident.wait_until("the drill's workload serves", lambda: load.serving("early") == 2, within_s=60):
        return
    incident.add_undo("the override", lambda: _delete(incident))
    spec = {"kind": "AvoidZone", "scope": {"region": incident.region, "zone": zone}, "reason": "drill override-expires",
            "ttlSeconds": TTL_S}  # fmt: skip
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Override", "metadata": {"name": NAME}, "spec": spec}
    incident.failure_starts(f"zone {zone} is avoided for {TTL_S:.0f} s")
    watcher.api().request("POST", PATH, body)
    incident.wait_until("the override is active", lambda: watcher.get("overrides", NAME)["status"].get("phase") == "Active")
    expires_at = watcher.get("overrides", NAME)["status"]["expiresAt"]
    load.workload("during", 4)
    incident.wait_until("four replicas are placed", lambda: len(load.bindings("during")) == 4, within_s=TTL_S)
    zones = sorted({b["spec"]["zone"] for b in load.bindings("during")})
    incident.facts["zonesWhileActive"] = " ".join(zones)
    incident.expect(zone not in zones, f"replicas were placed in the avoided zone {zone}")
    load.workload("after", 8)
    _without_global(incident, load, zone, expires_at)
    incident.wait_until("phase Expired", lambda: watcher.get("overrides", NAME)["status"].get("phase") == "Expired")
    incident.wait_until("condition Reverted", lambda: _reverted(incident), within_s=30)


def _without_global(incident: DrillRun, load: DrillTenant, zone: str, expires_at: str) -> None:
    """Kills the global cell until the TTL is over, and checks that the region uses the zone again."""
    names = ["cell-global"]
    incident.wait_until("the region has the third workload", lambda: len(load.replicas("after")) == 8, within_s=15)
    incident.add_undo("the global cell", lambda: _restored(incident, names))
    hold_down(incident.layout, names)
    kill_processes(incident.layout, names)
    incident.mark("the global cell is killed")
    incident.wait_until("the TTL is over", lambda: incident.wall_s() >= parse_time(expires_at), within_s=TTL_S + 5)
    # Deleted replicas are replaced by the region alone, after the expiry.
    for replica in load.replicas("after"):
        path = f"/apis/holdfast.dev/v1/namespaces/{TENANT}/replicas/{replica['metadata']['name']}"
        incident.observer.api(incident.region).request("DELETE", path)
    late_s = TTL_S + LATE_S
    incident.wait_until(
        f"the region places in {zone} again",
        lambda: any(b["spec"]["zone"] == zone and b["spec"].get("desired", "Run") == "Run"
                    for b in load.bindings("after")),
        within_s=late_s,
    )  # fmt: skip
    _restored(incident, names)
    incident.wait_until("the global cell is reachable again", lambda: bool(incident.observer.list("overrides")), within_s=60)


def _restored(incident: DrillRun, names: list[str]) -> None:
    allow_restart(incident.layout, names)


def _reverted(incident: DrillRun) -> bool:
    conditions = incident.observer.get("overrides", NAME)["status"].get("conditions", [])
    return any(c["type"] == "Reverted" and c["status"] == "True" for c in conditions)


def _delete(incident: DrillRun) -> None:
    try:
        incident.observer.api().request("DELETE", f"{PATH}/{NAME}")
    except ApiRefusal as refusal:
        if refusal.status != 404:
            raise
