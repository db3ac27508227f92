"""An inert agent: it registers a node and renews its lease, but never starts or stops a task.

Heartbeats cannot detect this failure. It uses the API for agents with a node certificate.
"""

from __future__ import annotations

import threading
from typing import Any

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.drills.drill_run import DrillRun
from holdfast.foundation.exit_codes import CommandError
from holdfast.model import limits
from holdfast.model.labels import LABEL_DRILL
from holdfast.model.template import DriverName
from holdfast.platform.credentials import Credentials

NODE = "drill-mute"
MANAGER = "holdfast-drill"
TAINT = {"key": LABEL_DRILL, "value": "mute", "effect": "NoSchedule"}
"""Keeps other workloads off the inert node."""
MERGE_PATCH = "application/merge-patch+json"
NODES = "/apis/holdfast.dev/v1/nodes"
NOT_FOUND = 404


class InertAgent:
    """Renews its lease until it is silenced or removed. Its node is deleted at the end of the drill."""

    def __init__(self, drill: DrillRun, labels: dict[str, str]) -> None:
        self._drill = drill
        self._epoch = 0
        self._silent = threading.Event()
        self._credentials = Credentials(drill.layout)
        self._files = files = self._credentials.issue_drill_node(drill.region, NODE)
        drill.add_undo("the inert node", self.remove)
        self._api = CellApi(drill.plan.url, name=drill.region, ca=files.ca, cert=files.cert, key=files.key)
        spec = {
            "zone": drill.plan.zones[0],
            "capacity": {"cpu": "4", "memory": "8Gi"},
            "drivers": [DriverName.PROCESS.value],
            "taints": [TAINT],
        }
        meta = {"name": NODE, "labels": labels}
        node = {"apiVersion": "holdfast.dev/v1", "kind": "Node", "metadata": meta, "spec": spec}
        self._api.apply(node, "nodes", manager=MANAGER)
        self._renew()
        self._report()
        threading.Thread(target=self._renew_loop, name="inert agent", daemon=True).start()

    def _renew(self) -> None:
        body = {"items": [{"node": NODE, "epoch": self._epoch}]}
        answer: Any = self._api.request("POST", "/placement/v1/renew", body)
        self._epoch = answer["results"][0].get("epoch") or self._epoch

    def _report(self) -> None:
        block = {"epoch": self._epoch, "reconciled": True, "running": 0, "agentVersion": "drill"}
        body = {"status": {"execution": block}}
        self._api.request("PATCH", f"{NODES}/{NODE}/status", body, content_type=MERGE_PATCH)

    def _renew_loop(self) -> None:
        while not self._silent.wait(limits.NODE_RENEW_EVERY_S):
            try:
                self._renew()
            except CommandError:
                continue

    def stop_renewing(self) -> None:
        """Stops renewing the lease, as if the machine had lost power."""
        self._silent.set()

    def remove(self) -> None:
        """Deletes the node and its certificate."""
        self.stop_renewing()
        api = self._drill.observer.api(self._drill.region)
        try:
            api.request("DELETE", f"{NODES}/{NODE}")
        except ApiRefusal as refusal:
            if refusal.status != NOT_FOUND:
                raise
        self._credentials.remove(self._files)
