"""The drill, for real: a region's processes are killed on a whole platform, and the promise holds on the clock."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def holdfast(*words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, timeout=timeout_s, check=False
    )


def free_port_base() -> int:
    for base in range(26000, 40000, 700):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", base)) != 0:
                return base
    raise RuntimeError("no free range of ports")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory):
    state: Path = tmp_path_factory.mktemp("drill") / "platform"
    up = holdfast(
        "up", "--detach", "--quiet", "--state", str(state), "--port-base", str(free_port_base()), timeout_s=180
    )
    try:
        assert up.returncode == 0, up.stderr
        yield str(state)
    finally:
        holdfast("down", "--purge", "--quiet", "--state", str(state), timeout_s=120)


def test_a_lost_region_is_recovered_within_a_minute_and_everything_is_given_back(platform: str) -> None:
    ran = holdfast(
        "drill", "run", "region-loss", "--region", "eu-central", "--state", platform, "-o", "json", timeout_s=400
    )
    report = json.loads(ran.stdout)
    assert ran.returncode == 0, ran.stdout
    assert report["seconds_to_four_serving"] < 60
    assert report["violations"] == [] and report["leftovers"] == []
    assert {"region lost", "assigned", "bound", "serving"} <= set(report["clock"])
    assert len(report["questions"]) == 6 and all(report["questions"].values())
    clean = holdfast("cleanup-check", "--state", platform, timeout_s=30)
    assert clean.returncode == 0, clean.stdout


def test_a_region_cut_off_from_the_global_cell_goes_on_alone(platform: str) -> None:
    ran = holdfast(
        "drill", "run", "cut-off", "--region", "eu-central", "--seconds", "45", "--state", platform, "-o", "json",
        timeout_s=300,
    )  # fmt: skip
    report = json.loads(ran.stdout)
    assert ran.returncode == 0, ran.stdout
    assert report["clock"]["replaced without the global cell"] < 45 and report["violations"] == []


def test_the_plan_says_beforehand_what_the_drill_does(platform: str) -> None:
    told = json.loads(
        holdfast("plan", "--lose-region", "us-east", "--state", platform, "-o", "json", timeout_s=30).stdout
    )
    assert told["short"] == []
    assert {row["workload"] for row in (*told["recovers"], *told["safe"])} == {"risk-api"}


def test_an_override_needs_a_second_person_and_ends_by_itself(platform: str) -> None:
    asked = holdfast(
        "override", "create", "EmergencyQuota", "--tenant", "payments", "--quota", "cpu=1", "--reason", "test",
        "--ttl", "5", "--yes", "--name", "e1", "--state", platform, timeout_s=30,
    )  # fmt: skip
    assert "Pending" in asked.stdout, asked.stderr
    own = holdfast("override", "approve", "e1", "--state", platform, timeout_s=30)
    assert own.returncode == 1 and "cannot approve it" in own.stderr
    left = holdfast("cleanup-check", "--state", platform, timeout_s=30)
    assert left.returncode == 1 and "override/e1" in left.stdout
