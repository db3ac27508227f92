"""Throughput of one cell over HTTPS: a process with SQLite (synchronous=FULL), TLS, authentication and audit.

- creates/s of single objects from 64 clients, with and without group commit;
- rows/s in commits of 256, compared with single-row commits, each from one client;
- watch fan-out to 500 watchers; CPU time of 5,000 node heartbeats.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench.cells import REGION, BenchCells, Process, bench_cells, first_objects, until_placing, until_ready
from bench.https import request, send_all
from holdfast.client.wire import COMMIT_PATH, encode_commit
from holdfast.model.meta import ObjectMeta
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.writes import Create, Write

CLIENTS = 64
CREATES = 6_000
BATCH = 256
BATCHES = 12
SINGLES = 300
WATCHERS = 500
FAN_OUT = 40
NODES = 5_000
BEAT_S = 10.0
CLASSES = "/apis/holdfast.dev/v1/priorityclasses"

BOUNDS = {"creates_gain": (2.0, None), "batch_gain": (10.0, None), "fan_out_missing": (None, 0)}


def _class(name: str) -> PriorityClass:
    return PriorityClass(ObjectMeta(name=name), PriorityClassSpec(priority=10))


def _creates(url: str, mark: str, count: int) -> list[bytes]:
    bodies = (
        {
            "apiVersion": "holdfast.dev/v1",
            "kind": "PriorityClass",
            "metadata": {"name": f"{mark}-{n}"},
            "spec": {"priority": 10},
        }
        for n in range(count)
    )
    return [request(url, "POST", CLASSES, msgspec.json.encode(body)) for body in bodies]


def _commits(url: str, mark: str, commits: int, rows: int) -> list[bytes]:
    found = []
    for number in range(commits):
        writes: list[Write] = [Create(_class(f"{mark}-{number}-{row}")) for row in range(rows)]
        found.append(request(url, "POST", COMMIT_PATH, encode_commit(writes, None)))
    return found


class Rate(msgspec.Struct, frozen=True):
    per_s: float
    p99_ms: float
    cpu_us: float


async def _rate(bench: BenchCells, cell: Process, messages: Sequence[bytes], clients: int, each: int = 1) -> Rate:
    used = cell.cpu_s()
    took, seconds = await send_all(bench.urls["global"], bench.tls(bench.operator), messages, clients)
    rows = len(messages) * each
    slow = sorted(took)[min(len(took) - 1, len(took) * 99 // 100)]
    return Rate(rows / seconds, slow * 1e3, (cell.cpu_s() - used) / rows * 1e6)


async def _creating(bench: BenchCells, program: Sequence[str], creates: int) -> tuple[Rate, Process]:
    cell = bench.start_cell("global", program=program)
    await until_ready(bench, "global")
    url = bench.urls["global"]
    await send_all(url, bench.tls(bench.operator), _creates(url, "warm", 64), 16)
    return await _rate(bench, cell, _creates(url, "one", creates), CLIENTS), cell


async def writes(creates: int, batches: int, singles: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place, bench_cells(Path(place)) as bench:
        apart, _ = await _creating(bench, ("-m", "bench.one_commit_each"), creates)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place, bench_cells(Path(place)) as bench:
        grouped, cell = await _creating(bench, ("-m", "holdfast.cli"), creates)
        url = bench.urls["global"]
        single = await _rate(bench, cell, _commits(url, "row", singles, 1), 1)
        batched = await _rate(bench, cell, _commits(url, "rows", batches, BATCH), 1, BATCH)
    return {
        "creates_per_s": round(grouped.per_s),
        "creates_one_commit_each_per_s": round(apart.per_s),
        "creates_gain": round(grouped.per_s / apart.per_s, 2),
        "creates_p99_ms": round(grouped.p99_ms, 1),
        "create_cpu_us": round(grouped.cpu_us),
        "single_rows_per_s": round(single.per_s),
        "batched_rows_per_s": round(batched.per_s),
        "batch_gain": round(batched.per_s / single.per_s, 1),
        "batched_row_cpu_us": round(batched.cpu_us),
    }


class _Watch(asyncio.Protocol):
    """One watcher. Records the arrival time of each event."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._transport: Any = None
        self._rest = b""
        self.open = asyncio.get_running_loop().create_future()
        self.came: dict[str, float] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.open.done():
            self.open.set_result(None)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            at = line.find(b'"name":"fan-')
            if at >= 0:
                self.came.setdefault(line[at + 8 : line.index(b'"', at + 8)].decode(), now)

    def close(self) -> None:
        self._transport.close()


