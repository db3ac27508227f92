"""A replica with a persistent volume after its node or its region is lost, on a real platform.

With `StartEmpty` the recovery replica starts in another region with an empty volume, and `explain` says so. With `Wait`
it does not. A person who deletes the Volume of a lost node lets the replica start empty on another node.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.e2e.test_persistent_volumes import SCRIPT, starts
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.drills import outage
from holdfast.platform.layout import Layout

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.waits,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="minutes long; make prove STAGE=platforms runs it"),
]
EAST, WEST = "us-east", "eu-west"
SMALL = {"cpu": "50m", "memory": "64Mi"}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("loss") / "platform"
    room = {"cpu": "4", "memory": "4Gi", "storage": "256Mi"}
    quota = {"hard": room, "recoveryAllowance": room}
    with running_platform(state, "--no-samples", "--regions", f"{EAST},{WEST}", "--agents", "2") as running:
        running.apply(*(item if item["kind"] != "Quota" else {**item, "spec": quota} for item in TENANCY))
        for region in (EAST, WEST):
            shapes = [{"resources": {**SMALL, "storage": "32Mi"}, "count": 2}]
            spec = {"region": region, "slotShapes": shapes, "tenants": ["acme"]}
            running.apply({"apiVersion": V1, "kind": "RecoveryBudget", "metadata": {"name": region}, "spec": spec})
        yield running


def claim(name: str, lost: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "acme"}
    return {"apiVersion": V1, "kind": "VolumeClaim", "metadata": meta, "spec": {"size": "32Mi", "onRegionLoss": lost}}


def workload(name: str, claimed: str, *regions: str) -> dict[str, Any]:
    template = {
        "command": ["sh", "-c", SCRIPT],
        "resources": SMALL,
        "volumes": [{"name": "data", "mountPath": "/data", "claim": {"name": claimed}}],
        "terminationGraceSeconds": 1,
    }
    spec = {
        "replicas": 1,
        "template": template,
        "placement": {"regions": list(regions), "spreadRegions": 1},
        "recovery": {"minServing": 1, "deadlineSeconds": 120},
    }
    return {"apiVersion": V1, "kind": "Workload", "metadata": {"name": name, "namespace": "acme"}, "spec": spec}


def volumes(platform: RunningPlatform, region: str, name: str) -> list[dict[str, Any]]:
    text = platform.kubectl("--context", region, "-n", "acme", "get", "volumes", "-o", "json")
    return [item for item in json.loads(text)["items"] if item["spec"]["claim"] == name]


def explained(platform: RunningPlatform, name: str) -> str:
    return holdfast("explain", f"acme/{name}", "--state", str(platform.state), check=False).stdout


def test_replica_starts_empty_elsewhere_when_the_volume_of_its_lost_node_is_deleted(platform: RunningPlatform) -> None:
    platform.apply(claim("node-bound", "Wait"), workload("moved", "node-bound", EAST))
    wait_until(lambda: starts(platform, "moved") == 1, "it wrote to its volume", 90)
    (volume,) = volumes(platform, EAST, "node-bound")
    assert "which was made for it and is empty" in explained(platform, f"moved-{EAST}-0")
    node = volume["spec"]["node"]
    names = [f"agent-{node}"]
    outage.hold_down(Layout(platform.state), names)
    try:
        assert outage.kill_processes(Layout(platform.state), names) >= 1, "the agent and its tasks"
        wait_until(lambda: "VolumeNodeLost" in explained(platform, "moved"), "it waits for its node", 120)
        platform.kubectl("--context", EAST, "delete", "node.holdfast.dev", node, "--wait=false", check=False)
        platform.kubectl(
            "--context", EAST, "-n", "acme", "delete", "volume", volume["metadata"]["name"], "--wait=false"
        )

        def elsewhere() -> bool:
            found = volumes(platform, EAST, "node-bound")
            return [v["spec"]["node"] for v in found] not in ([], [node])

        wait_until(elsewhere, "it has an empty volume on the other node", 180)
    finally:
        outage.allow_restart(Layout(platform.state), names)


def test_recovery_starts_empty_in_another_region_only_if_the_claim_says_so(platform: RunningPlatform) -> None:
    for name, lost in (("empty", "StartEmpty"), ("waiting", "Wait")):
        platform.apply(claim(name, lost), workload(name, name, EAST))
        wait_until(partial(starts, platform, name), f"{name} wrote to its volume", 90)
        platform.apply(workload(name, name, EAST, WEST))
    plan = holdfast("plan", "--lose-region", EAST, "--state", str(platform.state), check=False).stdout
    assert "VolumeClaim waiting" in plan and "VolumeClaim empty" not in plan
    layout = Layout(platform.state)
    names = outage.process_names(outage.region_plan(layout.load(), EAST))
    outage.hold_down(layout, names)
    try:
        outage.kill_processes(layout, names)
        wait_until(lambda: len(volumes(platform, WEST, "empty")) == 1, "a volume in the other region", 240)
        said = f"recovery replicas in region {WEST} started with an empty volume (VolumeClaim empty"
        wait_until(lambda: said in explained(platform, "empty"), "explain says that it has no data", 60)
        wait_until(lambda: starts(platform, f"empty-{WEST}") == 1, "its first start there finds an empty volume", 60)
        assert volumes(platform, WEST, "waiting") == []
    finally:
        outage.allow_restart(layout, names)

    def is_back() -> bool:
        return any(cell["name"] == EAST and cell["ready"] for cell in platform.status()["cells"])

    wait_until(is_back, "the lost region is back", 120)
    assert len(volumes(platform, EAST, "empty")) == len(volumes(platform, EAST, "waiting")) == 1, "with its data"
