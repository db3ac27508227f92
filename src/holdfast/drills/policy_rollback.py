"""Drill policy-rollback: a policy is rolled back while replicas start. Bound replicas keep their decision (S10)."""

from __future__ import annotations

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import MERGE_PATCH, DrillTenant
from holdfast.drills.platform_observer import Item

POLICY = "default"
PATH = f"/apis/holdfast.dev/v1/schedulerpolicies/{POLICY}"
STARTS_S = 6.0
REPLICAS = 6


def run(incident: DrillRun) -> None:
    watcher = incident.observer
    before = watcher.get("schedulerpolicies", POLICY)
    old_revision = before["status"]["revision"]
    load = DrillTenant(incident)
    load.workload("first", 1)
    if not incident.wait_until("the drill's workload serves", lambda: load.serving("first") == 1, within_s=60):
        return
    incident.add_undo("the policy", lambda: _set(incident, before["spec"]))
    packing = {**before["spec"]["rules"], "scores": [{"name": "Packing", "weight": 5}]}
    incident.failure_starts(f"policy {POLICY}: revision {old_revision} is replaced by rules with a Packing score")
    _set(incident, {"stage": "Active", "canaryRegions": [], "rules": packing})
    incident.wait_until("the region uses the new revision", lambda: _decides(incident) != old_revision, within_s=30)
    new_revision = _decides(incident)
    load.workload("starting", REPLICAS, starts_s=STARTS_S)
    incident.wait_until("its replicas are bound", lambda: len(load.bindings("starting")) == REPLICAS, within_s=30)
    bound = _places(load.bindings("starting"))
    incident.facts["boundBy"] = " ".join(sorted({p["policyRevision"] for p in bound.values()}))
    incident.expect(load.serving("starting") < REPLICAS, "all replicas served before the policy was rolled back")
    _set(incident, before["spec"])
    incident.mark("the policy is rolled back")
    incident.wait_until("the region uses the old revision", lambda: _decides(incident) == old_revision, within_s=30)
    load.workload("later", 2)
    incident.wait_until("later replicas are bound", lambda: len(load.bindings("later")) == 2, within_s=30)
    incident.wait_until("the starting replicas serve", lambda: load.serving("starting") == REPLICAS, within_s=60)
    kept = _places(load.bindings("starting"))
    incident.record_invariant(
        "S10, bound replicas keep node, intent and policy revision",
        [f"S10: {name} had {was}, has {kept.get(name)}" for name, was in bound.items() if kept.get(name) != was],
        len(bound),
    )
    after = watcher.get("schedulerpolicies", POLICY)["status"]
    incident.facts |= {
        "oldRevision": old_revision,
        "newRevision": new_revision,
        "laterBoundBy": " ".join(sorted({p["policyRevision"] for p in _places(load.bindings("later")).values()})),
        "sequence": f"{before['status']['sequence']} → {after['sequence']}",
    }
    incident.expect(incident.facts["boundBy"] == new_revision, "the starting replicas do not name the new revision")
    incident.expect(incident.facts["laterBoundBy"] == old_revision, "later replicas do not name the old revision")
    incident.expect(after["sequence"] > before["status"]["sequence"], "the rollback did not increase the sequence")


def _places(bindings: list[Item]) -> dict[str, Item]:
    fields = ("node", "intent", "policyRevision", "decision", "devices")
    return {b["metadata"]["name"]: {f: b["spec"].get(f) for f in fields} for b in bindings}


def _decides(incident: DrillRun) -> str:
    """The policy revision that the region reports."""
    report = incident.observer.get("regions", incident.region).get("status", {}).get("report", {})
    return str(report.get("policy", ""))


def _set(incident: DrillRun, spec: Item) -> None:
    wanted = {"stage": spec.get("stage", "Active"), "canaryRegions": spec.get("canaryRegions", []),
              "rules": spec["rules"]}  # fmt: skip
    incident.observer.api().request("PATCH", PATH, {"spec": wanted}, content_type=MERGE_PATCH)
