"""Three regions with two nodes each, installed by the page, with delay and loss between all machines. While a client
counts failed requests, the CA is rotated, the global cell is restored from a backup, a region is lost and comes back,
and the fleet is upgraded from the previous release to this one and back.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.e2e.failed_requests import Steps, explanation
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
from tests.e2e.releases import NEXT_VERSION, installed, previous_release, tree
from tests.machines import Fleet, NamespaceFleet, NamespaceMachine, has_namespaces, running_fleet

import holdfast as this_tree

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="takes minutes; make prove STAGE=install runs it"),
    pytest.mark.skipif(not has_namespaces(), reason="needs root and network namespaces"),
]

REGIONS = {"us-east": 2, "eu-west": 2, "ap-south": 2}
LOST = "ap-south"


def region_states(fleet: Fleet) -> dict[str, str]:
    listed = json.loads(operator(fleet, "holdfast get regions -o json 2>/dev/null"))["items"]
    return {r["metadata"]["name"]: r["status"]["health"]["state"] for r in listed}


def wait_healthy(fleet: Fleet, names: set[str], timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        states = region_states(fleet)
        if all(states.get(name) == "Healthy" for name in names):
            return
        assert time.monotonic() < deadline, f"{states}, expected {names} to be healthy"
        time.sleep(0.5)


def restart_with(fleet: NamespaceFleet, python: Path, version: str, *, nodes_first: bool) -> None:
    """Another release of the package on every machine, then the page's commands, one service after the other."""
    fleet.install_release(python)
    page = page_scripts()
    services = [("control", CONTROL, "global", "")]
    services += [(region, REGION, "region", region) for region in REGIONS]
    services += [
        (f"{region}-{n}", NODE, "agent", region) for region, nodes in REGIONS.items() for n in range(1, nodes + 1)
    ]
    before = tasks_of(fleet)
    assert len(before) == 6
    for name, block, role, region in reversed(services) if nodes_first else services:
        machine = fleet.machines[name]
        machine.run(page[f"{block}: upgrade"][0], region=region)
        noted = json.loads(machine.run(f"cat /var/lib/holdfast/{role}/version.json"))
        assert noted["holdfast"] == version, f"{name}: {noted}"
    assert tasks_of(fleet) == before, "a task ended with the restart of the services"
    wait_healthy(fleet, set(REGIONS))
    wait_serving(fleet, 6)


def tasks_of(fleet: NamespaceFleet) -> set[tuple[int, int]]:
    """The processes of the page's workload, on all nodes."""
    nodes = [machine for machine in fleet.machines.values() if isinstance(machine, NamespaceMachine)]
    return {task for node in nodes for task in node.processes("-m", "http.server")}


def round_trip_ms(fleet: Fleet) -> float:
    """The shortest of some connections from the operator's machine to a region, in milliseconds."""
    address = fleet.machines["us-east"].address
    script = (
        "import socket, time\nfound = []\nfor _ in range(5):\n began = time.monotonic()\n"
        f" socket.create_connection(('{address}', 7401), 5).close()\n found.append(time.monotonic() - began)\n"
        "print(min(found) * 1000)"
    )
    return float(fleet.machines["control"].run(f'python3 -c "{script}"'))


def test_fleet_serves_through_rotation_restore_loss_of_a_region_and_upgrade(tmp_path: Path) -> None:
    page = page_scripts()
    source = previous_release(tmp_path / "previous")
    previous, new = installed(source, tmp_path / "previous"), installed(tree(tmp_path / "new"), tmp_path / "new")
    steps = Steps()
    with running_fleet(tmp_path / "fleet") as fleet:
        assert isinstance(fleet, NamespaceFleet)
        fleet.shapes_traffic = True
        fleet.install_release(previous)
        install(fleet, REGIONS, source / "docs" / "operations" / "install.md")
        assert round_trip_ms(fleet) > 10, "the links have no delay"
        control = fleet.machines["control"]
        wait_serving(fleet, 6)
        wait_healthy(fleet, set(REGIONS))
        steps.ended("three regions with two nodes each are installed")
        client = CountingClient(control)
        client.start()
        steps.ended("the client begins")
        before = json.loads(control.run("holdfast ca show -o json"))

        control.run(page[CONTROL][1], timeout_s=600)
        control.run("cp /etc/holdfast/operator.kubeconfig operator.kubeconfig")
        after = json.loads(control.run("holdfast ca show -o json"))
        assert after["signer"] not in before["trusted"]
        assert after["trusted"] == [after["signer"]]
        wait_healthy(fleet, set(REGIONS))
        steps.ended("the CA is rotated")

        control.run(page[f"{CONTROL}: back up"][0])
        control.run(page[f"{CONTROL}: restore"][0])
        wait_healthy(fleet, set(REGIONS))
        steps.ended("the global cell is restored from a backup")

        lost = [LOST, *(f"{LOST}-{number}" for number in (1, 2))]
        for name in lost:
            fleet.machines[name].cut()
            fleet.machines[name].kill_all()
        assert len(tasks_of(fleet)) == 4, "the tasks of the lost region still run"
        deadline = time.monotonic() + 120
        while (state := region_states(fleet)[LOST]) != "Lost":
            assert time.monotonic() < deadline, f"the region that is gone is {state}"
            time.sleep(1)
        steps.ended(f"{LOST} is lost")
        for name in lost:
            fleet.machines[name].reconnect()
            script = page[REGION if name == LOST else NODE][0]
            fleet.machines[name].run(script, region=LOST)
        wait_healthy(fleet, set(REGIONS))
        wait_serving(fleet, 6)
        steps.ended(f"{LOST} is back")

        restart_with(fleet, new, NEXT_VERSION, nodes_first=False)
        steps.ended("the fleet is upgraded, cells first")
        restart_with(fleet, previous, this_tree.__version__, nodes_first=True)
        steps.ended("the fleet is back at the previous release, nodes first")
        restart_with(fleet, new, NEXT_VERSION, nodes_first=True)
        steps.ended("the fleet is upgraded again, nodes first")
        assert NEXT_VERSION in control.run("holdfast doctor -o json")

        counted = client.stop()
        assert len(serving(fleet)) >= 6
        steps.ended(f"requests: {counted['sent']} sent, {counted['retried']} retried, {counted['failed']} failed")
        assert counted["sent"] > 500, counted
        assert counted["failed"] == 0, explanation(counted, steps, fleet)
