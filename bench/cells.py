"""Cells for benchmarks: processes of `holdfast serve` and `holdfast hollow` with TLS, in a temporary directory.

Also reads the CPU time and memory of these processes from the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.client.http import HttpClient
from holdfast.client.resources import client_tls_context
from holdfast.foundation.ports import SystemPorts
from holdfast.identity.cell_record import IdentityFile, initialize
from holdfast.identity.certificates import issue, make_ca
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import HOLLOW_NODES, OPERATORS, REGIONS, TENANT_PREFIX
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quantity import Amount
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import HealthState, Region, RegionSpec
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Create

REGION = "bench"
ZONES = ("bench-a", "bench-b", "bench-c")
TENANT = "bench"
PREFIX = "hollow-"
START_S = 30.0
STOP_S = 20.0


_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Makes the process end with the benchmark, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A child process with its CPU time and memory."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - one thread, and it calls the kernel alone
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def cpu_s(self) -> float:
        """CPU time of its live threads in nanosecond resolution. Clock ticks are too coarse for idle processes."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def memory_bytes(self, what: str = "VmRSS") -> int:
        """Resident memory at present (VmRSS) or at its peak (VmHWM)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(what + ":"):
                return int(line.split()[1]) * 1024
        raise LookupError(f"{what} of process {self.pid}")

    def check(self) -> None:
        if self._child.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])
            raise RuntimeError(f"{self.name} ended with status {self._child.returncode}:\n{tail}")

    def stop(self) -> None:
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


class Identity(msgspec.Struct, frozen=True):
    """Certificate files of one user."""

    cert: str
    key: str


class BenchCells:
    """A directory with a CA and the processes started in it. `close` stops them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._pki = place / "pki"
        now_s = time.time()
        self.ca = str(make_ca(self._pki, now_s=now_s).certificate)
        self.operator = self.issue_user("operator", "operator", (OPERATORS,))
        self.user = self.issue_user("user", "bench-user", (f"{TENANT_PREFIX}{TENANT}",))
        self.ports = SystemPorts()
        self.processes: list[Process] = []
        self.urls: dict[str, str] = {}
        self.region_store: tuple[str, ...] = ()
        """Store options of regions; SQLite if empty."""

    def issue_user(self, name: str, user: str, groups: tuple[str, ...]) -> Identity:
        issued = issue(self._pki, name, user, groups, now_s=time.time())
        return Identity(str(issued.certificate), str(issued.key))

    def start_cell(self, cell: str, *, program: Sequence[str] = ("-m", "holdfast.cli")) -> Process:
        """Starts a cell. `program` is the Python program that takes the command line of `holdfast`."""
        server = issue(
            self._pki,
            f"cell-{cell}",
            f"holdfast-cell-{cell}",
            now_s=time.time(),
            server=True,
            client=False,
            dns=("localhost",),
            ips=("127.0.0.1",),
        )
        record = IdentityFile(self.place / cell)
        record.path.parent.mkdir(parents=True, exist_ok=True)
        if record.read() is None:
            initialize(record, cell)
        port = free_port()
        self.urls[cell] = f"https://127.0.0.1:{port}"
        arguments = [
            *program,
            "serve",
            "--cell",
            cell,
            "--state",
            str(self.place / cell),
            "--port",
            str(port),
            "--tls-cert",
            str(server.certificate),
            "--tls-key",
            str(server.key),
            "--client-ca",
            self.ca,
            "--tokens",
            str(self.place / "tokens.json"),
        ]
        if cell != "global":
            link = self.issue_user(f"link-{cell}", f"holdfast:region:{cell}", (REGIONS,))
            arguments += ["--global-url", self.urls["global"], "--link-cert", link.cert, "--link-key", link.key]
            arguments += self.region_store
        return self._add(Process(f"cell {cell}", arguments, self.place / f"{cell}.log"))

    def start_hollow(
        self, count: int, *options: str, region: str = REGION, prefix: str = PREFIX, zones: Sequence[str] = ZONES
    ) -> Process:
        user = self.issue_user(f"hollow-{region}", f"holdfast:hollow:{region}:{prefix}", (HOLLOW_NODES,))
        named = [argument for zone in zones for argument in ("--zone", zone)]
        arguments = [
            "-m",
            "holdfast.cli",
            "hollow",
            "--count",
            str(count),
            "--region",
            region,
            "--prefix",
            prefix,
            *named,
            "--url",
            self.urls[region],
            "--ca",
            self.ca,
            "--cert",
            user.cert,
            "--key",
            user.key,
            *options,
        ]
        return self._add(Process(f"hollow nodes of {region}", arguments, self.place / f"hollow-{region}.log"))

    def start_program(self, name: str, arguments: Sequence[str]) -> Process:
        """Starts another Python program of the benchmark."""
        return self._add(Process(name, arguments, self.place / f"{name}.log"))

    def _add(self, process: Process) -> Process:
        self.processes.append(process)
        return process

    def client(self, cell: str, user: Identity | None = None) -> HttpClient:
        user = user or self.operator
        return HttpClient(self.urls[cell], self.ports, cell=cell, ca=self.ca, cert=user.cert, key=user.key)

    def tls(self, user: Identity) -> ssl.SSLContext:
        return client_tls_context(self.ca, user.cert, user.key)

    def check(self) -> None:
        for process in self.processes:
            process.check()

    def close(self) -> None:
        for process in reversed(self.processes):
            process.stop()
        self.processes.clear()


@contextlib.contextmanager
def bench_cells(place: Path) -> Iterator[BenchCells]:
    bench = BenchCells(place)
    try:
        yield bench
    finally:
        bench.close()


async def until_ready(bench: BenchCells, cell: str) -> None:
    """Waits until the cell's API is ready."""
    import aiohttp

    context = bench.tls(bench.operator)
    deadline = time.monotonic() + START_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            bench.check()
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with session.get(bench.urls[cell] + "/readyz", ssl=context) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)
    raise TimeoutError(f"cell {cell} was not ready within {START_S} s; see {bench.place / cell}.log")


async def first_objects(client: HttpClient, *, region: bool) -> None:
    """Creates a tenant with ample quota, and optionally the region."""
    ample: dict[str, Amount] = {"cpu": "1000000", "memory": "1000Ti", "gpu": "100000"}
    writes = [
        Create(Tenant(ObjectMeta(name=TENANT))),
        Create(PriorityClass(ObjectMeta(name="standard"), PriorityClassSpec(tenants=("*",)))),
    ]
    if region:
        writes.append(Create(Region(ObjectMeta(name=REGION), RegionSpec(zones=ZONES))))
    await client.commit(writes)
    spec = QuotaSpec(hard=ample, pending_cap=1_000_000)
    await client.commit([Create(Quota(ObjectMeta(name="quota", namespace=TENANT), spec))])


async def until_placing(client: HttpClient, nodes: int, *, within_s: float = 90.0) -> None:
    """Waits until the region is healthy and has this many live nodes in the global cell."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        region = await client.get(Region, REGION)
        if region is not None and region.status.report is not None:
            healthy = region.status.health.state is HealthState.HEALTHY
            if healthy and region.status.report.live_nodes >= nodes:
                return
        await asyncio.sleep(0.2)
    raise TimeoutError(f"the region did not report {nodes} live nodes within {within_s} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
