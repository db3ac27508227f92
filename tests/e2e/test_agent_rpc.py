"""Calls to agents over their stream: logs, commands and usage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from tests.platforms import RunningPlatform, holdfast, holdfast_command, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("asking") / "state") as running:
        yield running


def replica(platform: RunningPlatform) -> str:
    top_output = json.loads(
        holdfast("endpoints", "payments/risk-api", "--state", str(platform.state), "-o", "json").stdout
    )
    return str(top_output["addresses"][0]["replica"])


def test_exec_runs_in_the_environment_of_the_replica(platform: RunningPlatform) -> None:
    name = replica(platform)
    completed = holdfast(
        "exec",
        f"payments/{name}",
        "--state",
        str(platform.state),
        "--",
        "sh",
        "-c",
        "echo $HOLDFAST_REPLICA; exit 7",
        check=False,
    )
    assert (completed.stdout.strip(), completed.returncode) == (name, 7)
    slow = holdfast(
        "exec", f"payments/{name}", "--timeout", "1", "--state", str(platform.state), "--", "sleep", "30", check=False
    )
    assert slow.returncode == 1 and "did not finish within 1 s" in slow.stderr
    missing = holdfast("exec", f"payments/{name}", "--state", str(platform.state), "--", "no-such-program", check=False)
    assert missing.returncode == 127


def test_logs_are_read_through_the_region_and_followed(platform: RunningPlatform) -> None:
    name = replica(platform)
    whole = holdfast("logs", "--api", f"payments/{name}", "--state", str(platform.state)).stdout
    assert "listens on" in whole
    followed = platform.state / "followed.txt"
    with followed.open("wb") as out:
        follower = subprocess.Popen(
            holdfast_command(
                "logs", "--api", "-f", "--tail", "0", "search/search-indexer", "--state", str(platform.state)
            ),
            stdout=out,
        )
    try:
        wait_until(lambda: "has indexed" in followed.read_text(), within_s=30, what="new lines arrive")
    finally:
        follower.send_signal(signal.SIGINT)
        follower.wait(20)


def test_top_shows_use_and_requests(platform: RunningPlatform) -> None:
    def rows() -> dict[str, dict[str, int]]:
        top_output = json.loads(
            holdfast("top", "--by", "workload", "--state", str(platform.state), "-o", "json").stdout
        )
        return {row["name"]: row for row in top_output["rows"]}

    risk = rows()["payments/risk-api"]
    assert (risk["replicas"], risk["cpuRequested"], risk["processes"]) == (6, 3000, 6)
    assert 0 < risk["memory"] < risk["memoryRequested"]


def test_top_starts_without_the_modules_of_kinds(platform: RunningPlatform) -> None:
    """Half of the second that `top` may take is the agents' measurement. Imports of every kind would take a third."""
    traced = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    command = holdfast_command("top", "--state", str(platform.state))
    done = subprocess.run(command, env=traced, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "holdfast.platform.resource_usage" in imported
    assert not imported & {"holdfast.model.kinds", "holdfast.model.template", "holdfast.platform.supervisor"}


def test_top_answers_in_less_than_a_second(platform: RunningPlatform) -> None:
    """The quickest of several runs: other tests may use the processors."""

    def took_s() -> float:
        began = time.monotonic()
        assert top_output(platform, after_s=0.0)["rows"]
        return time.monotonic() - began

    wait_until(lambda: took_s() < 1.0, "a run of less than a second")


def test_unreachable_agent_is_named_until_it_returns(platform: RunningPlatform) -> None:
    node = platform.status()["nodes"][0]["name"]
    os.kill(platform.pid(f"agent-{node}"), signal.SIGKILL)
    wait_until(lambda: not top_output(platform)["unreachable"], within_s=60, what="every agent answers again")
    assert any(row["name"] == node for row in top_output(platform)["rows"])


def top_output(platform: RunningPlatform, after_s: float = 0.2) -> dict[str, list[dict[str, str]]]:
    time.sleep(after_s)
    found: dict[str, list[dict[str, str]]] = json.loads(
        holdfast("top", "--state", str(platform.state), "-o", "json").stdout
    )
    return found
