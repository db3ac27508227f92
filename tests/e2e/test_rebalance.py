"""On real processes: a service returns to an even spread after its node is back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.drills.platform_observer import PlatformObserver, serves
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(400)]
REPLICAS = 4


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(
        tmp_path_factory.mktemp("rebalance") / "state", "--no-samples", "--regions", "us-east"
    ) as running:
        yield running


def service() -> dict[str, Any]:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    template = {
        "command": ["sleep", "10000"],
        "resources": {"cpu": "100m", "memory": "32Mi"},
        "probes": {"readiness": probe},
        "terminationGraceSeconds": 1,
        "drainDelaySeconds": 0,
    }
    spec = {"replicas": REPLICAS, "template": template, "rebalance": {"afterSeconds": 5}}
    return {"apiVersion": V1, "kind": "Workload", "metadata": {"name": "web", "namespace": "acme"}, "spec": spec}


def test_service_returns_to_an_even_spread_after_its_node_is_back(platform: RunningPlatform) -> None:
    layout = Layout(platform.state)
    observer = PlatformObserver(layout, layout.load())
    for item in (*TENANCY, service()):
        plural = {"Tenant": "tenants", "PriorityClass": "priorityclasses", "Quota": "quotas"}.get(item["kind"])
        observer.api().apply(item, plural or "workloads", manager="test")

    def spread() -> list[int]:
        nodes = Counter(r["status"]["placement"]["node"] for r in observer.list("replicas", "us-east") if serves(r))
        return sorted(nodes.values())

    wait_until(lambda: spread() == [2, 2], "two replicas serve on each node", within_s=90)
    arguments = ("--state", str(platform.state))
    holdfast("node", "drain", "us-east-2", *arguments)
    wait_until(lambda: spread() == [REPLICAS], "all replicas serve on the other node", within_s=90)
    holdfast("node", "uncordon", "us-east-2", *arguments)
    wait_until(lambda: spread() == [2, 2], "two replicas serve on each node again", within_s=180)
    moved = [r for r in observer.list("replicas", "us-east") if r["status"].get("rebalance")]
    assert len(moved) == 2, "no more moves than needed"
    for item in moved:
        block = item["status"]["rebalance"]
        assert (block["fromZone"], block["toZone"]) == ("us-east-a", "us-east-b")
        assert "zone us-east-a has" in block["message"] and "the planner chooses node us-east-2" in block["message"]
        assert item["status"]["release"]["reason"] == "Rebalanced"
    planned = json.loads(holdfast("plan", "--rebalance", "us-east", "-o", "json", *arguments).stdout)
    assert planned == {"stopped": "", "moves": []}, "an even spread is left alone"
    observer.close()
