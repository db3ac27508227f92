"""The example of programs around the main task, on a running platform: it serves, survives a killed agent, and ends."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.platforms import TENANCY, RunningPlatform, holdfast, processes_of, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "around" / "workload.yaml"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("around") / "state"
    with running_platform(state, "--regions", "us-east", "--agents", "1", "--no-samples") as up:
        yield up


def addresses(up: RunningPlatform) -> list[dict[str, Any]]:
    found = holdfast("endpoints", "library/catalog", "--state", str(up.state), "-o", "json", check=False)
    return list(json.loads(found.stdout)["addresses"]) if found.returncode == 0 else []


def logs(up: RunningPlatform, *more: str) -> str:
    return holdfast("logs", "library/catalog", *more, "--state", str(up.state), check=False).stdout


def page(address: dict[str, Any]) -> str:
    url = f"http://{address['address']}:{address['ports']['http']}/index.html"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_example_serves_survives_a_killed_agent_and_ends(platform: RunningPlatform) -> None:
    platform.apply(TENANCY[1], *yaml.safe_load_all(EXAMPLE.read_text()))
    wait_until(lambda: len(addresses(platform)) == 2, "both replicas serve", 120)
    for address in addresses(platform):
        assert page(address) == f"pages of {address['replica']}\n", "the init task filled the volume of this replica"
    assert "prepared" in logs(platform, "-c", "prepare") and "prepared" not in logs(platform)
    assert "prepared" in logs(platform, "-c", "prepare", "--api")
    refused = holdfast("logs", "library/catalog", "-c", "nobody", "--api", "--state", str(platform.state), check=False)
    assert refused.returncode != 0 and "reporter" in refused.stderr, "the message names the containers"
    before = {row["replica"]: page(row) for row in addresses(platform)}
    pods = json.loads(platform.kubectl("--context", "us-east", "get", "pods", "-n", "library", "-o", "json"))["items"]
    names = [one["name"] for one in pods[0]["spec"]["initContainers"]]
    assert names == ["prepare", "reporter"] and pods[0]["spec"]["containers"][0]["name"] == "work"
    printed = platform.kubectl(
        "--context", "us-east", "logs", "-n", "library", pods[0]["metadata"]["name"], "-c", "prepare"
    )
    assert "prepared" in printed
    agents = [str(one["name"]) for one in platform.status()["processes"] if "agent" in str(one["name"])]
    for name in agents:
        os.kill(platform.pid(name), signal.SIGKILL)
    assert agents
    wait_until(lambda: len(addresses(platform)) == 2, "both replicas serve again", 120)
    assert {row["replica"]: page(row) for row in addresses(platform)} == before
    to_zero = '{"spec":{"replicas":0}}'
    platform.kubectl(
        "--context", "global", "patch", "workload", "catalog", "-n", "library", "--type", "merge", "-p", to_zero
    )
    programs = ("http.server", "du -s")
    wait_until(lambda: not any(p in line for line in processes_of(platform.state) for p in programs), "all ended", 120)
