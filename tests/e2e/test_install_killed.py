"""Commands of an installation that are killed at any moment continue when they are run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.etcd_cluster import free_ports

from holdfast.install.ca_rotation import ca_state
from holdfast.install.places import Places, Role
from holdfast.install.removal import remove_role

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]

# Moments at which a run is killed, in seconds. The last run is not killed.
KILLED_AFTER_S = (0.15, 0.25, 0.35, 0.45, 0.6, 0.8, 1.0)
ROLES: dict[str, Role] = {"control": "global", "east": "region", "node": "agent"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for name, role in reversed(ROLES.items()):
        if Places(tmp_path / name).record(role) is not None:
            remove_role(Places(tmp_path / name), role, keep_state=False)


def run(folder: Path, *arguments: str, killed_after_s: float = 0.0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CI": "true", "HOLDFAST_STATE": str(folder / "control" / "operator.kubeconfig")}
    command = [sys.executable, "-m", "holdfast.cli", *arguments]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=killed_after_s or 150)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.stdout = process.stderr = None  # a service that it started keeps the pipes' other ends closed
            return subprocess.CompletedProcess(command, process.wait(), "", "")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_with_kills(folder: Path, *arguments: str) -> None:
    for moment_s in KILLED_AFTER_S:
        run(folder, *arguments, killed_after_s=moment_s)
    done = run(folder, *arguments)
    assert done.returncode == 0, f"{arguments}\n{done.stderr}"


def test_killed_installation_continues_and_keeps_what_is_done(folder: Path) -> None:
    ports = free_ports(2)
    control = ("init", "global", "--advertise", f"127.0.0.1:{ports[0]}", "--state", str(folder / "control"))
    run_with_kills(folder, *control)
    before = ca_state(Places(folder / "control"))
    token = run(folder, "region", "add", "east").stdout.strip()
    region = ("--advertise", f"127.0.0.1:{ports[1]}", "--state", str(folder / "east"))
    run_with_kills(folder, "init", "region", "--join", token, *region)
    token = run(folder, "node", "token", "--region", "east").stdout.strip()
    run_with_kills(
        folder, "node", "join", token, "--name", "n1", "--ports", "29850-29899", "--state", str(folder / "node")
    )
    run_with_kills(folder, *control)
    assert ca_state(Places(folder / "control")) == before
    nodes = json.loads(run(folder, "get", "nodes", "-o", "json").stdout)["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["n1"]
    for name, role in ROLES.items():
        place = Places(folder / name)
        found = [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs(pid, str(place.config(role)))]
        assert len(found) == 1, f"{role}: {len(found)} processes of one service"


def _runs(pid: str, config: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return config.encode() in command
