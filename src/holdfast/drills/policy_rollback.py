"""Drill policy-rollback: a policy is rolled back while replicas start. Bound replicas keep their decision (S10)."""

from __future__ import annotations

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import MERGE_PATCH, DrillTenant
from holdfast.drills.platform_observer import Item

POLICY = "default"
PATH = f"/apis/holdfast.dev/v1/schedulerpolicies/{POLICY}"
STARTS_S = 6.0
REPLICAS = 6


def run(drill: DrillRun) -> None:
    observer = drill.observer
    before = observer.get("schedulerpolicies", POLICY)
    old_revision = before["status"]["revision"]
    tenant = DrillTenant(drill)
    tenant.workload("first", 1)
    if not drill.wait_until("the drill's workload serves", lambda: tenant.serving("first") == 1, within_s=60):
        return
    drill.add_undo("the policy", lambda: _set(drill, before["spec"]))
    packing = {**before["spec"]["rules"], "scores": [{"name": "Packing", "weight": 5}]}
    drill.failure_starts(f"policy {POLICY}: revision {old_revision} is replaced by rules with a Packing score")
    _set(drill, {"stage": "Active", "canaryRegions": [], "rules": packing})
    drill.wait_until("the region uses the new revision", lambda: _policy_in_use(drill) != old_revision, within_s=30)
    new_revision = _policy_in_use(drill)
    tenant.workload("starting", REPLICAS, starts_s=STARTS_S)
    drill.wait_until("its replicas are bound", lambda: len(tenant.bindings("starting")) == REPLICAS, within_s=30)
    bound = _places(tenant.bindings("starting"))
    drill.facts["boundBy"] = " ".join(sorted({p["policyRevision"] for p in bound.values()}))
    drill.expect(tenant.serving("starting") < REPLICAS, "all replicas served before the policy was rolled back")
    _set(drill, before["spec"])
    drill.mark("the policy is rolled back")
    drill.wait_until("the region uses the old revision", lambda: _policy_in_use(drill) == old_revision, within_s=30)
    tenant.workload("later", 2)
    drill.wait_until("later replicas are bound", lambda: len(tenant.bindings("later")) == 2, within_s=30)
    drill.wait_until("the starting replicas serve", lambda: tenant.serving("starting") == REPLICAS, within_s=60)
    current_places = _places(tenant.bindings("starting"))
    drill.record_invariant(
        "S10, bound replicas keep node, intent and policy revision",
        [
            f"S10: {name} had {old_place}, has {current_places.get(name)}"
            for name, old_place in bound.items()
            if current_places.get(name) != old_place
        ],
        len(bound),
    )
    after = observer.get("schedulerpolicies", POLICY)["status"]
    drill.facts |= {
        "oldRevision": old_revision,
        "newRevision": new_revision,
        "laterBoundBy": " ".join(sorted({p["policyRevision"] for p in _places(tenant.bindings("later")).values()})),
        "sequence": f"{before['status']['sequence']} → {after['sequence']}",
    }
    drill.expect(drill.facts["boundBy"] == new_revision, "the starting replicas do not name the new revision")
    drill.expect(drill.facts["laterBoundBy"] == old_revision, "later replicas do not name the old revision")
    drill.expect(after["sequence"] > before["status"]["sequence"], "the rollback did not increase the sequence")


def _places(bindings: list[Item]) -> dict[str, Item]:
    fields = ("node", "intent", "policyRevision", "decision", "devices")
    return {b["metadata"]["name"]: {f: b["spec"].get(f) for f in fields} for b in bindings}


def _policy_in_use(drill: DrillRun) -> str:
    """The policy revision that the region reports."""
    report = drill.observer.get("regions", drill.region).get("status", {}).get("report", {})
    return str(report.get("policy", ""))


def _set(drill: DrillRun, spec: Item) -> None:
    restored = {
        "stage": spec.get("stage", "Active"),
        "canaryRegions": spec.get("canaryRegions", []),
        "rules": spec["rules"],
    }
    drill.observer.api().request("PATCH", PATH, {"spec": restored}, content_type=MERGE_PATCH)
