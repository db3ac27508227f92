"""Autoscaling on real processes: load scales replicas, pending replicas add nodes, idle nodes are removed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import V1, holdfast, running_platform, wait_until

from holdfast.client.sync_api import CellApi
from holdfast.model import kinds
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]
REGION = "solo"


class Shop:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.layout = Layout(str(state))
        self.platform = self.layout.load()

    def api(self, cell: str) -> CellApi:
        return connect_cell(self.layout, self.platform, cell)

    def apply(self, cell: str, kind: str, name: str, spec: Any, *, namespace: str = "") -> None:
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": V1, "kind": kind, "metadata": meta, "spec": spec}
        self.api(cell).apply(body, next(k.plural for k in kinds.ALL if k.name == kind), manager="test")

    def bound(self, workload: str) -> list[str]:
        items = self.api(REGION).list("bindings", "shop")
        return [b["spec"]["node"] for b in items if b["spec"].get("workload") == workload]

    def workload(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api("global").get(f"/apis/{V1}/namespaces/shop/workloads/{name}")
        return found

    def replicas(self, name: str, count: int) -> None:
        body = {"spec": {"replicas": count}}
        path = f"/apis/{V1}/namespaces/shop/workloads/{name}"
        self.api("global").request("PATCH", path, body, content_type="application/merge-patch+json")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    state = tmp_path_factory.mktemp("autoscaling") / "platform"
    with running_platform(state, "--regions", REGION, "--agents", "1", "--no-samples"):
        found = Shop(state)
        found.apply("global", "Tenant", "shop", {})
        found.apply("global", "PriorityClass", "standard", {"priority": 0})
        found.apply("global", "Quota", "quota", {"hard": {"cpu": "100", "memory": "100Gi"}}, namespace="shop")
        yield found


def large(replicas: int) -> dict[str, Any]:
    template = {"command": ["sleep", "1000"], "resources": {"cpu": "6", "memory": "64Mi"}}
    return {"replicas": replicas, "template": template}


def test_replicas_follow_a_pushed_metric(shop: Shop) -> None:
    spec = {
        "template": {"command": ["sleep", "1000"], "resources": {"cpu": "100m", "memory": "32Mi"}},
        "replicas": 1,
        "autoscale": {"minReplicas": 1, "maxReplicas": 3, "metric": "queueLength", "target": 10.0},
    }
    shop.apply("global", "Workload", "web", spec, namespace="shop")
    wait_until(lambda: len(shop.bound("web")) == 1, within_s=60, what="the first replica is bound")
    wait_until(
        lambda: shop.workload("web")["status"].get("summary", {}).get("ready") == 1, within_s=60, what="it is ready"
    )

    def push_and_check() -> bool:
        holdfast("metrics", "push", "shop/web", "queueLength", "30", "--state", str(shop.state))
        return len(shop.bound("web")) == 3

    wait_until(push_and_check, within_s=90, what="three replicas carry a load of thirty at ten each")
    scale = shop.workload("web")["status"]["scale"]
    assert scale["replicas"] == 3
    measured = json.loads(
        holdfast("metrics", "measure", "shop/web", "--state", str(shop.state), "-o", "json", check=False).stdout or "{}"
    )
    assert measured.get("metric", "cpuPercent") == "cpuPercent"


BUSY = """
import time
while True:
    end = time.monotonic() + 0.006
    while time.monotonic() < end:
        pass
    time.sleep(0.05)
"""


def test_replicas_follow_measured_cpu(shop: Shop) -> None:
    """Each replica uses about 100m CPU and requests 20m, far above its target of 50 percent."""
    spec = {
        "template": {"command": [sys.executable, "-c", BUSY], "resources": {"cpu": "20m", "memory": "64Mi"}},
        "replicas": 1,
        "autoscale": {"minReplicas": 1, "maxReplicas": 2, "metric": "cpuPercent", "target": 50.0},
    }
    shop.apply("global", "Workload", "busy", spec, namespace="shop")
    wait_until(
        lambda: len(shop.bound("busy")) == 2, within_s=90, what="a second replica is bound without a pushed metric"
    )
    (row,) = shop.workload("busy")["status"]["load"]["metrics"]
    assert row["name"] == "cpuPercent" and row["value"] > 50
    shop.replicas("busy", 0)


def test_node_provider_is_one_process(shop: Shop) -> None:
    second = holdfast("pool", "provide", "--once", "--state", str(shop.state), check=False)
    assert second.returncode != 0 and "already" in second.stderr and "--no-provider" in second.stderr


def test_pending_replica_adds_a_node_and_idle_node_is_removed(shop: Shop) -> None:
    shop.apply("global", "Workload", "large", large(2), namespace="shop")
    wait_until(lambda: len(shop.bound("large")) == 1, within_s=60, what="one replica fits")
    pool = {"zones": [f"{REGION}-a"], "capacity": {"cpu": "8", "memory": "8Gi"}, "maxNodes": 2, "idleSeconds": 5}
    shop.apply(REGION, "NodePool", "burst", pool)
    wait_until(lambda: "burst-1" in shop.bound("large"), within_s=90, what="the second replica is bound on a new node")
    nodes = {n["metadata"]["name"] for n in shop.api(REGION).list("nodes")}
    assert nodes == {f"{REGION}-1", "burst-1"}
    shop.replicas("large", 0)
    wait_until(
        lambda: {n["metadata"]["name"] for n in shop.api(REGION).list("nodes")} == {f"{REGION}-1"},
        within_s=90,
        what="the idle node is gone",
    )
    assert "burst-1: stopped and deleted" in shop.layout.log("provider").read_text()
