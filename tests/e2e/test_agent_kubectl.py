"""`kubectl cordon`, `drain` and `uncordon` on a real platform, with every installed kubectl."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import ROOT, TENANCY, RunningPlatform, holdfast, running_platform, wait_until
from tests.requirements import skip_or_fail

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(400)]

NODE = "us-east-1"


def programs() -> list[str]:
    found = [str(p) for p in sorted(Path("/usr/lib/google-cloud-sdk/bin").glob("kubectl.1.*"))]
    plain = shutil.which("kubectl") or str(ROOT / ".tools" / "bin" / "kubectl")
    return [p for p in (plain, *found) if Path(p).exists()]


def workload(name: str, replicas: int, max_unavailable: int) -> dict[str, Any]:
    template = {
        "command": ["sleep", "600"],
        "resources": {"cpu": "10m", "memory": "16Mi"},
        "terminationGraceSeconds": 1,
        "drainDelaySeconds": 0,
    }
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "acme"},
        "spec": {"replicas": replicas, "template": template, "disruption": {"maxUnavailable": max_unavailable}},
    }


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    if not programs():
        skip_or_fail("kubectl is missing; next: make tools")
    state = tmp_path_factory.mktemp("kubectl") / "state"
    with running_platform(state, "--regions", "us-east", "--no-samples") as running:
        running.apply(*TENANCY, workload("web", 6, 2))
        wait_until(lambda: running.workload("web").get("serving") == 6, within_s=90, what="all of it serves")
        yield running


def kubectl(
    running: RunningPlatform, program: str, *arguments: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    command = [
        program,
        "--kubeconfig",
        str(running.state / "kubeconfig"),
        "--context",
        "us-east",
        "--cache-dir",
        str(running.state / "kube-cache"),
        *arguments,
    ]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if check:
        assert completed.returncode == 0, f"{' '.join(arguments)}: {completed.stdout}\n{completed.stderr}"
    return completed


def spec(running: RunningPlatform) -> dict[str, Any]:
    output = kubectl(running, programs()[0], "get", "nodes.holdfast.dev", NODE, "-o", "json").stdout
    found: dict[str, Any] = json.loads(output)["spec"]
    return found


@pytest.mark.parametrize("program", programs(), ids=lambda p: Path(p).name)
def test_cordon_stops_and_uncordon_resumes_scheduling(platform: RunningPlatform, program: str) -> None:
    assert f"node/{NODE} cordoned" in kubectl(platform, program, "cordon", NODE).stdout
    assert spec(platform)["unschedulable"] is True
    assert "Cordoned" in kubectl(platform, program, "get", "node", NODE).stdout
    assert f"node/{NODE} uncordoned" in kubectl(platform, program, "uncordon", NODE).stdout
    assert not spec(platform).get("unschedulable")
    description = kubectl(platform, program, "describe", "node", NODE).stdout
    assert "Ready" in description and " 0001 " not in description, "no time is the zero time"


@pytest.mark.parametrize("program", programs(), ids=lambda p: Path(p).name)
def test_pods_have_the_columns_and_conditions_of_kubernetes(platform: RunningPlatform, program: str) -> None:
    chosen = ("-n", "acme", "-l", "holdfast.dev/workload=web")
    kubectl(platform, program, "wait", "--for=condition=Ready", "pod", *chosen, "--timeout=60s")
    header, *rows = kubectl(platform, program, "get", "pods", *chosen).stdout.splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert len(rows) == 6 and all(row.split()[1:4] == ["1/1", "Running", "0"] for row in rows)
    assert "0001" not in kubectl(platform, program, "describe", "pod", *chosen).stdout, "no time is the zero time"


@pytest.mark.parametrize("program", programs()[:1] + programs()[-1:], ids=lambda p: Path(p).name)
def test_drain_empties_the_node_until_uncordon(platform: RunningPlatform, program: str) -> None:
    pods = json.loads(kubectl(platform, program, "get", "pods", "-A", "-o", "json").stdout)["items"]
    assert [p for p in pods if p["spec"]["nodeName"] == NODE], "there is something to drain"
    completed = kubectl(platform, program, "drain", NODE, "--timeout=90s")
    assert f"node/{NODE} drained" in completed.stdout
    left = kubectl(platform, program, "get", "pods", "-A", "--field-selector", f"spec.nodeName={NODE}", "-o", "name")
    assert not left.stdout.strip()
    wait_until(lambda: platform.workload("web").get("serving") == 6, within_s=60, what="all of it serves elsewhere")
    kubectl(platform, program, "uncordon", NODE)
    assert not spec(platform).get("drain")
    # Drain the other node too, so that the next run has something to drain.
    holdfast("node", "drain", "us-east-2", "--deadline", "60", "--state", str(platform.state), timeout_s=100)
    holdfast("node", "uncordon", "us-east-2", "--state", str(platform.state))


def test_drain_names_replicas_blocked_by_budget(platform: RunningPlatform) -> None:
    holdfast("node", "cordon", "us-east-2", "--state", str(platform.state))
    platform.apply(workload("stays", 1, 0))
    wait_until(lambda: platform.workload("stays").get("serving") == 1, within_s=60, what="it serves")
    holdfast("node", "uncordon", "us-east-2", "--state", str(platform.state))
    started_s = time.monotonic()
    completed = kubectl(platform, programs()[-1], "drain", NODE, "--timeout=6s", check=False)
    assert completed.returncode != 0
    assert time.monotonic() - started_s < 20, "kubectl keeps to its own deadline"
    assert "acme/stays-us-east-0: disruption budget: disruption.maxUnavailable is 0" in completed.stderr
    kubectl(platform, programs()[-1], "uncordon", NODE)
