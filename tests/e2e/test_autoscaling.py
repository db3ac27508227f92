"""Autoscaling on real processes: the load decides replicas, what waits decides nodes, and idle nodes go again."""

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
from holdfast.platform.layout import Layout
from holdfast.platform.platform_status import connect_cell

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]
REGION = "solo"


class Here:
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
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    state = tmp_path_factory.mktemp("autoscaling") / "platform"
    with running_platform(state, "--regions", REGION, "--agents", "1", "--no-samples"):
        found = Here(state)
        found.apply("global", "Tenant", "shop", {})
        found.apply("global", "PriorityClass", "standard", {"priority": 0})
        found.apply("global", "Quota", "quota", {"hard": {"cpu": "100", "memory": "100Gi"}}, namespace="shop")
        yield found


def large(replicas: int) -> dict[str, Any]:
    template = {"command": ["sleep", "1000"], "resources": {"cpu": "6", "memory": "64Mi"}}
    return {"replicas": replicas, "template": template}


def test_replicas_follow_a_pushed_load(here: Here) -> None:
    spec = {
        "template": {"command": ["sleep", "1000"], "resources": {"cpu": "100m", "memory": "32Mi"}},
        "replicas": 1, "autoscale": {"minReplicas": 1, "maxReplicas": 3, "metric": "queueLength", "target": 10.0},
    }  # fmt: skip
    here.apply("global", "Workload", "web", spec, namespace="shop")
    wait_until(lambda: len(here.bound("web")) == 1, within_s=60, what="the first replica is bound")
    wait_until(
        lambda: here.workload("web")["status"].get("summary", {}).get("ready") == 1, within_s=60, what="it is ready"
    )

    def pushed() -> bool:
        holdfast("load", "push", "shop/web", "queueLength", "30", "--state", str(here.state))
        return len(here.bound("web")) == 3

    wait_until(pushed, within_s=90, what="three replicas carry a load of thirty at ten each")
    scale = here.workload("web")["status"]["scale"]
    assert scale["replicas"] == 3
    told = json.loads(
        holdfast("load", "measure", "shop/web", "--state", str(here.state), "-o", "json", check=False).stdout or "{}"
    )
    assert told.get("metric", "cpuPercent") == "cpuPercent"


BUSY = """
import time
while True:
    end = time.monotonic() + 0.006
    while time.monotonic() < end:
        pass
    time.sleep(0.05)
"""


def test_replicas_follow_the_cpu_that_the_platform_measures_by_itself(here: Here) -> None:
    """Each uses about a tenth of a processor and asked for a fiftieth: far above its target of a half of that."""
    spec = {
        "template": {"command": [sys.executable, "-c", BUSY], "resources": {"cpu": "20m", "memory": "64Mi"}},
        "replicas": 1, "autoscale": {"minReplicas": 1, "maxReplicas": 2, "metric": "cpuPercent", "target": 50.0},
    }  # fmt: skip
    here.apply("global", "Workload", "busy", spec, namespace="shop")
    wait_until(
        lambda: len(here.bound("busy")) == 2, within_s=90, what="nobody pushed a load, and a second replica is bound"
    )
    (row,) = here.workload("busy")["status"]["load"]["metrics"]
    assert row["name"] == "cpuPercent" and row["value"] > 50
    here.replicas("busy", 0)


def test_one_process_provides_nodes(here: Here) -> None:
    second = holdfast("pool", "provide", "--once", "--state", str(here.state), check=False)
    assert second.returncode != 0 and "already" in second.stderr and "--no-provider" in second.stderr


def test_what_waits_for_room_brings_a_node_and_an_idle_node_goes(here: Here) -> None:
    here.apply("global", "Workload", "large", large(2), namespace="shop")
    wait_until(lambda: len(here.bound("large")) == 1, within_s=60, what="one replica fits")
    pool = {"zones": [f"{REGION}-a"], "capacity": {"cpu": "8", "memory": "8Gi"}, "maxNodes": 2, "idleSeconds": 5}
    here.apply(REGION, "NodePool", "burst", pool)
    wait_until(lambda: "burst-1" in here.bound("large"), within_s=90, what="the second replica is bound on a new node")
    nodes = {n["metadata"]["name"] for n in here.api(REGION).list("nodes")}
    assert nodes == {f"{REGION}-1", "burst-1"}
    here.replicas("large", 0)
    wait_until(
        lambda: {n["metadata"]["name"] for n in here.api(REGION).list("nodes")} == {f"{REGION}-1"},
        within_s=90, what="the idle node is gone",
    )  # fmt: skip
    assert "burst-1: stopped and removed" in here.layout.log("provider").read_text()
