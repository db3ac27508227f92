"""Many tasks on one machine through six agents, with the duration of each start stage.

Sixty tasks; a thousand with `HOLDFAST_PROVE=1`.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.platforms import TENANCY, V1, RunningPlatform, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(1200)]

REPLICAS = 1000 if os.environ.get("HOLDFAST_PROVE") else 60
ITEMS: tuple[dict[str, Any], ...] = (
    *TENANCY[:2],
    {
        "apiVersion": V1,
        "kind": "Quota",
        "metadata": {"name": "quota", "namespace": "acme"},
        "spec": {"hard": {"cpu": "40", "memory": "64Gi"}},
    },
    {
        "apiVersion": V1,
        "kind": "Workload",
        "metadata": {"name": "crowd", "namespace": "acme"},
        "spec": {
            "replicas": REPLICAS,
            "template": {
                "command": ["sleep", "3600"],
                "resources": {"cpu": "10m", "memory": "8Mi"},
                "terminationGraceSeconds": 1,
            },
        },
    },
)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("crowd") / "state", "--no-samples") as running:
        yield running


def seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def test_thousand_tasks_start_and_serve(platform: RunningPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    platform.apply(*ITEMS)
    began = time.monotonic()
    wait_until(lambda: platform.workload("crowd").get("serving") == REPLICAS, within_s=600, what=f"{REPLICAS} serve")
    took_s = time.monotonic() - began
    stages: dict[str, list[float]] = {}
    nodes = set()
    for region in ("us-east", "eu-central", "eu-west"):
        listed = json.loads(platform.kubectl("--context", region, "get", "replicas", "-n", "acme", "-o", "json"))
        for item in listed["items"]:
            status = item["status"]
            times_of = {
                "created": seconds(item["metadata"]["creationTimestamp"]),
                "bound": seconds(status["placement"]["boundAt"]),
                "started": seconds(status["execution"]["startedAt"]),
                "serving": seconds(status["traffic"]["since"]),
            }
            nodes.add(status["placement"]["node"])
            for earlier, later in itertools.pairwise(times_of):
                stages.setdefault(f"{earlier} to {later}", []).append(max(0.0, times_of[later] - times_of[earlier]))
    assert len(nodes) == 6 and all(len(times) == REPLICAS for times in stages.values())
    with capsys.disabled():
        print(f"\n{REPLICAS} processes serve through {len(nodes)} agents after {took_s:.1f} s")
        for name, times in stages.items():
            times.sort()
            median, high = times[len(times) // 2], times[int(len(times) * 0.99)]
            print(f"  {name:20} median {median:7.3f} s   99th percentile {high:7.3f} s")
