"""Whole platforms for tests: started and ended from the command line, as a user does, and the ways a user has to one.

Whatever happens in the block of `running`, nothing of its platform runs afterwards.
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
    {"apiVersion": V1, "kind": "PriorityClass", "metadata": {"name": "standard"}, "spec": {"priority": 100}},
    {"apiVersion": V1, "kind": "Quota", "metadata": {"name": "quota", "namespace": "acme"},
     "spec": {"hard": {"cpu": "8", "memory": "8Gi"}}},
)  # fmt: skip


def holdfast(*words: str, timeout_s: float = 120.0, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CI": "true"}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, timeout=timeout_s, env=env
    )
    if check:
        assert done.returncode == 0, f"holdfast {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def foreground_command(*words: str) -> list[str]:
    """The command that an interrupt ends: whoever runs the tests in the background has all they start ignore it."""
    return ["env", "--default-signal=INT", sys.executable, "-m", "holdfast.cli", *words]


def free_port_base() -> int:
    """A base whose ports are free, below the range the system picks from; each worker of the tests has its own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    first = 11000 + worker * 5000
    for base in range(first + os.getpid() % 4 * 500, first + 5000, 500):
        with contextlib.ExitStack() as held:
            try:
                for port in (*range(base, base + 5), *range(base + 100, base + 400, 25)):
                    probe = held.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports")


def wait_until(true: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    """What `true` answers, once that is anything; `what` says in words what was waited for."""
    deadline = time.monotonic() + within_s
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < deadline, f"within {within_s:.0f} s: {what}"
        time.sleep(0.3)


def processes_of(state: Path) -> list[str]:
    """Every live process that has anything to do with the directory: by command line, directory or environment."""
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
    """A running platform and the ways a user has to it."""

    def __init__(self, state: Path, base: int, told: dict[str, Any], took_s: float) -> None:
        self.state = state
        self.base = base
        self.up_output = told
        self.took_s = took_s

    def status(self) -> dict[str, Any]:
        done = holdfast("status", "--state", str(self.state), "-o", "json", check=False)
        assert done.stdout, f"holdfast status says nothing: {done.returncode}\n{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def workload(self, name: str) -> dict[str, Any]:
        return next((w for w in self.status()["workloads"] if w["name"] == name), {})

    def pid(self, process: str) -> int:
        """Of a process that runs. While it is between two starts it has no number, and 0 would be our own group."""

        def running() -> int:
            return next((p["pid"] for p in self.status()["processes"] if p["name"] == process), 0)

        return int(wait_until(running, within_s=60, what=f"{process} runs"))

    def addresses(self, name: str) -> list[str]:
        told = json.loads(holdfast("endpoints", name, "--state", str(self.state), "-o", "json").stdout)
        return [f"http://{a['address']}:{a['ports']['http']}/" for a in told["addresses"]]

    def kubectl(self, *words: str, check: bool = True) -> str:
        tools = ROOT / ".tools" / "bin" / "kubectl"
        program = shutil.which("kubectl") or (str(tools) if tools.exists() else None)
        if program is None:
            skip_or_fail("kubectl is missing; next: make tools")
        done = subprocess.run(
            [program, "--kubeconfig", self.up_output["kubeconfig"], *words], capture_output=True, text=True, timeout=120,
            env={**os.environ, "HOME": str(self.state)},
        )  # fmt: skip
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def apply(self, *items: dict[str, Any]) -> None:
        """All at once, with kubectl, at the global cell."""
        path = self.state / "applied.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        self.kubectl("--context", "global", "apply", "-f", str(path))


def get_json(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: dict[str, Any] = json.loads(answer.read())
    return body


def assert_history_valid(state: Path) -> None:
    """Whatever a test has done to a platform: what its cells recorded on this machine's disks keeps every promise."""
    if any(state.glob("cells/*/store.sqlite")):
        verdict = check_platform(state)
        assert not verdict.violations, "\n".join(map(str, verdict.violations[:10]))


@contextlib.contextmanager
def running_platform(state: Path, *words: str) -> Iterator[RunningPlatform]:
    """A platform from `holdfast up` until the block ends, judged then; `words` are more of its options."""
    base = free_port_base()
    began = time.monotonic()
    try:
        done = holdfast(
            "up", "--detach", "--state", str(state), "--port-base", str(base), "--timeout", "150", "-o", "json", *words,
            timeout_s=200, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            logs = "\n".join(f"== {p.name}\n{p.read_text()[-1500:]}" for p in sorted((state / "logs").glob("*.log")))
            pytest.fail(f"holdfast up: {done.returncode}\n{done.stderr}\n{logs}")
        yield RunningPlatform(state, base, json.loads(done.stdout), time.monotonic() - began)
        assert_history_valid(state)
    finally:
        holdfast("down", "--state", str(state), timeout_s=300, check=False)
