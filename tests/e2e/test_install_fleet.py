"""Three regions with two nodes each, installed by the page. While a client counts failed requests, the CA is rotated,
the global cell is restored from a backup, and a region is lost and comes back.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.e2e.installed import (
    CONTROL,
    NODE,
    REGION,
    CountingClient,
    install,
    operator,
    page_scripts,
    serving,
    wait_serving,
)
from tests.machines import Fleet, NamespaceFleet, has_namespaces, running_fleet

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="takes minutes; make prove STAGE=install runs it"),
    pytest.mark.skipif(not has_namespaces(), reason="needs root and network namespaces"),
]

REGIONS = {"us-east": 2, "eu-west": 2, "ap-south": 2}
LOST = "ap-south"


def healthy_regions(fleet: Fleet) -> set[str]:
    listed = json.loads(operator(fleet, "holdfast get regions -o json 2>/dev/null"))["items"]
    return {r["metadata"]["name"] for r in listed if r["status"]["health"]["state"] == "Healthy"}


def wait_healthy(fleet: Fleet, names: set[str], timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        healthy = healthy_regions(fleet)
        if healthy >= names:
            return
        assert time.monotonic() < deadline, f"healthy: {healthy}, expected {names}"
        time.sleep(0.5)


def test_fleet_serves_through_rotation_restore_and_loss_of_a_region(tmp_path: Path) -> None:
    page = page_scripts()
    with running_fleet(tmp_path) as fleet:
        assert isinstance(fleet, NamespaceFleet)
        fleet.shapes_traffic = True
        install(fleet, REGIONS)
        control = fleet.machines["control"]
        wait_serving(fleet, 6)
        wait_healthy(fleet, set(REGIONS))
        client = CountingClient(control)
        client.start()
        before = json.loads(control.run("holdfast ca show -o json"))

        control.run(page[CONTROL][1], timeout_s=600)
        control.run("cp /etc/holdfast/operator.kubeconfig operator.kubeconfig")
        after = json.loads(control.run("holdfast ca show -o json"))
        assert after["signer"] not in before["trusted"]
        assert after["trusted"] == [after["signer"]]
        wait_healthy(fleet, set(REGIONS))

        control.run(page[f"{CONTROL}: back up"][0])
        control.run(page[f"{CONTROL}: restore"][0])
        wait_healthy(fleet, set(REGIONS))

        lost = [LOST, *(f"{LOST}-{number}" for number in (1, 2))]
        for name in lost:
            fleet.machines[name].cut()
            fleet.machines[name].kill_all()
        deadline = time.monotonic() + 120
        while LOST in healthy_regions(fleet):
            assert time.monotonic() < deadline, "the lost region is still healthy"
            time.sleep(1)
        for name in lost:
            fleet.machines[name].reconnect()
            script = page[REGION if name == LOST else NODE][0]
            fleet.machines[name].run(script, region=LOST)
        wait_healthy(fleet, set(REGIONS))
        wait_serving(fleet, 6)

        counted = client.stop()
        assert len(serving(fleet)) >= 6
        (tmp_path / "counted.json").write_text(json.dumps(counted))
        assert counted["sent"] > 500, counted
        assert counted["failed"] == 0, counted
