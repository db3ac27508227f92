"""On real processes: a workload that fits its quota exactly runs whole, and quota freed in one region is used in
another within seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import running_platform, wait_until

from holdfast.drills.platform_observer import PlatformObserver
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(300)]
FOLLOWS_WITHIN_S = 30.0


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[PlatformObserver]:
    with running_platform(tmp_path / "platform", "--regions", "a,b,c", "--agents", "1", "--no-samples") as running:
        layout = Layout(str(running.state))
        watched = PlatformObserver(layout, layout.load())
        yield watched
        watched.close()


def apply(observer: PlatformObserver, kind: str, plural: str, name: str, spec: dict[str, Any]) -> None:
    namespace = {} if kind in ("Tenant", "PriorityClass") else {"namespace": "shop"}
    body = {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": {"name": name, **namespace}, "spec": spec}
    observer.api().apply(body, plural, manager="test")


def service(replicas: int, *regions: str) -> dict[str, Any]:
    template = {
        "command": ["sleep", "10000"],
        "resources": {"cpu": "500m", "memory": "16Mi"},
        "terminationGraceSeconds": 1,
        "drainDelaySeconds": 0,
        "probes": {"readiness": {"exec": {"command": ["true"]}, "periodSeconds": 1}},
    }
    return {"replicas": replicas, "template": template, "placement": {"regions": list(regions)}}


def serving(observer: PlatformObserver, name: str) -> int:
    found = [w for w in observer.list("workloads") if w["metadata"]["name"] == name]
    return int(found[0].get("status", {}).get("summary", {}).get("serving", 0)) if found else 0


def test_unused_quota_follows_need(observer: PlatformObserver) -> None:
    apply(observer, "Tenant", "tenants", "shop", {})
    apply(observer, "PriorityClass", "priorityclasses", "standard", {"priority": 0})
    apply(observer, "Quota", "quotas", "quota", {"hard": {"cpu": "2", "memory": "1Gi"}})
    apply(observer, "Workload", "workloads", "exact", service(4, "a", "b", "c"))
    wait_until(lambda: serving(observer, "exact") == 4, "four replicas of 500m serve within a quota of 2 cpu", 90)
    apply(observer, "Workload", "workloads", "later", service(2, "c"))
    wait_until(
        lambda: any(
            "2 replicas wait in c" in condition.get("message", "")
            for quota in observer.list("quotas")
            for condition in quota.get("status", {}).get("conditions", ())
        ),
        "the Quota says that two replicas wait",
        30,
    )
    began = time.monotonic()
    apply(observer, "Workload", "workloads", "exact", service(2, "a", "b", "c"))
    wait_until(lambda: serving(observer, "later") == 2, "freed quota is used in another region", 60)
    took_s = time.monotonic() - began
    assert took_s < FOLLOWS_WITHIN_S, f"{took_s:.1f} s"
    assert serving(observer, "exact") == 2
