"""A whole platform from the command line: start, requests, scaling, kills, recovery and stop.

The tests share one platform and run in order. The last ones stop it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.platforms import (
    RunningPlatform,
    free_port_base,
    get_json,
    holdfast,
    holdfast_command,
    processes_of,
    running_platform,
    wait_until,
)

from holdfast.sim.recorded_history import check_platform

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]

SERVING_WITHIN_S = 60.0
NODES = 8
"""Two shared nodes per region, and one of tenant billing in each European region."""
HEALED_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("platform") / "state") as running:
        yield running


def test_new_platform_serves_in_time(platform: RunningPlatform) -> None:
    assert platform.took_s < SERVING_WITHIN_S
    assert platform.up_output["serving"] is True
    assert platform.up_output["url"] == f"https://127.0.0.1:{platform.base}"
    status = platform.status()
    assert all(cell["ready"] for cell in status["cells"])
    assert len(status["nodes"]) == NODES
    assert all(node["schedulable"] for node in status["nodes"])
    names = {w["name"] for w in status["workloads"]}
    assert names == {"risk-api", "billing-api", "search-indexer", "fraud-batch", "analytics"}
    risk = platform.workload("risk-api")
    assert risk["serving"] == 6
    assert len(risk["regions"]) >= 2
    billing = platform.workload("billing-api")
    assert set(billing["regions"]) <= {"eu-central", "eu-west"}


def test_regions_measure_the_latency_between_them(platform: RunningPlatform) -> None:
    def measured() -> dict[str, float]:
        found = json.loads(platform.kubectl("get", "regions", "-o", "json"))["items"]
        return {
            f"{region['metadata']['name']} to {peer['region']}": peer.get("latencyMs", 0.0)
            for region in found
            for peer in region["status"]["report"].get("peers", ())
        }

    wait_until(lambda: sum(ms > 0 for ms in measured().values()) == 6, within_s=30, what="six latencies are measured")


def test_billing_shares_no_node_with_other_tenants(platform: RunningPlatform) -> None:
    placed: dict[str, set[str]] = {}
    for region in ("us-east", "eu-central", "eu-west"):
        found = json.loads(platform.kubectl("--context", region, "get", "bindings.holdfast.dev", "-A", "-o", "json"))
        for item in found["items"]:
            placed.setdefault(item["spec"]["node"], set()).add(item["metadata"]["namespace"])
    assert {node for node, tenants in placed.items() if "billing" in tenants} == {
        "eu-central-billing",
        "eu-west-billing",
    }
    assert all(tenants == {"billing"} for tenants in placed.values() if "billing" in tenants)


def test_request_is_answered_by_a_replica(platform: RunningPlatform) -> None:
    addresses = platform.addresses("payments/risk-api")
    assert len(addresses) == 6
    answers = [get_json(address) for address in addresses]
    assert {answer["workload"] for answer in answers} == {"risk-api"}
    assert len({answer["replica"] for answer in answers}) == 6
    logs = holdfast("logs", "payments/risk-api", "--state", str(platform.state)).stdout
    assert "listens on" in logs


def test_second_up_finds_the_platform_running(platform: RunningPlatform) -> None:
    state = str(platform.state)
    again = holdfast("up", "--detach", "--state", state, "-o", "json")
    assert json.loads(again.stdout)["serving"] is True
    assert "already running" in again.stderr
    assert holdfast("up", "--state", state, check=False).returncode == 6
    assert holdfast("up", "--detach", "--state", state, "--regions", "mars", check=False).returncode == 6


def test_kubectl_scales_a_workload(platform: RunningPlatform) -> None:
    assert "risk-api" in platform.kubectl("get", "workloads", "-A")
    platform.kubectl("-n", "search", "scale", "workload/search-indexer", "--replicas=4")
    wait_until(lambda: platform.workload("search-indexer").get("serving") == 4, within_s=60, what="four replicas serve")
    assert len(platform.addresses("search/search-indexer")) == 4
    platform.kubectl("-n", "search", "scale", "workload/search-indexer", "--replicas=1")
    wait_until(lambda: len(platform.addresses("search/search-indexer")) == 1, within_s=60, what="one replica is left")
    wait_until(
        lambda: sum(platform.workload("search-indexer").get("stages", {}).values()) == 1,
        within_s=60,
        what="the others are gone",
    )


def test_workload_deleted_with_kubectl_leaves_no_process(platform: RunningPlatform) -> None:
    address = platform.addresses("analytics/analytics")[0]
    assert get_json(address)["workload"] == "analytics"
    platform.kubectl("-n", "analytics", "delete", "workload/analytics", "--timeout=90s")
    assert platform.workload("analytics") == {}
    left = [p for p in processes_of(platform.state) if "samples.analytics" in p]
    assert left == []


def test_killed_agent_returns_without_stopping_its_tasks(platform: RunningPlatform) -> None:
    before = {a["replica"]: a["pid"] for a in map(get_json, platform.addresses("payments/risk-api"))}
    killed = platform.pid("agent-us-east-1")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: platform.pid("agent-us-east-1") != killed, within_s=30, what="the agent is started again")
    wait_until(
        lambda: len(nodes := platform.status()["nodes"]) == NODES and all(n["schedulable"] for n in nodes),
        within_s=HEALED_WITHIN_S,
        what="its node is schedulable again",
    )
    after = {a["replica"]: a["pid"] for a in map(get_json, platform.addresses("payments/risk-api"))}
    assert after == before


@pytest.mark.parametrize("cell", ["cell-eu-west", "cell-global"])
def test_killed_cell_returns_with_its_state(platform: RunningPlatform, cell: str) -> None:
    def addresses() -> list[str]:
        return sorted(platform.addresses("payments/risk-api"))

    wait_until(lambda: len(addresses()) == 6, within_s=HEALED_WITHIN_S, what="six replicas serve")
    before = addresses()
    killed = platform.pid(cell)
    os.kill(killed, signal.SIGKILL)
    for address in before:
        assert get_json(address)["workload"] == "risk-api"  # tasks keep running
    wait_until(lambda: platform.pid(cell) != killed, within_s=30, what="the cell is started again")
    wait_until(
        lambda: (
            (s := platform.status()) and all(c["ready"] for c in s["cells"]) and all(w["done"] for w in s["workloads"])
        ),
        within_s=HEALED_WITHIN_S,
        what="everything serves again",
    )
    wait_until(lambda: addresses() == before, within_s=HEALED_WITHIN_S, what="the same replicas serve")


def test_killed_task_is_restarted(platform: RunningPlatform) -> None:
    killed_replica = get_json(platform.addresses("payments/risk-api")[0])
    os.kill(killed_replica["pid"], signal.SIGKILL)

    def all_answer() -> bool:
        with contextlib.suppress(OSError):
            answers = [get_json(address) for address in platform.addresses("payments/risk-api")]
            return len(answers) == 6 and killed_replica["pid"] not in {a["pid"] for a in answers}
        return False

    wait_until(all_answer, within_s=HEALED_WITHIN_S, what="six replicas answer, none of them the killed process")


def test_killed_supervisor_is_replaced(platform: RunningPlatform) -> None:
    status = platform.status()
    os.kill(status["supervisorPid"], signal.SIGKILL)
    pids = {p["name"]: p["pid"] for p in status["processes"]}
    holdfast("up", "--detach", "--state", str(platform.state))
    after = platform.status()
    assert after["supervisorPid"] not in (0, status["supervisorPid"])
    assert {p["name"]: p["pid"] for p in after["processes"]} == pids


def test_recorded_history_of_all_cells_violates_no_invariant(platform: RunningPlatform) -> None:
    """The simulation's checkers over the recorded histories, including the kills."""
    verdict = check_platform(platform.state)
    assert verdict.commits > 100
    assert not verdict.violations, "\n".join(map(str, verdict.violations[:10]))


