"""Traffic through a real HAProxy during rollouts, rollbacks and drains: no request fails.

Twelve replicas; forty with `HOLDFAST_PROVE=1`.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.proxy_load import ProxyLoad
from tests.platforms import ROOT, RunningPlatform, holdfast, running_platform, wait_until
from tests.requirements import skip_or_fail

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(900)]

REPLICAS = 40 if os.environ.get("HOLDFAST_PROVE") else 12
DEADLINE_S = 25 if REPLICAS == 40 else 15
NAME = "payments/shop"
MANIFEST: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1",
    "kind": "Workload",
    "metadata": {"name": "shop", "namespace": "payments"},
    "spec": {
        "replicas": REPLICAS,
        "template": {
            "command": ["python3", "-m", "holdfast.samples.risk_api"],
            "env": {"SHOP": "one"},
            "resources": {"cpu": "20m", "memory": "64Mi"},
            "ports": [{"name": "http"}],
            "probes": {"readiness": {"http": {"path": "/readyz"}, "periodSeconds": 0.5}},
        },
        "disruption": {"maxUnavailable": 2},
        "rollout": {"maxSurge": 2, "maxUnavailable": 0, "progressDeadlineSeconds": DEADLINE_S},
    },
}
FRONT = """
global
    maxconn 2000
    stats socket {folder}/admin.sock mode 600 level admin expose-fd listeners
defaults
    mode http
    option idle-close-on-response
    timeout connect 2s
    timeout client 20s
    timeout server 20s
