"""The tenant `drill` with a quota and simple workloads. It is deleted at the end of the drill.

A drill never changes samples or users' workloads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from holdfast.client.sync_api import ApiRefusal
from holdfast.drills.drill_run import DrillRun
from holdfast.drills.platform_observer import Item, serves
from holdfast.drills.shortfalls import DRILL_TENANT
from holdfast.foundation.exit_codes import CommandError
from holdfast.model.kinds import BY_NAME

TENANT = DRILL_TENANT
MANAGER = "holdfast-drill"
MERGE_PATCH = "application/merge-patch+json"
DELETION_TIMEOUT_S = 90.0
QUOTA = {"cpu": "48", "memory": "96Gi"}
RECOVERY_ALLOWANCE = {"cpu": "4", "memory": "8Gi"}
PRIORITY = "drill"
NOT_FOUND = 404


class DrillTenant:
    """The drill's tenant and priority class. Their deletion is registered as an undo before they are created."""

    def __init__(self, drill: DrillRun, *, quota: dict[str, str] = QUOTA, reclaimable: bool = False) -> None:
        self._drill = drill
        self._api = drill.observer.api()
        drill.add_undo(f"priority class {PRIORITY}", self._remove_priority)
        drill.add_undo(f"tenant {TENANT}", self.remove)
        priority = {"priority": 0, "reclaimable": reclaimable, "tenants": [TENANT], "description": "Work of a drill."}
        self._apply({"kind": "PriorityClass", "metadata": {"name": PRIORITY}, "spec": priority})
        self._apply({"kind": "Tenant", "metadata": {"name": TENANT}, "spec": {"description": "Workloads of a drill."}})
        meta = {"name": "quota", "namespace": TENANT}
        limits = {"hard": quota, "recoveryAllowance": RECOVERY_ALLOWANCE}
        self._apply({"kind": "Quota", "metadata": meta, "spec": {**limits, "pendingCap": 1000}})

    def _apply(self, manifest: Item) -> None:
        manifest = {"apiVersion": "holdfast.dev/v1", **manifest}
        self._api.apply(manifest, BY_NAME[manifest["kind"]].plural, manager=MANAGER)

    def workload(
        self, name: str, replicas: int, *, starts_s: float = 0.0, ready_when: Sequence[str] = ("true",), **spec: Any
    ) -> None:
        """Creates a service of sleeping processes in the drill's region. `starts_s` is the delay until they are ready,
        `ready_when` the command of the readiness probe."""
        probe = {"exec": {"command": list(ready_when)}, "periodSeconds": 1, "initialDelaySeconds": starts_s}
        template = {
            "command": ["sleep", "100000"],
            "resources": spec.pop("resources", {"cpu": "100m", "memory": "32Mi"}),
            "probes": {"readiness": probe},
            "terminationGraceSeconds": 1,
            "drainDelaySeconds": 0,
        }
        placement = {"regions": [self._drill.region], **spec.pop("placement", {})}
        meta = {"name": name, "namespace": TENANT}
        whole = {
            "replicas": replicas,
            "template": template,
            "placement": placement,
            "priorityClassName": PRIORITY,
            **spec,
        }
        self._apply({"kind": "Workload", "metadata": meta, "spec": whole})

    def scale(self, name: str, replicas: int) -> None:
        path = f"/apis/holdfast.dev/v1/namespaces/{TENANT}/workloads/{name}"
        self._api.request("PATCH", path, {"spec": {"replicas": replicas}}, content_type=MERGE_PATCH)

    def replicas(self, name: str) -> list[Item]:
        """The workload's replicas in the drill's region."""
        found = self._drill.observer.list("replicas", self._drill.region)
        return [r for r in found if r["metadata"]["namespace"] == TENANT and r["spec"]["workload"] == name]

    def bindings(self, name: str) -> list[Item]:
        found = self._drill.observer.list("bindings", self._drill.region)
        return [b for b in found if b["metadata"]["namespace"] == TENANT and b["spec"].get("workload") == name]

    def serving(self, name: str) -> int:
        return sum(serves(r) for r in self.replicas(name))

    def remove(self) -> None:
        """Deletes the tenant and waits until it is gone."""
        path = f"/apis/holdfast.dev/v1/tenants/{TENANT}"
        deadline = time.monotonic() + DELETION_TIMEOUT_S
        requested = False
        while time.monotonic() < deadline:
            try:
                self._api.request("GET" if requested else "DELETE", path)
                requested = True
            except ApiRefusal as refusal:
                if refusal.status == NOT_FOUND:
                    return
                if refusal.status < 500:
                    raise
            except CommandError:
                pass
            time.sleep(0.3)
        raise CommandError(
            f"tenant {TENANT}: not gone {DELETION_TIMEOUT_S:.0f} s after its deletion",
            next_step=f"kubectl describe tenant {TENANT}",
        )

    def _remove_priority(self) -> None:
        try:
            self._api.request("DELETE", f"/apis/holdfast.dev/v1/priorityclasses/{PRIORITY}")
        except ApiRefusal as refusal:
            if refusal.status != NOT_FOUND:
                raise


def patch_node(drill: DrillRun, node: str, spec: Item) -> None:
    """Patches the spec of a node, to cordon or drain it."""
    _patch_node(drill, node, {"spec": spec})


def label_node(drill: DrillRun, node: str, labels: dict[str, str | None]) -> None:
    """Sets labels of a node; None removes one."""
    _patch_node(drill, node, {"metadata": {"labels": labels}})


def _patch_node(drill: DrillRun, node: str, change: Item) -> None:
    path = f"/apis/holdfast.dev/v1/nodes/{node}"
    drill.observer.api(drill.region).request("PATCH", path, change, content_type=MERGE_PATCH)
