"""Three regions with two nodes each, installed by the page, with delay and loss between all machines. While a client
counts failed requests, the CA is rotated, the global cell is restored from a backup, a region is lost and comes back,
and the fleet is upgraded to another release.
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
from tests.e2e.test_rolling_upgrade import NEXT_VERSION, installed, tree
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


def upgrade(fleet: Fleet, python: Path) -> None:
    """Another release of the package on every machine, then the page's commands, one service after the other."""
    program = fleet.programs / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {python} -m holdfast.cli "$@"\n')
    page = page_scripts()
    control = fleet.machines["control"]
    control.run(page[f"{CONTROL}: upgrade"][0])
    for region, nodes in REGIONS.items():
        fleet.machines[region].run(page[f"{REGION}: upgrade"][0], region=region)
        for number in range(1, nodes + 1):
            fleet.machines[f"{region}-{number}"].run(page[f"{NODE}: upgrade"][0], region=region)
    versions = {name: machine.run("holdfast version") for name, machine in fleet.machines.items()}
    assert all(NEXT_VERSION in version for version in versions.values()), versions
    doctor = control.run("holdfast doctor -o json")
    assert NEXT_VERSION in doctor


def test_fleet_serves_through_rotation_restore_loss_of_a_region_and_upgrade(tmp_path: Path) -> None:
    page = page_scripts()
    next_release = installed(tree(tmp_path / "next"), tmp_path / "next")
    with running_fleet(tmp_path / "fleet") as fleet:
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

        upgrade(fleet, next_release)
        wait_healthy(fleet, set(REGIONS))
        wait_serving(fleet, 6)

        counted = client.stop()
        assert len(serving(fleet)) >= 6
        (tmp_path / "counted.json").write_text(json.dumps(counted))
        assert counted["sent"] > 500, counted
        assert counted["failed"] == 0, counted