frontend shop
    bind 127.0.0.1:{port}
    default_backend payments-shop
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("serving") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def shop(platform: RunningPlatform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The workload, and HAProxy in front of it, kept current by `holdfast endpoints --follow`."""
    tools = ROOT / ".tools" / "bin" / "haproxy"
    program = shutil.which("haproxy") or (str(tools) if tools.exists() else None)
    if program is None:
        skip_or_fail("haproxy is missing; next: make tools")
    folder = tmp_path_factory.mktemp("proxy")
    platform.apply(MANIFEST)
    wait_until(lambda: len(platform.addresses(NAME)) == REPLICAS, within_s=120, what=f"{REPLICAS} serve")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    (folder / "front.cfg").write_text(FRONT.format(folder=folder, port=port))
    arguments = (
        "endpoints",
        NAME,
        "--state",
        str(platform.state),
        "--format",
        "haproxy",
        "--write",
        str(folder / "back.cfg"),
    )
    holdfast(*arguments)
    pid = folder / "pid"
    subprocess.run(
        [program, "-D", "-W", "-p", str(pid), "-f", str(folder / "front.cfg"), "-f", str(folder / "back.cfg")],
        check=True,
        timeout=20,
    )
    # The master process survives reloads. During a reload its pid file may be empty.
    (master, *_) = wait_until(
        lambda: pid.exists() and pid.read_text().split(), within_s=10, what="haproxy wrote its pid"
    )
    assert int(master) > 1
    reload_ = f"kill -USR2 {master}"
    command = [sys.executable, "-m", "holdfast.cli", *arguments, "--follow", "--on-change", reload_]
    follower = subprocess.Popen(command, env={**os.environ, "CI": "true"})
    try:
        yield port
    finally:
        follower.terminate()
        follower.wait(20)
        os.kill(int(master), signal.SIGTERM)


def manifest_with(**env: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(MANIFEST))
    made["spec"]["template"]["env"] = env
    return made


def rollout(platform: RunningPlatform, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return holdfast("rollout", *arguments, "--state", str(platform.state), timeout_s=600, check=check)


def revisions(platform: RunningPlatform) -> set[str]:
    output = holdfast("endpoints", NAME, "--state", str(platform.state), "-o", "json").stdout
    return {a["revision"] for a in json.loads(output)["addresses"]}


def test_rollout_loses_no_request(platform: RunningPlatform, shop: int) -> None:
    with ProxyLoad(shop) as load:
        platform.apply(manifest_with(SHOP="two"))
        completed = rollout(platform, "status", NAME)
        time.sleep(1.0)
    assert "Complete" in completed.stdout
    assert not load.failed, load.failed[:5]
    assert sum(load.answered.values()) > 500
    assert len(revisions(platform)) == 1


def revision_counts(platform: RunningPlatform) -> collections.Counter[str]:
    output = holdfast("endpoints", NAME, "--state", str(platform.state), "-o", "json").stdout
    return collections.Counter(a["revision"] for a in json.loads(output)["addresses"])


STAGES = ("bound", "started", "ready", "serving")


def test_paused_rollout_stops_until_resumed(platform: RunningPlatform, shop: int) -> None:
    with ProxyLoad(shop) as load:
        platform.apply(manifest_with(SHOP="paused"))
        wait_until(lambda: len(revision_counts(platform)) == 2, within_s=60, what="both revisions serve")
        assert "paused" in rollout(platform, "pause", NAME).stdout
        phase = "status", NAME, "--no-wait", "-o", "json"
        wait_until(
            lambda: json.loads(rollout(platform, *phase).stdout)["phase"] == "Paused", within_s=20, what="it is paused"
        )
        # Replacements in progress are finished; then nothing changes.
        stable = wait_until(
            lambda: counts if (counts := revision_counts(platform)) == counts_later(platform) else None,
            within_s=40,
            what="the revision counts are stable",
        )
        assert sum(stable.values()) >= REPLICAS and len(stable) == 2, stable
        for _ in range(3):
            time.sleep(1.0)
            assert revision_counts(platform) == stable
        assert "resumed" in rollout(platform, "resume", NAME).stdout
        assert "Complete" in rollout(platform, "status", NAME).stdout
    assert not load.failed, load.failed[:5]
    assert len(revisions(platform)) == 1


def counts_later(platform: RunningPlatform) -> collections.Counter[str]:
    time.sleep(3.0)
    return revision_counts(platform)


def test_failing_revision_rolls_back_while_old_one_serves(platform: RunningPlatform, shop: int) -> None:
    good = revisions(platform)
    fewest = REPLICAS
    progress: list[dict[str, int]] = []
    with ProxyLoad(shop) as load:
        platform.apply(manifest_with(SHOP="three", WARM_UP_SECONDS="100000"))
        began = time.monotonic()
        while True:
            shown = rollout(platform, "status", NAME, "--no-wait", "-o", "json", check=False).stdout
            if shown:
                progress.append({stage: sum(row[stage] for row in json.loads(shown)["regions"]) for stage in STAGES})
            if "RolledBack" in shown:
                break
            fewest = min(fewest, len(platform.addresses(NAME)))
            assert time.monotonic() - began < 180, "it is rolled back in time"
        took_s = time.monotonic() - began
    assert not load.failed, load.failed[:5]
    assert revisions(platform) == good
    assert fewest >= REPLICAS, "never below maxUnavailable 0"
    assert any(p["bound"] >= p["started"] > p["ready"] >= p["serving"] >= REPLICAS for p in progress), (
        f"a replica of the failing revision is shown as started and not ready: {progress}"
    )
    assert took_s < DEADLINE_S + 60
    history = json.loads(rollout(platform, "history", NAME, "-o", "json").stdout)["history"]
    assert history[0]["outcome"] == "RolledBack" and {history[1]["revision"]} == good


def test_undo_restores_the_last_good_revision(platform: RunningPlatform, shop: int) -> None:
    good = revisions(platform)
    assert "undone" in rollout(platform, "undo", NAME).stdout
    assert "Complete" in rollout(platform, "status", NAME).stdout
    assert revisions(platform) == good


def test_drain_loses_no_request_and_respects_budget(platform: RunningPlatform, shop: int) -> None:
    node = platform.status()["nodes"][0]["name"]
    with ProxyLoad(shop) as load:
        completed = holdfast("node", "drain", node, "--deadline", "120", "--state", str(platform.state), timeout_s=200)
        time.sleep(1.0)
    assert "drained" in completed.stdout
    assert not load.failed, load.failed[:5]
    assert not [a for a in serving_nodes(platform) if a == node]
    holdfast("node", "uncordon", node, "--state", str(platform.state))


def serving_nodes(platform: RunningPlatform) -> list[str]:
    output = holdfast("endpoints", NAME, "--state", str(platform.state), "-o", "json").stdout
    return [a["node"] for a in json.loads(output)["addresses"]]


def test_blocked_drain_names_the_blocking_replicas(platform: RunningPlatform, shop: int) -> None:
    undrainable = json.loads(json.dumps(MANIFEST))
    undrainable["metadata"]["name"] = "stays"
    undrainable["spec"].update(replicas=1, disruption={"maxUnavailable": 0})
    platform.apply(undrainable)
    wait_until(lambda: platform.addresses("payments/stays"), within_s=60, what="it serves")
    output = holdfast("endpoints", "payments/stays", "--state", str(platform.state), "-o", "json").stdout
    (address,) = json.loads(output)["addresses"]
    completed = holdfast(
        "node", "drain", address["node"], "--deadline", "6", "--state", str(platform.state), timeout_s=120, check=False
    )
    assert completed.returncode == 5
    assert f"payments/{address['replica']}: disruption budget: disruption.maxUnavailable is 0" in completed.stderr
    holdfast("node", "uncordon", address["node"], "--state", str(platform.state))
    assert Path(platform.state).exists()
