"""Drill emergency-quota: emergency quota expires, and everything that it allowed must end.

A workload needs twice its tenant's quota. An approved EmergencyQuota override lets all its replicas run. After the
expiry the usage must fall back to the quota, the emergency grants to nothing, and the override must become Reverted.
"""

from __future__ import annotations

from holdfast.client.sync_api import CellApi
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import MERGE_PATCH, TENANT, DrillTenant
from holdfast.model.quantity import amounts
from holdfast.model.times import parse_time
from holdfast.platform.credentials import Credentials

NAME = "urgent"
OVERRIDE = "drill-emergency-quota"
PATH = "/apis/holdfast.dev/v1/overrides"
REPLICAS = 6
ALLOWED = 3
EACH = {"cpu": "100m", "memory": "32Mi"}
QUOTA = {"cpu": "300m", "memory": "96Mi"}
TTL_S = 30.0
LATE_S = 15.0
"""The expiry may be acted on this much late, as for other overrides."""
DRAINED_WITHIN_S = 120.0


def run(drill: DrillRun) -> None:
    tenant = DrillTenant(drill, quota=QUOTA)
    tenant.workload(NAME, REPLICAS, resources=EACH, disruption={"maxUnavailable": 1})
    if not drill.wait_until("the quota is used up", lambda: tenant.serving(NAME) == ALLOWED, within_s=60):
        return
    drill.failure_starts(
        f"{REPLICAS} replicas are needed and the quota allows {ALLOWED}: emergency quota for {TTL_S:.0f} s"
    )
    _create(drill)
    drill.wait_until("the override is active", lambda: _status(drill).get("phase") == "Active", within_s=30)
    expires_at = parse_time(_status(drill)["expiresAt"])
    drill.wait_until("all replicas serve on emergency quota", lambda: tenant.serving(NAME) == REPLICAS, within_s=TTL_S)
    drill.expect(drill.wall_s() < expires_at, "the emergency quota expired before all replicas served")
    drill.wait_until("the TTL is over", lambda: drill.wall_s() >= expires_at, within_s=TTL_S + 5)
    drill.wait_until("phase Expired", lambda: _status(drill).get("phase") == "Expired", within_s=LATE_S)
    drill.wait_until(
        "the usage is within the quota", lambda: len(_charged(tenant)) <= ALLOWED, within_s=DRAINED_WITHIN_S
    )
    drill.wait_until("the emergency grants are empty", lambda: not _emergency_limits(drill), within_s=60)
    drill.wait_until("condition Reverted", lambda: _reverted(drill), within_s=60)
    drill.expect(tenant.serving(NAME) >= ALLOWED - 1, f"only {tenant.serving(NAME)} replicas serve within the quota")
    drill.facts |= {
        "servingWithEmergencyQuota": REPLICAS,
        "servingAfterwards": tenant.serving(NAME),
        "secondsUntilReverted": round(drill.wall_s() - expires_at, 1),
    }
    drill.invariants_held.append(
        f"S8, the effect of the override ended: {len(_charged(tenant))} replicas charged, {ALLOWED} allowed"
    )
    tenant.scale(NAME, ALLOWED)


def _create(drill: DrillRun) -> None:
    credentials = Credentials(drill.layout)
    files = credentials.issue_drill_operator()
    drill.add_undo("the approver's certificate", lambda: credentials.remove(files))
    drill.add_undo("the override", lambda: drill.remove_override(OVERRIDE))
    spec = {
        "kind": "EmergencyQuota",
        "scope": {"tenant": TENANT},
        "quota": QUOTA,
        "reason": "drill emergency-quota",
        "ttlSeconds": TTL_S,
    }
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Override", "metadata": {"name": OVERRIDE}, "spec": spec}
    drill.observer.api().request("POST", PATH, body)
    approver = CellApi(drill.platform.global_url, name="global", ca=files.ca, cert=files.cert, key=files.key)
    try:
        approver.request("PATCH", f"{PATH}/{OVERRIDE}", {"spec": {"approver": "me"}}, content_type=MERGE_PATCH)
    finally:
        approver.close()


def _status(drill: DrillRun) -> dict[str, str]:
    found: dict[str, str] = drill.observer.get("overrides", OVERRIDE).get("status", {})
    return found


def _charged(tenant: DrillTenant) -> list[str]:
    """Bindings that are charged to the tenant's quota."""
    return [b["metadata"]["name"] for b in tenant.bindings(NAME) if not b["spec"].get("quotaReleased")]


def _emergency_limits(drill: DrillRun) -> list[str]:
    """Emergency grants and copies of the tenant that still have a limit."""
    found = [g for g in drill.observer.list("grants") if g["metadata"]["namespace"] == TENANT]
    found += [c for c in drill.observer.list("grantcopies", drill.region) if c["metadata"]["namespace"] == TENANT]
    return [
        g["metadata"]["name"]
        for g in found
        if g["spec"]["grantClass"] == "Emergency" and amounts(g["spec"].get("limit", {}))
    ]


def _reverted(drill: DrillRun) -> bool:
    conditions = drill.observer.get("overrides", OVERRIDE)["status"].get("conditions", [])
    return any(c["type"] == "Reverted" and c["status"] == "True" for c in conditions)