def test_down_leaves_no_process_and_up_continues(platform: RunningPlatform) -> None:
    state = str(platform.state)
    holdfast("down", "--state", state)
    assert processes_of(platform.state) == []
    assert holdfast("status", "--state", state, check=False).returncode == 8
    again = json.loads(holdfast("up", "--detach", "--state", state, "-o", "json", timeout_s=150).stdout)
    assert again["serving"] is True
    # User changes to the samples are kept.
    assert platform.workload("analytics") == {}
    assert platform.workload("search-indexer")["wanted"] == 1
    holdfast("down", "--state", state, "--purge")
    assert processes_of(platform.state) == []
    assert not platform.state.exists()


def test_interrupt_of_foreground_platform_stops_everything(tmp_path: Path) -> None:
    state, base = tmp_path / "state", free_port_base()
    log = tmp_path / "up.log"
    with log.open("wb") as out:
        command = subprocess.Popen(
            holdfast_command(
                "up",
                "--regions",
                "us-east",
                "--agents",
                "1",
                "--no-samples",
                "--state",
                str(state),
                "--port-base",
                str(base),
            ),
            stdout=out,
            stderr=out,
            env={**os.environ, "CI": "true"},
            start_new_session=True,
        )
    try:
        wait_until(lambda: "Ctrl-C stops the platform" in log.read_text(), within_s=60, what="the platform is up")
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 0
    finally:
        command.kill()
        command.wait()
        holdfast("down", "--state", str(state), check=False)
    assert processes_of(state) == []
