"""explain, why-not, replay and plan against a running platform, as a user asks them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_up import free_port_base, holdfast

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300), pytest.mark.xdist_group("platform")]

WORKLOAD = """
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {name: big, namespace: search}
spec:
  replicas: 2
  template: {command: [sleep, "1000"], resources: {cpu: "2", memory: 1Gi}}
  placement: {regions: [us-east], nodeSelector: {disk: ssd}}
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("scheduling") / "platform"
    holdfast("up", "--detach", "--state", str(where), "--port-base", str(free_port_base()))
    yield where
    holdfast("down", "--state", str(where))


def test_explain_tells_the_story_of_a_replica_in_order(state: Path) -> None:
    told = json.loads(holdfast("explain", "payments/risk-api-us-east-0", "--state", str(state), "-o", "json").stdout)
    (story,) = told["stories"]
    stages = [event["stage"] for event in story["events"]]
    assert stages[:3] == ["Queued", "Decided", "Bound"]
    assert story["stands"] == "Serving"
    text = holdfast("explain", "payments/risk-api", "--state", str(state)).stdout
    assert "workload payments/risk-api" in text and "assigned 3 to region us-east" in text


def test_every_decision_of_a_fresh_platform_replays(state: Path) -> None:
    other = state / "other.yaml"
    other.write_text("scores:\n- {name: Packing, weight: 5}\n")
    done = holdfast("plan", "--policy", str(other), "--state", str(state), "-o", "json", check=False)
    compared = json.loads(done.stdout)
    assert compared["differences"] and done.returncode == 3
    replica = json.loads(holdfast("explain", "payments/risk-api-us-east-0", "--state", str(state), "-o", "json").stdout)
    decided = next(e for e in replica["stories"][0]["events"] if e["stage"] == "Decided")
    name = "payments/" + decided["text"].rsplit("decision ", 1)[1]
    assert "the same outcome, bit for bit" in holdfast("replay", name, "--state", str(state)).stdout


def test_why_not_names_what_is_in_the_way(state: Path) -> None:
    told = holdfast("why-not", "payments/risk-api-us-east-0", "us-east-2", "--state", str(state), "-o", "json")
    verdict = json.loads(told.stdout)
    assert verdict["node"] == "us-east-2"
    assert verdict["obstacles"] or verdict["score"] > 0


def test_plan_shows_what_would_wait_and_what_would_help(state: Path) -> None:
    manifest = state / "big.yaml"
    manifest.write_text(WORKLOAD)
    done = holdfast("plan", "-f", str(manifest), "--state", str(state), check=False)
    assert done.returncode == 4
    assert "LabelsDoNotMatch: needs disk=ssd" in done.stdout
    assert "to fit: label node us-east-1" in done.stdout
    drained = holdfast("plan", "--drain", "us-east-1", "--state", str(state), check=False)
    assert drained.returncode in (3, 4)
    assert "us-east-2" in drained.stdout
