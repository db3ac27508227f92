"""Runbooks about finalizers that are really overdue: every process of the platform sees two hours pass at once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]

FOREIGN = "example.com/billing-export"
OWN = "holdfast.dev/assignments"


# Loaded by every Python process: its wall clock is ahead by the seconds in a file. Monotonic clocks are untouched.
STEP_OF_THE_WALL_CLOCK = """
import os, time
_real, _path = time.time, os.environ.get("TEST_CLOCK_OFFSET", "")
def _stepped():
    try:
        with open(_path) as file:
            return _real() + float(file.read() or 0)
    except (OSError, ValueError):
        return _real()
if _path:
    time.time = _stepped
    time.time_ns = lambda: int(_stepped() * 1e9)
"""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the offset of the wall clock in every process that the test starts."""
    path = tmp_path_factory.mktemp("clock") / "offset"
    path.write_text("0")
    return path


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, clock: Path) -> Iterator[RunningPlatform]:
    folder = tmp_path_factory.mktemp("step")
    (folder / "sitecustomize.py").write_text(STEP_OF_THE_WALL_CLOCK)
    settings = {"PYTHONPATH": str(folder), "TEST_CLOCK_OFFSET": str(clock)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        state = tmp_path_factory.mktemp("finalizers") / "state"
        with running_platform(state, "--regions", "us-east,eu-west", "--agents", "1", "--no-samples") as running:
            running.apply(*TENANCY)
            yield running


def workload(name: str, *finalizers: str) -> dict[str, Any]:
    template = {"command": ["sleep", "1000000"], "resources": {"cpu": "50m", "memory": "32Mi"}}
    return {
        "apiVersion": V1,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "acme", "finalizers": list(finalizers)},
        "spec": {"replicas": 1, "template": template, "placement": {"regions": ["eu-west"]}},
    }


def run(platform: RunningPlatform, *words: str) -> tuple[str, dict[str, Any]]:
    """A run of a runbook, or its continuation, and its record."""
    state = ("--state", str(platform.state))
    printed = holdfast("runbook", *words, "--yes", *state, timeout_s=300, check=False).stdout
    return printed, json.loads(holdfast("runbook", "show", "last", "-o", "json", *state).stdout)


def settings(**values: str) -> list[str]:
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def stuck(platform: RunningPlatform) -> str:
    return holdfast("repair", "list", "--state", str(platform.state), check=False).stdout


def test_overdue_finalizers_end_by_their_runbooks(platform: RunningPlatform, clock: Path) -> None:
    platform.apply(workload("exported", FOREIGN), workload("kept"))
    wait_until(lambda: "Running" in platform.kubectl("-n", "acme", "get", "pods", check=False), "the work runs")
    wait_until(lambda: platform.kubectl("get", "assignments", "-A").count("eu-west") >= 2, "both are assigned")
    # The region does not answer, so `assign` cannot empty the Assignment of `kept`.
    region = platform.pid("cell-eu-west")
    os.kill(region, signal.SIGSTOP)
    try:
        platform.kubectl("-n", "acme", "delete", "workload", "exported", "kept", "--wait=false")
        assert FOREIGN not in stuck(platform)  # not overdue yet
        refused = ("run", "foreign-finalizer", *settings(kind="Workload", object="acme/exported", finalizer=FOREIGN))
        printed, record = run(platform, *refused)
        assert record["state"] == "Waiting"
        _, record = run(platform, "continue", record["id"])
        assert (record["state"], "not overdue" in record["steps"][-1]["output"]) == ("Failed", True)

        clock.write_text("7200")
        wait_until(lambda: FOREIGN in stuck(platform) and OWN in stuck(platform), "both are overdue")
        # One of Holdfast with work left is not removed: the runbook says what is left.
        own = settings(kind="Workload", object="acme/kept", finalizer=OWN)
        _, record = run(platform, "run", "stuck-finalizer", *own)
        assert record["state"] == "Failed"
        assert "Assignment acme/kept" in record["steps"][-1]["output"]
    finally:
        os.kill(region, signal.SIGCONT)
    wait_until(lambda: "kept" not in stuck(platform), "the owner ends the deletion when the region is back", 120)
    assert "NotFound" in platform.kubectl("-n", "acme", "get", "workload", "kept", check=False)

    printed, record = run(platform, *refused)
    assert record["steps"][-1]["title"] == "The finalizer's work is done"
    assert platform.kubectl("-n", "acme", "get", "workload", "exported")  # nothing happens before a person vouches
    printed, record = run(platform, "continue", record["id"])
    assert record["state"] == "Finished", record
    assert "Finished. Tell users:" in printed
    assert "tell its author" in printed
    assert "NotFound" in platform.kubectl("-n", "acme", "get", "workload", "exported", check=False)
    object_ = ("Workload/exported", "-n", "acme")
    audited = holdfast("audit", "search", *object_, "--state", str(platform.state), "-o", "json").stdout
    assert "patch" in audited.lower()
