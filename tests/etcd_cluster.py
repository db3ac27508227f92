"""Real etcd clusters for tests, on free ports, with members that can be killed, stopped and resumed.

The binary is `HOLDFAST_ETCD`, or the one in .tools/bin or on PATH. Without one a test is skipped, or fails in CI.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.requirements import skip_or_fail

TOOLS = Path(__file__).parent.parent / ".tools" / "bin"


def etcd_binary(name: str = "etcd") -> str:
    found = os.environ.get("HOLDFAST_ETCD", "") if name == "etcd" else ""
    found = found or shutil.which(name, path=str(TOOLS)) or shutil.which(name) or ""
    if not found:
        skip_or_fail(f"{name} is missing; next: make tools")
    return found


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]


class Member:
    def __init__(self, name: str, folder: Path, client: str, peer: str, *options: str, program: str = "etcd") -> None:
        self.name = name
        self.folder = folder
        self.client = client
        self._argv = [
            etcd_binary(program),
            "--name",
            name,
            "--data-dir",
            str(folder),
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--log-level",
            "error",
            "--logger",
            "zap",
            *options,
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder.parent / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(self._argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Sends SIGSTOP: connections stay open, nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def answers(self) -> bool:
        host, _, port = self.client.rpartition("://")[2].partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 0.5):
            return True
        return False


class Cluster:
    def __init__(
        self, folder: Path, size: int, *, scheme: str = "http", options: tuple[str, ...] = (), program: str = "etcd"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * size)
        peers = [f"http://127.0.0.1:{port}" for port in ports[size:]]
        initial = ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))
        more = ["--initial-cluster", initial, "--initial-cluster-token", folder.name, *options]
        if size > 1:
            more += ["--heartbeat-interval", "50", "--election-timeout", "500"]
        self.members = [
            Member(f"m{n}", folder / f"m{n}", f"{scheme}://127.0.0.1:{ports[n]}", peers[n], *more, program=program)
            for n in range(size)
        ]

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.client for member in self.members)

    def start(self) -> Cluster:
        for member in self.members:
            member.start()
        wait_for(lambda: all(member.answers() for member in self.members), "etcd to listen")
        return self

    def end(self) -> None:
        for member in self.members:
            member.kill()

    def ctl(self, *arguments: str, endpoint: str = "") -> str:
        """Runs etcdctl and returns its output."""
        completed = subprocess.run(
            [etcd_binary("etcdctl"), "--endpoints", endpoint or ",".join(self.endpoints), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "ETCDCTL_API": "3"},
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    def leader(self, timeout_s: float = 60.0) -> Member:
        """The present leader. Waits for an election."""
        found: list[Member] = []

        def elected() -> bool:
            found[:] = [member for member in self.members if member.process is not None and self._leads(member)]
            return bool(found)

        wait_for(elected, "etcd to elect a leader", timeout_s)
        return found[0]

    def _leads(self, member: Member) -> bool:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            fields = self.ctl("endpoint", "status", "-w", "fields", endpoint=member.client)
            status = dict(line.split(" : ") for line in fields.splitlines() if " : " in line)
            return status['"MemberID"'] == status['"Leader"']
        return False


@contextlib.contextmanager
def running_cluster(folder: Path, size: int, **options: object) -> Iterator[Cluster]:
    cluster = Cluster(folder, size, **options)  # type: ignore[arg-type]
    try:
        yield cluster.start()
    finally:
        cluster.end()


def wait_for(condition: object, what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.05)
