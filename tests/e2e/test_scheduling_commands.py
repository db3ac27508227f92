"""explain, why-not, replay and plan against a running platform, as a user asks them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.platforms import holdfast, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]

WORKLOAD = """
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {name: big, namespace: search}
spec:
  replicas: 2
  template: {command: [sleep, "1000"], resources: {cpu: "2", memory: 1Gi}}
  placement: {regions: [us-east], nodeSelector: {disk: ssd}}
"""

CRASHES = """
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {name: crashes, namespace: search}
spec:
  template: {command: [sh, -c, "echo boo; exit 3"], resources: {cpu: 10m, memory: 16Mi}}
  placement: {regions: [us-east]}
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running_platform(tmp_path_factory.mktemp("scheduling") / "platform") as up:
        yield up.state


def test_explain_tells_the_story_of_a_replica_in_order(state: Path) -> None:
    told = json.loads(holdfast("explain", "payments/risk-api-us-east-0", "--state", str(state), "-o", "json").stdout)
    (story,) = told["timelines"]
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
    decided = next(e for e in replica["timelines"][0]["events"] if e["stage"] == "Decided")
    name = "payments/" + decided["text"].rsplit("decision ", 1)[1]
    assert "identical outcome" in holdfast("replay", name, "--state", str(state)).stdout


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


def test_plan_shows_what_would_go_and_what_would_be_refused(state: Path) -> None:
    smaller = state / "smaller.yaml"
    samples = (Path(__file__).parents[2] / "examples" / "workloads.yaml").read_text()
    smaller.write_text(samples.replace("replicas: 6", "replicas: 4"))
    done = holdfast("plan", "-f", str(smaller), "--state", str(state), "-o", "json", check=False)
    told = json.loads(done.stdout)
    assert done.returncode == 3 and len(told["removals"]) == 2
    assert told["changes"][0]["fields"] == [{"field": "replicas", "old": 6, "new": 4}]
    smaller.write_text(samples.replace("namespace: search", "namespace: serch").replace("priorityClassName", "prio"))
    refused = holdfast("plan", "-f", str(smaller), "--state", str(state), check=False)
    assert refused.returncode == 4
    assert "search-indexer would be refused: " in refused.stdout and 'unknown field "spec.prio"' in refused.stdout


def test_every_region_is_asked_at_once_and_through_a_kubeconfig_as_well(state: Path) -> None:
    for where in (state, state / "kubeconfig"):
        told = json.loads(holdfast("get", "nodes", "--state", str(where), "-o", "json").stdout)
        assert sorted({item["cell"] for item in told["items"]}) == ["eu-central", "eu-west", "us-east"]
        table = holdfast("get", "rep", "-n", "payments", "--state", str(where)).stdout
        assert table.splitlines()[0].split()[:3] == ["CELL", "NAME", "STAGE"] and "risk-api-us-east-0" in table
        assert "workload payments/risk-api" in holdfast("explain", "payments/risk-api", "--state", str(where)).stdout
    typo = holdfast("get", "nods", "--state", str(state), check=False)
    assert typo.returncode == 2 and "did you mean nodes?" in typo.stderr


def test_explain_says_why_a_workload_that_crashes_does_not_serve(state: Path) -> None:
    manifest = state / "crash.yaml"
    manifest.write_text(CRASHES)
    kubectl = ["kubectl", "--kubeconfig", str(state / "kubeconfig")]
    subprocess.run([*kubectl, "apply", "-f", str(manifest)], check=True, timeout=60)

    def told() -> str:
        return holdfast("explain", "search/crashes", "--state", str(state)).stdout

    wait_until(
        lambda: "failing: 1 in us-east: Exited (exit code 3)" in told(), within_s=60, what="the condition says why"
    )
    wait_until(lambda: "fix:     see what it wrote: holdfast logs search/crashes-us-east-0" in told(), within_s=60,
          what="the story of its replica is told")  # fmt: skip
    pod = [*kubectl, "--context", "us-east", "-n", "search", "logs", "crashes-us-east-0.1"]
    assert "boo" in subprocess.run(pod, check=True, timeout=60, capture_output=True, text=True).stdout


def test_an_override_of_something_that_does_not_exist_is_refused(state: Path) -> None:
    words = ("override", "create", "AvoidZone", "--region", "eu-west", "--reason", "cooling", "--state", str(state))
    typo = holdfast(*words, "--zone", "eu-west-z", "--yes", check=False)
    assert typo.returncode == 2 and "choose one of eu-west-a, eu-west-b" in typo.stderr
    asked = holdfast(*words, "--zone", "eu-west-a", check=False)
    assert "--yes creates it without asking" in asked.stderr and asked.returncode == 130
    assert json.loads(holdfast("override", "list", "--state", str(state), "-o", "json").stdout) == []


def test_a_tenant_asks_about_its_own_work_and_is_told_what_is_hidden(state: Path) -> None:
    token = holdfast("token", "create", "ann", "--tenant", "payments", "--state", str(state)).stdout.strip()
    mine = state / "ann.kubeconfig"
    mine.write_text(holdfast("kubeconfig", "--token", token, "--state", str(state)).stdout)
    assert "workload payments/risk-api" in holdfast("explain", "payments/risk-api", "--state", str(mine)).stdout
    told = holdfast("explain", "payments/risk-api-us-east-0", "--state", str(mine)).stdout
    assert "chose node" in told and "nobody has to act: it serves" in told
    assert holdfast("explain", "search/search-indexer", "--state", str(mine), check=False).returncode == 7
    assert "nodes of us-east" in holdfast("status", "--state", str(mine)).stdout.splitlines()[-1]
