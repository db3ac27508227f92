"""Drill override-expires: an override must expire and be reverted even while the global cell is down."""

from __future__ import annotations

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import TENANT, DrillTenant
from holdfast.drills.outage import allow_restart, hold_down, kill_processes
from holdfast.model.times import parse_time

NAME = "drill-avoid-zone"
TTL_S = 20.0
LATE_S = 10.0
PATH = "/apis/holdfast.dev/v1/overrides"


def run(drill: DrillRun) -> None:
    """Avoids a zone, kills the global cell, and checks the zones of new replicas before and after the expiry."""
    observer = drill.observer
    zone = drill.plan.zones[0]
    tenant = DrillTenant(drill)
    tenant.workload("early", 2)
    if not drill.wait_until("the drill's workload serves", lambda: tenant.serving("early") == 2, within_s=60):
        return
    drill.add_undo("the override", lambda: _delete(drill))
    spec = {
        "kind": "AvoidZone",
        "scope": {"region": drill.region, "zone": zone},
        "reason": "drill override-expires",
        "ttlSeconds": TTL_S,
    }
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Override", "metadata": {"name": NAME}, "spec": spec}
    drill.failure_starts(f"zone {zone} is avoided for {TTL_S:.0f} s")
    observer.api().request("POST", PATH, body)
    drill.wait_until(
        "the override is active", lambda: observer.get("overrides", NAME)["status"].get("phase") == "Active"
    )
    expires_at = observer.get("overrides", NAME)["status"]["expiresAt"]
    tenant.workload("during", 4)
    drill.wait_until("four replicas are placed", lambda: len(tenant.bindings("during")) == 4, within_s=TTL_S)
    zones = sorted({b["spec"]["zone"] for b in tenant.bindings("during")})
    drill.facts["zonesWhileActive"] = " ".join(zones)
    drill.expect(zone not in zones, f"replicas were placed in the avoided zone {zone}")
    tenant.workload("after", 8)
    _without_global(drill, tenant, zone, expires_at)
    drill.wait_until("phase Expired", lambda: observer.get("overrides", NAME)["status"].get("phase") == "Expired")
    drill.wait_until("condition Reverted", lambda: _reverted(drill), within_s=30)


def _without_global(drill: DrillRun, tenant: DrillTenant, zone: str, expires_at: str) -> None:
    """Kills the global cell until the TTL is over, and checks that the region uses the zone again."""
    names = ["cell-global"]
    drill.wait_until("the region has the third workload", lambda: len(tenant.replicas("after")) == 8, within_s=15)
    drill.add_undo("the global cell", lambda: _restored(drill, names))
    hold_down(drill.layout, names)
    kill_processes(drill.layout, names)
    drill.mark("the global cell is killed")
    drill.wait_until("the TTL is over", lambda: drill.wall_s() >= parse_time(expires_at), within_s=TTL_S + 5)
    # Deleted replicas are replaced by the region alone, after the expiry.
    for replica in tenant.replicas("after"):
        path = f"/apis/holdfast.dev/v1/namespaces/{TENANT}/replicas/{replica['metadata']['name']}"
        drill.observer.api(drill.region).request("DELETE", path)
    late_s = TTL_S + LATE_S
    drill.wait_until(
        f"the region places in {zone} again",
        lambda: any(
            b["spec"]["zone"] == zone and b["spec"].get("desired", "Run") == "Run" for b in tenant.bindings("after")
        ),
        within_s=late_s,
    )
    _restored(drill, names)
    drill.wait_until("the global cell is reachable again", lambda: bool(drill.observer.list("overrides")), within_s=60)


def _restored(drill: DrillRun, names: list[str]) -> None:
    allow_restart(drill.layout, names)


def _reverted(drill: DrillRun) -> bool:
    conditions = drill.observer.get("overrides", NAME)["status"].get("conditions", [])
    return any(c["type"] == "Reverted" and c["status"] == "True" for c in conditions)


def _delete(drill: DrillRun) -> None:
    drill.remove_override(NAME)
