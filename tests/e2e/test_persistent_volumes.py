"""Persistent volumes on a real platform: data outlives tasks and agents, stays on its node, and goes with its claim."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.drills import outage
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]

# Appends one line per start, so that the file tells whether the data before was there.
SCRIPT = 'echo start >> "$HOLDFAST_VOLUME_DATA/starts"; wc -l < "$HOLDFAST_VOLUME_DATA/starts"; exec sleep 1000'
QUOTA = {"cpu": "8", "memory": "8Gi", "storage": "64Mi"}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("volumes") / "platform"
    with running_platform(state, "--no-samples", "--regions", "us-east", "--agents", "2") as running:
        tenancy = [item if item["kind"] != "Quota" else {**item, "spec": {"hard": QUOTA}} for item in TENANCY]
        running.apply(*tenancy)
        yield running


def claim(name: str, policy: str, size: str = "32Mi") -> dict[str, Any]:
    meta = {"name": name, "namespace": "acme"}
    return {"apiVersion": V1, "kind": "VolumeClaim", "metadata": meta, "spec": {"size": size, "reclaimPolicy": policy}}


def workload(name: str, claimed: str, replicas: int = 1) -> dict[str, Any]:
    template = {
        "command": ["sh", "-c", SCRIPT],
        "resources": {"cpu": "50m", "memory": "64Mi"},
        "volumes": [{"name": "data", "mountPath": "/data", "claim": {"name": claimed}}],
        "terminationGraceSeconds": 1,
    }
    meta = {"name": name, "namespace": "acme"}
    return {
        "apiVersion": V1,
        "kind": "Workload",
        "metadata": meta,
        "spec": {"replicas": replicas, "template": template},
    }


def volumes(platform: RunningPlatform) -> list[dict[str, Any]]:
    return listed(platform, "volumes")


def listed(platform: RunningPlatform, kind: str) -> list[dict[str, Any]]:
    text = platform.kubectl("--context", "us-east", "-n", "acme", "get", kind, "-o", "json")
    items: list[dict[str, Any]] = json.loads(text)["items"]
    return items


def starts(platform: RunningPlatform, name: str) -> int:
    """Starts that the newest task of the workload counted in its volume."""
    logs = platform.state.glob(f"agents/*/tasks/acme_{name}-*/output.log")
    lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
    numbers = [
        int(line.rsplit(maxsplit=1)[-1]) for line in lines if line.rsplit(maxsplit=1)[-1:] and line[-1].isdigit()
    ]
    return max(numbers, default=0)


def delete(platform: RunningPlatform, *what: str, wait: bool = True) -> None:
    platform.kubectl("--context", "global", "-n", "acme", "delete", *what, f"--wait={'true' if wait else 'false'}")


def folders(platform: RunningPlatform) -> list[Path]:
    return [path for path in platform.state.glob("agents/*-volumes/*") if not path.name.startswith(".")]


def test_data_outlives_tasks_and_agents_and_goes_with_its_claim(platform: RunningPlatform) -> None:
    platform.apply(claim("orders", "Delete"), workload("keeper", "orders"))
    wait_until(lambda: starts(platform, "keeper") == 1, "the task wrote to its volume", 90)
    (volume,) = volumes(platform)
    node = volume["spec"]["node"]
    wait_until(lambda: volumes(platform)[0].get("status", {}).get("data", {}).get("phase") == "Present", "reported")

    holdfast("rollout", "restart", "acme/keeper", "--state", str(platform.state))
    wait_until(lambda: starts(platform, "keeper") == 2, "the new replica has the data of the former", 90)

    os.kill(platform.pid(f"agent-{node}"), signal.SIGKILL)
    wait_until(lambda: platform.pid(f"agent-{node}"), "the agent runs again")
    holdfast("rollout", "restart", "acme/keeper", "--state", str(platform.state))
    wait_until(lambda: starts(platform, "keeper") == 3, "the data is there after the agent was killed", 90)

    delete(platform, "volumeclaim", "orders", wait=False)
    shown = platform.kubectl("--context", "global", "-n", "acme", "get", "volumeclaim", "orders")
    assert "True" in shown, "a claim in use waits"
    assert folders(platform)
    delete(platform, "workload", "keeper")
    wait_until(lambda: not volumes(platform), "the volume is deleted with its claim", 60)
    assert not folders(platform), "its data is gone"


def test_replica_waits_for_the_node_that_holds_its_volume(platform: RunningPlatform) -> None:
    platform.apply(claim("pinned", "Retain"), workload("waiter", "pinned"))
    wait_until(lambda: starts(platform, "waiter") == 1, "the task wrote to its volume", 90)
    (volume,) = (v for v in volumes(platform) if v["spec"]["claim"] == "pinned")
    node = volume["spec"]["node"]
    platform.kubectl("--context", "us-east", "cordon", node)
    holdfast("rollout", "restart", "acme/waiter", "--state", str(platform.state))

    def explained() -> str:
        return holdfast("explain", "acme/waiter", "--state", str(platform.state), check=False).stdout

    wait_until(lambda: "VolumeNodeLost" in explained(), "the reason is the node of the volume", 60)
    assert node in explained() and "NodeCordoned" in explained()
    platform.kubectl("--context", "us-east", "uncordon", node)
    wait_until(lambda: starts(platform, "waiter") == 2, "it starts on its node, with its data", 90)
    assert len(volumes(platform)) == 1

    delete(platform, "workload", "waiter")
    delete(platform, "volumeclaim", "pinned")
    assert [v["spec"]["claim"] for v in volumes(platform)] == ["pinned"], "a retained volume stays"
    platform.kubectl("--context", "us-east", "-n", "acme", "delete", "volume", volume["metadata"]["name"])
    wait_until(lambda: not folders(platform), "a person deletes it")


def test_storage_counts_against_the_quota(platform: RunningPlatform) -> None:
    platform.apply(claim("large", "Delete", "48Mi"), workload("hungry", "large", replicas=2))

    def explained() -> str:
        return holdfast("explain", "acme/hungry", "--state", str(platform.state), check=False).stdout

    wait_until(lambda: len(volumes(platform)) == 1, "one volume fits the quota", 90)
    wait_until(lambda: "QuotaExceeded" in explained(), "the second does not", 60)
    assert "storage" in explained()
    delete(platform, "workload", "hungry")
    delete(platform, "volumeclaim", "large")
    wait_until(lambda: not folders(platform), "its data is deleted", 60)


@pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="a minute long; make prove STAGE=platforms runs it")
def test_restores_older_than_a_claim_delete_no_data(platform: RunningPlatform, tmp_path: Path) -> None:
    """Last in this file: the region forgets everything since its backup."""
    for cell in ("global", "us-east"):
        save(platform, cell, tmp_path / cell)
    platform.apply(claim("younger", "Delete", "16Mi"), workload("pair", "younger", replicas=2))
    wait_until(lambda: len(folders(platform)) == 2, "both replicas have their data", 90)
    platform.apply(workload("pair", "younger", replicas=1))
    wait_until(lambda: running_replicas(platform) == ["pair-us-east-0"], "one volume has no replica", 60)
    before = sorted(folders(platform))

    restore(platform, "global", tmp_path / "global")

    def kept() -> bool:
        found = volumes(platform)
        kept = [v for v in found if not v["metadata"].get("deletionTimestamp")]
        assert len(kept) == 2 and sorted(folders(platform)) == before, "absence is not an order"
        conditions = [c for v in found for c in v.get("status", {}).get("conditions", [])]
        return [c["reason"] for c in conditions if c["type"] == "Claimed"] == ["ClaimMissing"] * 2

    wait_until(kept, "the region keeps both volumes and says why", 90)
    assert sorted(folders(platform)) == before
    assert running_replicas(platform) == ["pair-us-east-0"], "the work is held, too"

    restore(platform, "us-east", tmp_path / "us-east")
    wait_until(lambda: not running_replicas(platform) and not volumes(platform), "the region knows nothing of them", 90)
    platform.apply(claim("later", "Delete", "16Mi"), workload("later", "later"))
    wait_until(lambda: starts(platform, "later") == 1, "the agents follow the restored region", 120)
    assert set(folders(platform)) > set(before), "a directory without a Volume is left alone"


def save(platform: RunningPlatform, cell: str, to: Path) -> None:
    holdfast("backup", "--cell", cell, "--state", str(Layout(platform.state).cell(cell)), "--to", str(to))


def restore(platform: RunningPlatform, cell: str, saved: Path) -> None:
    layout = Layout(platform.state)
    outage.hold_down(layout, [f"cell-{cell}"])
    assert outage.kill_processes(layout, [f"cell-{cell}"]) == 1
    holdfast("restore", "--cell", cell, "--state", str(layout.cell(cell)), "--from", str(saved), "--replace")
    outage.allow_restart(layout, [f"cell-{cell}"])

    def is_ready() -> bool:
        return any(each["name"] == cell and each["ready"] for each in platform.status()["cells"])

    wait_until(is_ready, f"cell {cell} is ready", 60)


def running_replicas(platform: RunningPlatform) -> list[str]:
    return sorted(item["metadata"]["name"] for item in listed(platform, "replicas"))