async def _watch(url: str, context: ssl.SSLContext, after: int) -> _Watch:
    parts = urlsplit(url)
    message = request(url, "GET", f"{CLASSES}?watch=true&resourceVersion={after}")
    _, watch = await asyncio.get_running_loop().create_connection(
        lambda: _Watch(message), parts.hostname or "", parts.port or 443, ssl=context, server_hostname=parts.hostname
    )
    await watch.open
    return watch


async def fan_out(bench: BenchCells, cell: Process, watchers: int, events: int) -> dict[str, float]:
    """Delay from the response to a create to the arrival of its event, over all watchers."""
    from holdfast.client.http import HttpClient

    client: HttpClient = bench.client("global")
    after = (await client.list(PriorityClass)).revision
    url, context = bench.urls["global"], bench.tls(bench.operator)
    lines = [await _watch(url, context, after) for _ in range(watchers)]
    names = [f"fan-{number}" for number in range(events)]
    answered: dict[str, float] = {}
    used, began = cell.cpu_s(), time.perf_counter()
    for name in names:
        await client.commit([Create(_class(name))])
        answered[name] = time.perf_counter()
    deadline = time.perf_counter() + 30.0
    while time.perf_counter() < deadline and any(len(line.came) < events for line in lines):
        await asyncio.sleep(0.01)
    seconds = time.perf_counter() - began
    delays = sorted(max(0.0, at - answered[name]) for line in lines for name, at in line.came.items())
    for line in lines:
        line.close()
    await client.close()
    return {
        "fan_out_watchers": watchers,
        "fan_out_events_per_s": round(len(delays) / seconds),
        "fan_out_p99_ms": round(delays[len(delays) * 99 // 100] * 1e3, 1) if delays else 0.0,
        "fan_out_cpu_us_per_event": round((cell.cpu_s() - used) / max(1, len(delays)) * 1e6, 1),
        "fan_out_missing": watchers * events - len(delays),
    }


async def heartbeats(nodes: int, seconds: float) -> dict[str, float]:
    """CPU time of an idle region for node lease renewals."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place, bench_cells(Path(place)) as bench:
        bench.start_cell("global")
        await until_ready(bench, "global")
        client = bench.client("global")
        await first_objects(client, region=True)
        cell = bench.start_cell(REGION)
        await until_ready(bench, REGION)
        idle_s, began = cell.cpu_s(), time.perf_counter()
        await asyncio.sleep(seconds / 2)
        idle = (cell.cpu_s() - idle_s) / (time.perf_counter() - began)
        bench.start_hollow(nodes)
        await until_placing(client, nodes)
        await client.close()
        await asyncio.sleep(2.0)  # wait for the end of registration
        used, began = cell.cpu_s(), time.perf_counter()
        await asyncio.sleep(seconds)
        busy = (cell.cpu_s() - used) / (time.perf_counter() - began)
    return {
        "heartbeat_nodes": nodes,
        "heartbeat_cpu_s_per_10s": round(busy * 10, 3),
        "idle_cpu_s_per_10s": round(idle * 10, 3),
    }


async def run(
    *,
    creates: int = CREATES,
    batches: int = BATCHES,
    singles: int = SINGLES,
    watchers: int = WATCHERS,
    events: int = FAN_OUT,
    nodes: int = NODES,
    beat_s: float = BEAT_S,
) -> dict[str, Any]:
    figures: dict[str, Any] = await writes(creates, batches, singles)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place, bench_cells(Path(place)) as bench:
        cell = bench.start_cell("global")
        await until_ready(bench, "global")
        figures.update(await fan_out(bench, cell, watchers, events))
    figures.update(await heartbeats(nodes, beat_s))
    return figures
