"""Commits, placement and the whole pipeline on memory, SQLite and a three-member etcd cluster, and etcd's raw puts as
the upper limit.

The etcd members run on this machine in a temporary directory and share its disk and cores with the benchmark.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from bench import pipeline
from bench.__main__ import Skipped
from bench.authority import measure
from holdfast.store.contract import Append, Compare, Put, Store, Txn
from holdfast.store.etcd import wire
from holdfast.store.etcd.store import open_store
from holdfast.store.etcd.target import EtcdTarget
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

WRITERS = 64
COMMITS_PER_WRITER = 20
ALONE = 200
ROWS = 30
BATCHES = 60
VALUE = bytes(1500)
MEMBERS = 3
NODES = 1_000
REPLICAS = 2_000


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[tuple[str, ...]]:
    beside = Path(__file__).parent.parent / ".tools" / "bin"
    program = shutil.which("etcd") or shutil.which("etcd", path=str(beside))
    if program is None:
        raise Skipped("etcd is not installed: make tools")
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2 * MEMBERS)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    clients, peers = tuple(urls[:MEMBERS]), urls[MEMBERS:]
    cluster = ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))
    started = []
    for n in range(MEMBERS):
        argv = [
            program,
            "--name",
            f"m{n}",
            "--data-dir",
            str(folder / f"m{n}"),
            "--listen-client-urls",
            clients[n],
            "--advertise-client-urls",
            clients[n],
            "--listen-peer-urls",
            peers[n],
            "--initial-advertise-peer-urls",
            peers[n],
            "--initial-cluster",
            cluster,
            "--log-level",
            "error",
        ]
        started.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        yield clients
    finally:
        for process in started:
            process.kill()
            process.wait()


async def _opened(endpoints: tuple[str, ...], folder: Path) -> Store:
    for _ in range(100):
        with contextlib.suppress(Exception):
            return await open_store("commits", EtcdTarget(endpoints=endpoints), folder)
        await asyncio.sleep(0.2)
    raise Skipped("the etcd cluster did not start")


async def _commits(store: Store) -> dict[str, float]:
    async def writer(name: str, count: int) -> None:
        for n in range(count):
            key = f"/bench/{name}/{n}"
            await store.commit(Txn((Compare(key, 0),), (Put(key, VALUE),), (Append("audit", VALUE[:300]),)))

    async def batches() -> None:
        for n in range(BATCHES):
            await store.commit(Txn(writes=tuple(Put(f"/bench/b/{n}/{row}", VALUE) for row in range(ROWS))))

    figures = {}
    began = time.perf_counter()
    await writer("alone", ALONE)
    figures["commits/s, one writer"] = ALONE / (time.perf_counter() - began)
    began = time.perf_counter()
    await asyncio.gather(*(writer(f"w{n}", COMMITS_PER_WRITER) for n in range(WRITERS)))
    figures[f"commits/s, {WRITERS} writers"] = WRITERS * COMMITS_PER_WRITER / (time.perf_counter() - began)
    began = time.perf_counter()
    await batches()
    figures[f"rows/s, {ROWS} per commit"] = ROWS * BATCHES / (time.perf_counter() - began)
    return figures


async def _raw_puts(endpoint: str) -> float:
    """Puts/s of the same value directly over gRPC."""
    async with grpc.aio.insecure_channel(endpoint.partition("://")[2]) as channel:
        call = channel.unary_unary(
            wire.path_of("Txn"),
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=wire.response_class("Txn").FromString,
        )

        async def writer(name: int) -> None:
            for n in range(COMMITS_PER_WRITER):
                await call(wire.TxnRequest(success=[wire.put_op(f"/raw/{name}/{n}".encode(), VALUE)]))

        began = time.perf_counter()
        await asyncio.gather(*map(writer, range(WRITERS)))
        return WRITERS * COMMITS_PER_WRITER / (time.perf_counter() - began)


async def run(nodes: int = NODES, replicas: int = REPLICAS) -> dict[str, Any]:
    figures: dict[str, Any] = {"memory": await _commits(MemoryStore())}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sqlite = SqliteStore(folder / "cell.db")
        figures["sqlite"] = await _commits(sqlite)
        await sqlite.close()
        with _cluster(folder) as endpoints:
            store = await _opened(endpoints, folder)
            figures["etcd, three members"] = await _commits(store)
            raw = await _raw_puts(endpoints[0])
            figures["etcd, three members"][f"raw puts/s, {WRITERS} writers"] = raw
            own = figures["etcd, three members"][f"commits/s, {WRITERS} writers"]
            figures["etcd, three members"]["commits per raw put"] = own / raw
            await store.close()
            placing = await _placing(endpoints, folder)
            whole = await _pipeline(endpoints, nodes, replicas)
    return {**figures, **placing, **whole}


async def _pipeline(endpoints: tuple[str, ...], nodes: int, replicas: int) -> dict[str, Any]:
    """The pipeline benchmark with the region on each store."""
    etcd = ("--store", "etcd", "--etcd-endpoints", ",".join(endpoints))
    stores = {"memory": ("--store", "memory"), "sqlite": (), "etcd": etcd}
    found: dict[str, Any] = {}
    for name, options in stores.items():
        figures = await pipeline.measure("workloads", nodes, replicas, options)
        found[f"pipeline on {name}"] = {
            "bound_per_s": figures["per_s"],
            "region_us_per_replica": figures["region_us_per_replica"],
        }
    return found


async def _placing(endpoints: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """The authority benchmark on each store."""
    found = {"placing on memory": await measure(MemoryStore())}
    store: Store = SqliteStore(folder / "placing.db")
    found["placing on sqlite"] = await measure(store)
    store = await open_store("placing", EtcdTarget(endpoints=endpoints), None)
    found["placing on etcd"] = await measure(store)
    return found
