"""Drill global-hang: the global cell hangs (SIGSTOP). Connections stay open, and nothing is answered.

Regions must notice the silence as soon as that of a dead cell, replace a lost replica alone, and accept a break-glass
override. The global cell must record the override afterwards and open no Recovery because of its own silence.
"""

from __future__ import annotations

from holdfast.client.sync_api import ApiRefusal
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import MERGE_PATCH, TENANT, DrillTenant
from holdfast.drills.outage import pause_processes, resume_processes
from holdfast.model import connectivity

NAME = "served"
REPLICAS = 2
NOTICED_WITHIN_S = 12.0
"""Ten seconds of silence, and the polling of the drill."""
CELLS = ["cell-global"]
OVERRIDES = "/apis/holdfast.dev/v1/overrides"
CONTACT = f"/apis/coordination.k8s.io/v1/namespaces/{connectivity.NAMESPACE}/leases/{connectivity.NAME}"
NOT_FOUND = 404


def run(drill: DrillRun) -> None:
    observer = drill.observer
    tenant = DrillTenant(drill)
    tenant.workload(NAME, REPLICAS)
    if not drill.wait_until("the drill's workload serves", lambda: tenant.serving(NAME) == REPLICAS, within_s=60):
        return
    if not drill.wait_until("every region has contact", lambda: not _silent(drill), within_s=30):
        return
    known = {r["metadata"]["name"] for r in observer.list("recoveries")}
    # A break-glass override stays on record, so every run uses another name.
    override = f"break-glass-{drill.region}-drill-{drill.wall_s():.0f}"
    drill.add_undo("the break-glass override", lambda: _revoke(drill, override))
    drill.add_undo("the global cell", lambda: _resume(drill))
    drill.failure_starts("the global cell is paused")
    drill.global_cell_down = True
    drill.facts["processesPaused"] = pause_processes(drill.layout, CELLS)
    noticed = "every region notices the silence"
    drill.wait_until(noticed, lambda: len(_silent(drill)) == len(observer.regions), within_s=3 * NOTICED_WITHIN_S)
    took_s = drill.clock.get(noticed, 3 * NOTICED_WITHIN_S)
    drill.facts["secondsUntilNoticed"] = took_s
    drill.expect(took_s <= NOTICED_WITHIN_S, f"noticed after {took_s:.1f} s (expected {NOTICED_WITHIN_S:.0f} s)")
    spec = {
        "kind": "PauseRepair",
        "scope": {"region": drill.region},
        "reason": "drill global-hang",
        "ttlSeconds": 300.0,
    }
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Override", "metadata": {"name": override}, "spec": spec}
    observer.api(drill.region).request("POST", OVERRIDES, body)
    drill.mark("the region accepts a break-glass override")
    lost = tenant.replicas(NAME)[0]["metadata"]
    path = f"/apis/holdfast.dev/v1/namespaces/{TENANT}/replicas/{lost['name']}"
    observer.api(drill.region).request("DELETE", path)
    drill.wait_until(
        "a deleted replica is replaced by the region alone",
        lambda: (
            tenant.serving(NAME) == REPLICAS
            and lost["uid"] not in {r["metadata"]["uid"] for r in tenant.replicas(NAME)}
        ),
        within_s=60,
    )
    _resume(drill)
    drill.mark("the global cell continues")
    drill.wait_until("every region has contact again", lambda: not _silent(drill), within_s=60)
    drill.wait_until(
        "the override is recorded in the global cell",
        lambda: any(o["metadata"]["name"] == override for o in observer.list("overrides")),
        within_s=60,
    )
    drill.wait_until("all regions are healthy", lambda: _all_healthy(drill))
    opened = [r["metadata"]["name"] for r in observer.list("recoveries") if r["metadata"]["name"] not in known]
    drill.expect(not opened, f"the global cell opened a Recovery because of its own silence: {', '.join(opened)}")
    drill.invariants_held.append(f"no Recovery because of the global cell's silence: {len(opened)} opened")


def _silent(drill: DrillRun) -> list[str]:
    """Regions that consider the global cell unreachable."""
    found = []
    for region in drill.observer.regions:
        lease = drill.observer.api(region).get(CONTACT)
        if not lease["spec"].get("holderIdentity"):
            found.append(region)
    return found


def _resume(drill: DrillRun) -> None:
    resume_processes(drill.layout, CELLS)
    drill.global_cell_down = False


def _revoke(drill: DrillRun, name: str) -> None:
    body = {"spec": {"revoked": True}}
    try:
        drill.observer.api(drill.region).request("PATCH", f"{OVERRIDES}/{name}", body, content_type=MERGE_PATCH)
    except ApiRefusal as refusal:
        if refusal.status != NOT_FOUND:
            raise


def _all_healthy(drill: DrillRun) -> bool:
    regions = drill.observer.list("regions")
    return all(r["status"].get("health", {}).get("state") == "Healthy" for r in regions)
