"""Work of the drill's own: a tenant with a quota and plain workloads, which goes away with the drill.

Samples and users' work are never scaled or changed: a drill adds to a platform and takes that away again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from holdfast.cli.drills.incident import Incident
from holdfast.cli.drills.world import Item, serves
from holdfast.cli.exits import Stop
from holdfast.cli.http import Refusal
from holdfast.model.kinds import BY_NAME

TENANT = "drill"
MANAGER = "holdfast-drill"
MERGE = "application/merge-patch+json"
GONE_WITHIN_S = 90.0
QUOTA = {"cpu": "48", "memory": "96Gi"}
NOT_FOUND = 404


class Load:
    """The drill's tenant. Making it promises to remove it."""

    def __init__(self, incident: Incident) -> None:
        self._incident = incident
        self._api = incident.watcher.api()
        incident.undo_with(f"tenant {TENANT}", self.remove)
        self._apply({"kind": "Tenant", "metadata": {"name": TENANT}, "spec": {"description": "A drill's own work."}})
        meta = {"name": "quota", "namespace": TENANT}
        self._apply({"kind": "Quota", "metadata": meta, "spec": {"hard": QUOTA, "pendingReplicas": 1000}})

    def _apply(self, manifest: Item) -> None:
        manifest = {"apiVersion": "holdfast.dev/v1", **manifest}
        self._api.apply(manifest, BY_NAME[manifest["kind"]].plural, manager=MANAGER)

    def workload(
        self, name: str, replicas: int, *, starts_s: float = 0.0, ready_when: Sequence[str] = ("true",), **spec: Any
    ) -> None:
        """A service of sleeping processes in the drill's region. `starts_s` is how long each takes to become ready,
        `ready_when` a command that says whether it is."""
        probe = {"exec": {"command": list(ready_when)}, "periodSeconds": 1, "initialDelaySeconds": starts_s}
        template = {
            "command": ["sleep", "100000"],
            "resources": spec.pop("resources", {"cpu": "100m", "memory": "32Mi"}),
            "probes": {"readiness": probe},
            "terminationGraceSeconds": 1,
            "drainDelaySeconds": 0,
        }
        placement = {"regions": [self._incident.region], **spec.pop("placement", {})}
        meta = {"name": name, "namespace": TENANT}
        whole = {"replicas": replicas, "template": template, "placement": placement, **spec}
        self._apply({"kind": "Workload", "metadata": meta, "spec": whole})

    def scale(self, name: str, replicas: int) -> None:
        path = f"/apis/holdfast.dev/v1/namespaces/{TENANT}/workloads/{name}"
        self._api.request("PATCH", path, {"spec": {"replicas": replicas}}, content_type=MERGE)

    def replicas(self, name: str) -> list[Item]:
        """The workload's replicas in the drill's region."""
        found = self._incident.watcher.list("replicas", self._incident.region)
        return [r for r in found if r["metadata"]["namespace"] == TENANT and r["spec"]["workload"] == name]

    def bindings(self, name: str) -> list[Item]:
        found = self._incident.watcher.list("bindings", self._incident.region)
        return [b for b in found if b["metadata"]["namespace"] == TENANT and b["spec"].get("workload") == name]

    def serving(self, name: str) -> int:
        return sum(serves(r) for r in self.replicas(name))

    def remove(self) -> None:
        """Deletes the tenant with all it has, and waits until it is gone."""
        path = f"/apis/holdfast.dev/v1/tenants/{TENANT}"
        deadline = time.monotonic() + GONE_WITHIN_S
        asked = False
        while time.monotonic() < deadline:
            try:
                self._api.request("GET" if asked else "DELETE", path)
                asked = True
            except Refusal as refusal:
                if refusal.status == NOT_FOUND:
                    return
                if refusal.status < 500:
                    raise
            except Stop:
                pass
            time.sleep(0.3)
        raise Stop(f"tenant {TENANT} is still there", why=f"{GONE_WITHIN_S:.0f} s after it was deleted",
                   next_step=f"kubectl describe tenant {TENANT} shows what holds it")  # fmt: skip


def patch_node(incident: Incident, node: str, spec: Item) -> None:
    """An operator's word on a node: cordon, drain."""
    path = f"/apis/holdfast.dev/v1/nodes/{node}"
    incident.watcher.api(incident.region).request("PATCH", path, {"spec": spec}, content_type=MERGE)
