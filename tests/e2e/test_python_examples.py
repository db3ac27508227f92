"""The Python examples run as written on a real platform; `holdfast readiness` reviews the same platform."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from evidence_makers import Run, drill_evidence
from tests.platforms import ROOT, RunningPlatform, holdfast, running_platform

from holdfast.client import NotFound, connect
from holdfast.insight.queries import explain, plan_region_loss, why_not
from holdfast.model.times import parse_time
from holdfast.model.workload import Workload
from holdfast.readiness.claims import CLAIMS
from holdfast.readiness.evidence import Bound, EvidenceKind, Need
from holdfast.readiness.judgement import Expected, Standing, judge

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(400)]

EXAMPLES = {
    "deploy_and_wait.py": ["stored as generation 1", "2 replicas serve", "scaled to 1", "deleted"],
    "why_pending.py": ["plan: too-big", "no node", "because", "next scheduler"],
    "watch_replicas.py": ["added    watched-us-east-0", "Serving"],
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("python") / "platform") as running:
        yield running


def test_every_example_has_expected_output() -> None:
    assert {path.name for path in (ROOT / "examples" / "python").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_as_written(platform: RunningPlatform, name: str) -> None:
    target = platform.state if name != "why_pending.py" else platform.state / "kubeconfig"
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "python" / name, target], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for text in EXAMPLES[name]:
        assert text in done.stdout, done.stdout


def test_client_reads_with_a_tenant_token_by_url(platform: RunningPlatform) -> None:
    state = str(platform.state)
    token = holdfast("token", "create", "reader", "--tenant", "search", "--state", state).stdout.split()[-1]
    ca = platform.state / "pki" / "ca.crt"
    with connect(url=f"https://127.0.0.1:{platform.base}", token=token, ca=ca) as client:
        assert client.list(Workload, "search")
        with pytest.raises(NotFound, match="workload search/none: not found; next: holdfast get workloads -n search"):
            client.get(Workload, "none", "search")


def test_queries_of_python_equal_those_of_the_command_line(platform: RunningPlatform) -> None:
    state = str(platform.state)
    with connect(platform.state) as client:
        found = explain(client, "payments/risk-api-us-east-0")
        printed = json.loads(holdfast("explain", "payments/risk-api-us-east-0", "--state", state, "-o", "json").stdout)
        assert json.loads(msgspec.json.encode(found)) == printed
        assert why_not(client, "payments/risk-api-us-east-0", "us-east-1").node == "us-east-1"
        assert plan_region_loss(client, "eu-west")["lost"]["region"] == "eu-west"
        with pytest.raises(NotFound, match="payments/none: no such workload or replica; next: "):
            explain(client, "payments/none")
        with pytest.raises(NotFound, match="node none: not in region us-east"):
            why_not(client, "payments/risk-api-us-east-0", "none")


def test_readiness_names_unproven_promises_and_missing_backups(platform: RunningPlatform, tmp_path: Path) -> None:
    state = str(platform.state)
    done = holdfast("readiness", "--state", state, "-o", "json", check=False)
    assert done.returncode == 1, done.stderr
    found = [f"{f['check']} {f['level']}: {f['text']}" for f in json.loads(done.stdout)["findings"]]
    assert any(text.startswith("drills problem: workload payments/risk-api: never proven") for text in found), found
    assert "backups problem: cell global: never backed up" in found
    assert "links ok: region us-east: in contact" in found
    assert any(text.startswith("alerts unknown") for text in found)
    cell = platform.state / "cells" / "global"
    holdfast("backup", "--cell", "global", "--state", str(cell), "--to", str(tmp_path / "global.backup"))
    table = holdfast("readiness", "--state", state, "--all", check=False).stdout
    assert "cell global: last backup 0.0 hours ago" in table
    assert "cell global: no backup was ever restored" in table
    assert "holdfast drill run region-loss --region REGION" in table


def test_readiness_of_a_kubeconfig_lists_what_it_cannot_read(platform: RunningPlatform) -> None:
    done = holdfast("readiness", "--state", str(platform.state / "kubeconfig"), "-o", "json", check=False)
    unknown = {f["check"]: f["text"] for f in json.loads(done.stdout)["findings"] if f["level"] == "unknown"}
    assert {"drills", "backups", "alerts"} <= set(unknown)
    assert "the platform is remote" in unknown["backups"]


def test_report_of_a_real_drill_is_evidence_and_its_absence_is_not(platform: RunningPlatform) -> None:
    need = Need(EvidenceKind.DRILL, "timeout-after-commit", bounds={"questionsAnswered": Bound(least=6)})
    ended = holdfast(
        "drill", "run", need.name, "--region", "eu-west", "--state", str(platform.state), "-o", "json", timeout_s=200
    )
    evidence = drill_evidence(Run("0123456789ab", 1, print), need, ended, 1.0)
    claim = msgspec.structs.replace(CLAIMS[1], needs=(need,))
    expected = Expected("0123456789ab", parse_time(evidence.made_at))
    assert judge((claim,), {need.title: evidence}, expected).claims[0].holds, evidence
    missing = judge((claim,), {}, expected).claims[0]
    assert not missing.holds and missing.findings[0].standing is Standing.MISSING
    other = judge((claim,), {need.title: evidence}, msgspec.structs.replace(expected, revision="fedcba987654"))
    assert other.fallen[0].findings[0].standing is Standing.STALE
