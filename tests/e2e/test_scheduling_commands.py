"""explain, why-not, replay and plan against a running platform."""

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

LAB = """
apiVersion: holdfast.dev/v1
kind: Tenant
metadata: {name: lab}
---
apiVersion: holdfast.dev/v1
kind: Quota
metadata: {name: quota, namespace: lab}
spec: {hard: {cpu: "2", memory: 2Gi}}
---
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {name: many, namespace: lab}
spec: {type: Service, replicas: 9, template: {command: [sleep, "1000"], resources: {cpu: 300m, memory: 64Mi}}}
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
    with running_platform(tmp_path_factory.mktemp("scheduling") / "platform") as running:
        yield running.state


def test_explain_prints_the_timeline_of_a_replica_in_order(state: Path) -> None:
    output = json.loads(holdfast("explain", "payments/risk-api-us-east-0", "--state", str(state), "-o", "json").stdout)
    (timeline,) = output["timelines"]
    stages = [event["stage"] for event in timeline["events"]]
    assert stages[:3] == ["Queued", "Decided", "Bound"]
    assert timeline["stage"] == "Serving"
    text = holdfast("explain", "payments/risk-api", "--state", str(state)).stdout
    assert "workload payments/risk-api" in text and "assigned 3 to region us-east" in text


def test_every_decision_of_a_new_platform_replays(state: Path) -> None:
    other = state / "other.yaml"
    other.write_text("scores:\n- {name: Packing, weight: 5}\n")
    completed = holdfast("plan", "--policy", str(other), "--state", str(state), "-o", "json", check=False)
    compared = json.loads(completed.stdout)
    assert compared["differences"] and completed.returncode == 3
    replica = json.loads(holdfast("explain", "payments/risk-api-us-east-0", "--state", str(state), "-o", "json").stdout)
    decided = next(e for e in replica["timelines"][0]["events"] if e["stage"] == "Decided")
    name = "payments/" + decided["text"].rsplit("decision ", 1)[1]
    assert "identical outcome" in holdfast("replay", name, "--state", str(state)).stdout


def test_why_not_names_the_failing_rule(state: Path) -> None:
    output = holdfast("why-not", "payments/risk-api-us-east-0", "us-east-2", "--state", str(state), "-o", "json")
    verdict = json.loads(output.stdout)
    assert verdict["node"] == "us-east-2"
    assert verdict["blockers"] or verdict["score"] > 0


def test_plan_shows_pending_replicas_and_fixes(state: Path) -> None:
    manifest = state / "big.yaml"
    manifest.write_text(WORKLOAD)
    completed = holdfast("plan", "-f", str(manifest), "--state", str(state), check=False)
    assert completed.returncode == 4
    assert "LabelsDoNotMatch: needs disk=ssd" in completed.stdout
    assert "to fit: relax spec.placement.nodeSelector; or: label node us-east-" in completed.stdout
    drained = holdfast("plan", "--drain", "us-east-1", "--state", str(state), check=False)
    assert drained.returncode in (3, 4)
    assert "us-east-2" in drained.stdout


def test_plan_shows_removals_and_refusals(state: Path) -> None:
    smaller = state / "smaller.yaml"
    samples = (Path(__file__).parents[2] / "examples" / "workloads.yaml").read_text()
    smaller.write_text(samples.replace("replicas: 6", "replicas: 4"))
    completed = holdfast("plan", "-f", str(smaller), "--state", str(state), "-o", "json", check=False)
    output = json.loads(completed.stdout)
    assert completed.returncode == 3 and len(output["removals"]) == 2
    assert output["changes"][0]["fields"] == [{"field": "replicas", "old": 6, "new": 4}]
    smaller.write_text(samples.replace("namespace: search", "namespace: serch").replace("priorityClassName", "prio"))
    refused = holdfast("plan", "-f", str(smaller), "--state", str(state), check=False)
    assert refused.returncode == 4
    assert "search-indexer would be refused: " in refused.stdout and 'unknown field "spec.prio"' in refused.stdout


def test_commands_query_all_regions_also_through_kubeconfig(state: Path) -> None:
    for where in (state, state / "kubeconfig"):
        output = json.loads(holdfast("get", "nodes", "--state", str(where), "-o", "json").stdout)
        assert sorted({item["cell"] for item in output["items"]}) == ["eu-central", "eu-west", "us-east"]
        table = holdfast("get", "rep", "-n", "payments", "--state", str(where)).stdout
        assert table.splitlines()[0].split()[:3] == ["CELL", "NAME", "STAGE"] and "risk-api-us-east-0" in table
        assert "workload payments/risk-api" in holdfast("explain", "payments/risk-api", "--state", str(where)).stdout
    mistyped = holdfast("get", "nods", "--state", str(state), check=False)
    assert mistyped.returncode == 2 and "did you mean nodes?" in mistyped.stderr


def test_explain_gives_reason_of_a_crashing_workload(state: Path) -> None:
    manifest = state / "crash.yaml"
    manifest.write_text(CRASHES)
    kubectl = ["kubectl", "--kubeconfig", str(state / "kubeconfig")]
    subprocess.run([*kubectl, "apply", "-f", str(manifest)], check=True, timeout=60)

    def output() -> str:
        return holdfast("explain", "search/crashes", "--state", str(state)).stdout

    wait_until(
        lambda: "failing: 1 in us-east: Exited (exit code 3)" in output(),
        within_s=60,
        what="the condition has the reason",
    )
    wait_until(
        lambda: "fix:     read its output: holdfast logs search/crashes-us-east-0" in output(),
        within_s=60,
        what="the timeline of its replica has the fix",
    )
    pod = [*kubectl, "--context", "us-east", "-n", "search", "logs", "crashes-us-east-0.1"]
    assert "boo" in subprocess.run(pod, check=True, timeout=60, capture_output=True, text=True).stdout


def test_override_of_unknown_object_is_refused(state: Path) -> None:
    arguments = ("override", "create", "AvoidZone", "--region", "eu-west", "--reason", "cooling", "--state", str(state))
    mistyped = holdfast(*arguments, "--zone", "eu-west-z", "--yes", check=False)
    assert mistyped.returncode == 2 and "expected one of eu-west-a, eu-west-b" in mistyped.stderr
    unconfirmed = holdfast(*arguments, "--zone", "eu-west-a", check=False)
    assert "next: add --yes" in unconfirmed.stderr and unconfirmed.returncode == 130
    assert json.loads(holdfast("override", "list", "--state", str(state), "-o", "json").stdout) == []


def test_tenant_user_sees_own_workloads_and_names_of_hidden_parts(state: Path) -> None:
    token = holdfast("token", "create", "ann", "--tenant", "payments", "--state", str(state)).stdout.strip()
    kubeconfig = state / "ann.kubeconfig"
    kubeconfig.write_text(holdfast("kubeconfig", "--token", token, "--state", str(state)).stdout)
    assert "workload payments/risk-api" in holdfast("explain", "payments/risk-api", "--state", str(kubeconfig)).stdout
    output = holdfast("explain", "payments/risk-api-us-east-0", "--state", str(kubeconfig)).stdout
    assert "chose node" in output and "no action needed: serving" in output
    assert holdfast("explain", "search/search-indexer", "--state", str(kubeconfig), check=False).returncode == 7
    assert "nodes of us-east" in holdfast("status", "--state", str(kubeconfig)).stdout.splitlines()[-1]


def test_the_raise_of_the_quota_that_explain_names_is_sufficient(state: Path) -> None:
    manifest = state / "lab.yaml"
    manifest.write_text(LAB)
    planned = holdfast("plan", "-f", str(manifest), "--state", str(state), check=False)
    assert planned.returncode == 4 and "would be refused" not in planned.stdout and "QuotaExceeded" in planned.stdout
    kubectl = ["kubectl", "--kubeconfig", str(state / "kubeconfig")]
    subprocess.run([*kubectl, "apply", "-f", str(manifest)], check=True, capture_output=True)

    def named_raise() -> str:
        output = json.loads(holdfast("explain", "lab/many", "--state", str(state), "-o", "json").stdout)
        fixes = [timeline["suggestedFix"] for timeline in output["timelines"]]
        return next((fix for fix in fixes if "raise the Quota of tenant lab by 700m cpu, to 2700m cpu" in fix), "")

    wait_until(named_raise, "explain names the raise")
    merge = json.dumps({"spec": {"hard": {"cpu": "2700m"}}})
    subprocess.run(
        [*kubectl, "-n", "lab", "patch", "quota", "quota", "--type=merge", "-p", merge], check=True, capture_output=True
    )

    def all_serve() -> bool:
        output = json.loads(holdfast("status", "--state", str(state), "-o", "json").stdout)
        return any(w["tenant"] == "lab" and w["serving"] == 9 for w in output["workloads"])

    wait_until(all_serve, "all replicas serve after the raise")
