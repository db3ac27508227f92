"""The commands of docs/operations/high-availability.md: several servers per cell, and the loss of some of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.failed_requests import Steps, explanation
from tests.e2e.installed import (
    NODE,
    OPERATOR,
    SERVERS_PAGE,
    CountingClient,
    operator,
    page_scripts,
    serving,
    wait_serving,
)
from tests.machines import Fleet, has_namespaces, running_fleet

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.waits,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not has_namespaces(), reason="needs root and network namespaces"),
]
FIRST, FURTHER = "the first server of the global cell", "a further server of the global cell"
TOKENS, LIST = "the operator's machine: tokens of servers", "the operator's machine: list"
CHECK = "the first server of the global cell: check"
REVOKE_SERVER, REVOKE_REGION = "the operator's machine: revoke a server", "the operator's machine: revoke a region"


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except AssertionError:
            if time.monotonic() >= deadline:
                raise
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.3)


def install_global(fleet: Fleet, servers: int) -> None:
    page = page_scripts(SERVERS_PAGE)
    first = fleet.add("control", 1)
    first.run(page[FIRST][0])
    for number in range(2, servers + 1):
        assert f"{number - 1} of {servers} servers have joined" in first.run(page[CHECK][0])
        fleet.add(f"control-{number}", number).run(f"export NUMBER={number - 1}\n{page[FURTHER][0]}")
    for name in ("control", f"control-{servers}"):
        assert f"{servers} of {servers} servers have joined" in fleet.machines[name].run(page[CHECK][0])
    assert "no server is missing" in first.run(f"export CELL=global\n{page[TOKENS][0]}")


def listed(fleet: Fleet, machine: str = "control") -> list[dict[str, object]]:
    answer = fleet.machines[machine].run("holdfast server list -o json --state operator.kubeconfig 2>/dev/null")
    found: list[dict[str, object]] = json.loads(answer)
    return found


def server_at(fleet: Fleet, name: str, *, asked: str) -> str:
    address = f"https://{fleet.machines[name].address}:"
    return next(str(each["name"]) for each in listed(fleet, asked) if str(each["url"]).startswith(address))


def members(fleet: Fleet, machine: str) -> list[str]:
    files = "--cacert ca.crt --cert client.crt --key client.key"
    endpoint = f"https://{fleet.machines[machine].address}:7500"
    listed = f"cd /var/lib/holdfast/global/etcd && ETCDCTL_API=3 etcdctl --endpoints {endpoint} {files} member list"
    return fleet.machines[machine].run(listed).splitlines()


def writes(fleet: Fleet, machine: str) -> bool:
    """Whether the global cell takes a write. While etcd elects a leader, the outcome of one can be unknown."""
    create = "kubectl create namespace after --dry-run=client -o yaml | kubectl apply -f -"
    done = fleet.machines[machine].run(f"export KUBECONFIG=operator.kubeconfig\n({create}) 2>&1 || echo failed")
    return "failed" not in done


def region_is_healthy(fleet: Fleet, machine: str, region: str) -> bool:
    answer = fleet.machines[machine].run("holdfast get regions -o json --state operator.kubeconfig 2>/dev/null")
    found = {item["metadata"]["name"]: item for item in json.loads(answer)["items"]}
    return bool(found[region]["status"]["health"]["state"] == "Healthy")


def test_global_cell_of_three_servers_goes_on_without_its_first(tmp_path: Path) -> None:
    page, install_page = page_scripts(SERVERS_PAGE), page_scripts()
    with running_fleet(tmp_path) as fleet:
        install_global(fleet, 3)
        control, other = fleet.machines["control"], fleet.machines["control-2"]
        operator(fleet, "holdfast region add us-east > us-east.token 2>/dev/null")
        fleet.add("us-east", 4).run(install_page["the machine of the region"][0], region="us-east")
        wait_for(lambda: region_is_healthy(fleet, "control", "us-east"), "the region")
        assert "us-east-" in control.run(page[LIST][0])
        lost = server_at(fleet, "control", asked="control")

        control.cut()
        control.kill_all()
        wait_for(lambda: writes(fleet, "control-2"), "a write after the loss")
        wait_for(lambda: region_is_healthy(fleet, "control-2", "us-east"), "the region to change to another server")
        other.run(page[REVOKE_SERVER][0].replace("$SERVER", lost))
        wait_for(lambda: len(members(fleet, "control-2")) == 2, "etcd to forget the lost member")
        refused = other.run(f"export HOLDFAST_STATE=operator.kubeconfig\nholdfast server revoke {lost} --yes 2>&1")
        assert "revoked before" in refused
        audit = other.run(f"holdfast audit search Server/{lost} --state operator.kubeconfig -o json")
        assert "(disk failed)" in audit

        answer = other.run("holdfast region revoke us-east --state operator.kubeconfig 2>&1 || echo exit $?")
        assert "1 servers lose their certificates" in answer
        assert "exit 6" in answer
        other.run(page[REVOKE_REGION][0], region="us-east")
        wait_for(lambda: not region_is_healthy(fleet, "control-2", "us-east"), "the revoked region to be missed")


@pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="takes minutes; make prove STAGE=install runs it")
def test_cells_of_three_servers_serve_through_losses_and_a_rotation(tmp_path: Path) -> None:
    """One server of each cell is lost at once, the CA is rotated with three servers per cell."""
    page, install_page = page_scripts(SERVERS_PAGE), page_scripts()
    with running_fleet(tmp_path) as fleet:
        install_global(fleet, 3)
        control = fleet.machines["control"]
        operator(fleet, "holdfast region add us-east > us-east.token 2>/dev/null")
        fleet.add("us-east", 4).run(page["the first server of the region"][0], region="us-east")
        control.run(f"export CELL=us-east\n{page[TOKENS][0]}")
        for number in (2, 3):
            script = f"export NUMBER={number - 1}\n{page['a further server of the region'][0]}"
            fleet.add(f"us-east-s{number}", 4 + number).run(script, region="us-east")
        control.run(install_page[OPERATOR][1], region="us-east")
        for number in (1, 2):
            fleet.add(f"us-east-{number}", 10 + number).run(install_page[NODE][0], region="us-east")
        control.run(install_page[OPERATOR][2])
        wait_serving(fleet, 6)
        client = CountingClient(fleet.machines["control-2"])
        client.start()

        control.run("holdfast ca rotate && cp /etc/holdfast/operator.kubeconfig operator.kubeconfig", timeout_s=600)
        for name in ("control-3", "us-east"):
            fleet.machines[name].cut()
            fleet.machines[name].kill_all()
        wait_for(lambda: writes(fleet, "control"), "a write after the loss")
        operator(fleet, "kubectl --kubeconfig operator.kubeconfig scale workload/hello --replicas=8")
        wait_serving(fleet, 8)
        lost = server_at(fleet, "us-east", asked="control")
        control.run(page[REVOKE_SERVER][0].replace("$SERVER", lost))

        counted = client.stop()
        assert len(serving(fleet)) >= 8
        assert counted["sent"] > 200, counted
        assert counted["failed"] == 0, explanation(counted, Steps(), fleet)
