"""The drill's own critical workload: four replicas, all in the drill's region, with a recovery objective.

Nothing of it serves elsewhere, so a recovery must start all four replicas in another region. The drill adds recovery
slots for it to the other regions and removes them afterwards.
"""

from __future__ import annotations

from holdfast.client.sync_api import ApiRefusal
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import MERGE_PATCH, TENANT, DrillTenant
from holdfast.drills.platform_observer import Item, serves

NAME = "critical"
REPLICAS = 4
SLOT = {"cpu": "100m", "memory": "32Mi"}
BUDGETS = "/apis/holdfast.dev/v1/recoverybudgets"
NOT_FOUND = 404


class DrillCriticalWorkload:
    def __init__(self, drill: DrillRun) -> None:
        self._drill = drill
        self._others = [region for region in drill.observer.regions if region != drill.region]
        for region in self._others:
            name = f"drill-{region}"
            drill.add_undo(f"recovery budget {name}", lambda name=name: self._delete_budget(name))  # type: ignore[misc]
        self.tenant = DrillTenant(drill)

    def start(self) -> bool:
        """Creates budgets and workload. Returns whether the objective is backed and all replicas serve."""
        drill = self._drill
        api = drill.observer.api()
        for region in self._others:
            shape = {"resources": SLOT, "count": REPLICAS, "minZones": 1}
            spec = {"region": region, "slotShapes": [shape], "tenants": [TENANT], "startsPerSecond": 5}
            meta = {"name": f"drill-{region}"}
            body = {"apiVersion": "holdfast.dev/v1", "kind": "RecoveryBudget", "metadata": meta, "spec": spec}
            api.request("POST", BUDGETS, body)
        objective = {"minServing": REPLICAS, "deadlineSeconds": 300}
        self.tenant.workload(NAME, REPLICAS, resources=SLOT, placement={"spreadRegions": 1}, recovery=objective)
        if not drill.wait_until(
            "the critical workload serves", lambda: self.serving_at_home() == REPLICAS, within_s=60
        ):
            return False
        # It was started in the drill's region. From now on it may run in every region.
        path = f"/apis/holdfast.dev/v1/namespaces/{TENANT}/workloads/{NAME}"
        body = {"spec": {"placement": {"regions": [drill.region, *self._others]}}}
        api.request("PATCH", path, body, content_type=MERGE_PATCH)
        return drill.wait_until("its recovery objective is backed", self._backed, within_s=60)

    def _backed(self) -> bool:
        workload = self._drill.observer.get("workloads", NAME, TENANT)
        backing = workload.get("status", {}).get("backing") or {}
        current = workload["status"].get("observedGeneration") == workload["metadata"]["generation"]
        return bool(current and backing.get("backed") and self.serving_at_home() == REPLICAS)

    def _replicas(self, region: str) -> list[Item]:
        found = self._drill.observer.try_list("replicas", region) or []
        return [r for r in found if r["metadata"]["namespace"] == TENANT and r["spec"]["workload"] == NAME]

    def serving_at_home(self) -> int:
        return sum(map(serves, self._replicas(self._drill.region)))

    def serving_elsewhere(self) -> int:
        """The most serving replicas in one other region."""
        return max((sum(map(serves, self._replicas(region))) for region in self._others), default=0)

    def expect_all_started_elsewhere(self) -> None:
        """Records that the recovery started all replicas: none of them ran there before."""
        started = [
            step.name
            for step in self._drill.changes()
            if step.kind == "Replica"
            and step.op == "created"
            and step.cell != self._drill.region
            and step.namespace == TENANT
            and (step.after or {})["spec"]["workload"] == NAME
        ]
        self._drill.facts["replicasStartedElsewhere"] = len(started)
        self._drill.expect(
            len(started) >= REPLICAS, f"the recovery started {len(started)} replicas (expected at least {REPLICAS})"
        )

    def _delete_budget(self, name: str) -> None:
        try:
            self._drill.observer.api().request("DELETE", f"{BUDGETS}/{name}")
        except ApiRefusal as refusal:
            if refusal.status != NOT_FOUND:
                raise
