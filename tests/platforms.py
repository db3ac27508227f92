"""Whole platforms for tests, started, used and stopped from the command line.

After the block of `running_platform` no process of the platform runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.requirements import skip_or_fail

from holdfast.sim.recorded_history import check_platform

ROOT = Path(__file__).resolve().parents[1]
V1 = "holdfast.dev/v1"
TENANCY: tuple[dict[str, Any], ...] = (
    {"apiVersion": V1, "kind": "Tenant", "metadata": {"name": "acme"}, "spec": {}},
    {
        "apiVersion": V1,
        "kind": "PriorityClass",
        "metadata": {"name": "standard"},
        "spec": {"priority": 100, "tenants": ["*"]},
    },
    {
        "apiVersion": V1,
        "kind": "Quota",
        "metadata": {"name": "quota", "namespace": "acme"},
        "spec": {"hard": {"cpu": "8", "memory": "8Gi"}},
    },
)


def holdfast(*arguments: str, timeout_s: float = 120.0, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CI": "true"}
    completed = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *arguments], capture_output=True, text=True, timeout=timeout_s, env=env
    )
    if check:
        assert completed.returncode == 0, (
            f"holdfast {' '.join(arguments)}: {completed.returncode}\n{completed.stdout}\n{completed.stderr}"
        )
    return completed


def holdfast_command(*arguments: str) -> list[str]:
    """The command line of `holdfast`, for a process that the test ends itself."""
    return [sys.executable, "-m", "holdfast.cli", *arguments]


def free_port_base() -> int:
    """A base of free ports, below the ephemeral range. Each pytest worker has its own range."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    first = 11000 + worker * 5000
    for base in range(first + os.getpid() % 4 * 500, first + 5000, 500):
        with contextlib.ExitStack() as stack:
            try:
                for port in (*range(base, base + 5), *range(base + 100, base + 400, 25)):
                    probe = stack.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports")


def wait_until(condition: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    """Waits until `condition` returns a true value and returns it. `what` describes it in the failure message."""
    deadline = time.monotonic() + within_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"within {within_s:.0f} s: {what}"
        time.sleep(0.3)


def processes_of(state: Path) -> list[str]:
    """Every live process with the directory in its command line, working directory or environment."""
    found = []
    me = {os.getpid(), os.getppid()}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in me:
            continue
        try:
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            command = (entry / "cmdline").read_bytes()
            about = command + (entry / "environ").read_bytes() + os.fsencode(os.readlink(entry / "cwd"))
        except OSError:
            continue
        if os.fsencode(state) in about:
            found.append(f"{entry.name} {command.replace(bytes(1), b' ').decode(errors='replace')[:150]}")
    return found


class RunningPlatform:
    """A running platform and a user's access to it."""

    def __init__(self, state: Path, base: int, up_output: dict[str, Any], took_s: float) -> None:
        self.state = state
        self.base = base
        self.up_output = up_output
        self.took_s = took_s

    def shared_file(self, name: str) -> Path:
        """A file that every task can append to, though each has a user of its own."""
        folder = self.state / "shared"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)
        path = folder / name
        path.touch()
        path.chmod(0o666)
        return path

    def status(self) -> dict[str, Any]:
        completed = holdfast("status", "--state", str(self.state), "-o", "json", check=False)
        assert completed.stdout, f"holdfast status printed nothing: {completed.returncode}\n{completed.stderr}"
        found: dict[str, Any] = json.loads(completed.stdout)
        return found

    def workload(self, name: str) -> dict[str, Any]:
        return next((w for w in self.status()["workloads"] if w["name"] == name), {})

    def pid(self, process: str) -> int:
        """Waits until the process runs: during a restart it has no pid, and 0 would mean our own process group."""

        def running() -> int:
            return next((p["pid"] or 0 for p in self.status()["processes"] if p["name"] == process), 0)

        return int(wait_until(running, within_s=60, what=f"{process} runs"))

    def addresses(self, name: str) -> list[str]:
        up_output = json.loads(holdfast("endpoints", name, "--state", str(self.state), "-o", "json").stdout)
        return [f"http://{a['address']}:{a['ports']['http']}/" for a in up_output["addresses"]]

    def kubectl_program(self) -> str:
        tools = ROOT / ".tools" / "bin" / "kubectl"
        program = shutil.which("kubectl") or (str(tools) if tools.exists() else None)
        if program is None:
            skip_or_fail("kubectl is missing; next: make tools")
        return program

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        completed = subprocess.run(
            [self.kubectl_program(), "--kubeconfig", self.up_output["kubeconfig"], *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "HOME": str(self.state)},
        )
        if check:
            assert completed.returncode == 0, f"kubectl {' '.join(arguments)}\n{completed.stdout}\n{completed.stderr}"
        return completed.stdout + completed.stderr

    def apply(self, *items: dict[str, Any]) -> None:
        """Applies all items with one kubectl call to the global cell."""
        path = self.state / "applied.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        self.kubectl("--context", "global", "apply", "-f", str(path))


def get_json(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=5) as response:
        body: dict[str, Any] = json.loads(response.read())
    return body


def assert_history_valid(state: Path) -> None:
    """Checks that the recorded histories of the platform's cells violate no invariant."""
    if any(state.glob("cells/*/store.sqlite")):
        verdict = check_platform(state)
        assert not verdict.violations, "\n".join(map(str, verdict.violations[:10]))


@contextlib.contextmanager
def running_platform(state: Path, *arguments: str) -> Iterator[RunningPlatform]:
    """Runs a platform until the block ends, then checks its history. `arguments` are further options of `up`."""
    base = free_port_base()
    began = time.monotonic()
    try:
        completed = holdfast(
            "up",
            "--detach",
            "--state",
            str(state),
            "--port-base",
            str(base),
            "--timeout",
            "150",
            "-o",
            "json",
            *arguments,
            timeout_s=200,
            check=False,
        )
        if completed.returncode != 0:
            logs = "\n".join(f"== {p.name}\n{p.read_text()[-1500:]}" for p in sorted((state / "logs").glob("*.log")))
            pytest.fail(f"holdfast up: {completed.returncode}\n{completed.stderr}\n{logs}")
        yield RunningPlatform(state, base, json.loads(completed.stdout), time.monotonic() - began)
        assert_history_valid(state)
    finally:
        holdfast("down", "--state", str(state), timeout_s=300, check=False)
