"""Stock kubectl and `holdfast` on the global cell of a real platform, while a region is there and while it is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.platforms import ROOT, RunningPlatform, holdfast, running_platform, wait_until
from tests.requirements import skip_or_fail

from holdfast.drills import outage
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("fleet") / "state"
    with running_platform(state, "--regions", "us-east,eu-west", "--no-provider") as running:
        yield running


def kubectl(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    tool = ROOT / ".tools" / "bin" / "kubectl"
    program = str(tool) if tool.exists() else shutil.which("kubectl")
    if program is None:
        skip_or_fail("kubectl")
    env = {**os.environ, "KUBECONFIG": str(config), "HOME": str(config.parent)}
    return subprocess.run([program or "", *arguments], env=env, capture_output=True, text=True, timeout=60)


def test_commands_of_a_tenant_show_that_tenant(platform: RunningPlatform, tmp_path: Path) -> None:
    state = str(platform.state)
    token = holdfast("token", "create", "tina", "--tenant", "payments", "--state", state).stdout.strip()
    config = tmp_path / "tenant.kubeconfig"
    config.write_text(holdfast("kubeconfig", "--token", token, "--state", state).stdout)
    status = json.loads(holdfast("status", "--state", str(config), "-o", "json").stdout)
    assert {w["tenant"] for w in status["workloads"]} == {"payments"}
    used = json.loads(holdfast("top", "--by", "replica", "--state", str(config), "-o", "json").stdout)
    assert used["rows"] and all(row["name"].startswith("payments/") for row in used["rows"])
    manifest = tmp_path / "w.yaml"
    manifest.write_text(
        "apiVersion: holdfast.dev/v1\nkind: Workload\nmetadata: {name: new, namespace: payments}\n"
        "spec: {replicas: 1, template: {command: [sleep, '60'], resources: {cpu: 100m, memory: 32Mi}}}\n"
    )
    plan = holdfast("plan", "-f", str(manifest), "--state", str(config), check=False)
    assert plan.returncode == 3 and "payments/new would be created" in plan.stdout
    own = kubectl(config, "get", "pods", "-n", "payments")
    assert own.returncode == 0 and "REGION" in own.stdout
    assert "forbidden" in kubectl(config, "get", "nodes").stderr


def test_commands_list_watchable_kinds_and_restart_rollouts(platform: RunningPlatform) -> None:
    state = str(platform.state)
    names = holdfast("get", "pods,namespaces,nodes", "--state", state, "-o", "name").stdout.split()
    assert any(n.startswith("pod/") for n in names) and "namespace/payments" in names
    assert "items:" in holdfast("get", "workload/risk-api", "-n", "payments", "--state", state, "-o", "yaml").stdout
    holdfast("rollout", "restart", "payments/risk-api", "--state", state)
    holdfast("rollout", "status", "payments/risk-api", "--state", state, timeout_s=300)
    diff = holdfast("rollout", "diff", "payments/risk-api", "--state", state, check=False)
    assert diff.returncode == 3 and "restarted-at" in diff.stdout


def is_in(text: str, path: Path) -> bool:
    return text in path.read_text()


def test_output_and_scope_options_are_those_of_kubectl(platform: RunningPlatform, tmp_path: Path) -> None:
    state = ("--state", str(platform.state))
    plain = holdfast("get", "replicas", "-n", "payments", *state).stdout.splitlines()
    wide = holdfast("get", "replicas", "-n", "payments", "-o", "wide", *state).stdout.splitlines()
    assert len(plain) == len(wide) > 1 and len(wide[0].split()) > len(plain[0].split())
    every = holdfast("get", "replicas", "-A", *state).stdout
    assert "fraud" in every and not any("fraud" in line for line in plain)
    for command in ("status", "top"):
        assert yaml.safe_load(holdfast(command, "-o", "yaml", *state).stdout)
    words = [sys.executable, "-m", "holdfast.cli", "get", "configmaps", "-n", "payments", "-w", *state]
    printed = tmp_path / "watched"
    with printed.open("w") as file, subprocess.Popen(words, stdout=file, stderr=subprocess.DEVNULL) as watching:
        try:
            for name in ("first", "second"):
                meta = {"name": name, "namespace": "payments"}
                platform.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
                wait_until(partial(is_in, name, printed), "the new row is printed")
        finally:
            watching.terminate()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("explain", "payments/risk-api-u"), "payments/risk-api-us-east-"),
        (("node", "drain", "us-ea"), "us-east-1"),
        (("drill", "run", "region-loss", "--region", "eu"), "eu-west"),
        (("get", "pods", "-n", "pay"), "payments"),
    ],
)
def test_shell_completes_names_of_the_platform(platform: RunningPlatform, words: tuple[str, ...], offered: str) -> None:
    line = {"COMP_WORDS": " ".join(("holdfast", *words)), "COMP_CWORD": str(len(words))}
    env = {**os.environ, "HOLDFAST_STATE": str(platform.state), "_HOLDFAST_COMPLETE": "bash_complete", **line}

    def suggestions() -> str:
        program = [str(Path(sys.executable).parent / "holdfast")]
        return subprocess.run(program, env=env, capture_output=True, text=True, timeout=60).stdout

    wait_until(
        lambda: any(line.startswith(f"plain,{offered}") for line in suggestions().split()), f"{offered} is suggested"
    )


def test_kubectl_shows_all_regions_and_the_age_of_a_lost_one(platform: RunningPlatform) -> None:
    config = platform.state / "kubeconfig"
    both = kubectl(config, "get", "nodes,pods", "-A")
    assert both.returncode == 0, both.stderr
    rows = [line.split() for line in both.stdout.splitlines() if line.startswith("node/")]
    assert {row[1] for row in rows} == {"us-east", "eu-west"} and all(row[-1] == "now" for row in rows)
    described = kubectl(config, "describe", "node", "us-east-1")
    assert described.returncode == 0 and "Kernel Version" in described.stdout
    layout = Layout(platform.state)
    outage.hold_down(layout, ["cell-eu-west"])
    assert outage.kill_processes(layout, ["cell-eu-west"]) == 1
    try:
        wait_until(lambda: "eu-west" in kubectl(config, "get", "nodes").stderr, "a warning about the lost region")
        lost = kubectl(config, "get", "nodes")
        ages = {line.split()[0]: line.split()[-1] for line in lost.stdout.splitlines()[1:]}
        assert ages["us-east-1"] == "now" and ages["eu-west-1"] == "ago"
        assert "shown as it was" in lost.stderr
    finally:
        outage.allow_restart(layout, ["cell-eu-west"])
    wait_until(lambda: not kubectl(config, "get", "nodes").stderr, "the region's return", within_s=120)
