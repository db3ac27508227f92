"""Store throughput: commits, rows and watch streams, and memory of objects."""

from __future__ import annotations

import asyncio
import gc
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast.model import codec, kinds
from holdfast.model.meta import ObjectMeta
from holdfast.model.template import Port, Template
from holdfast.model.workload import Workload, WorkloadSpec
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects
from holdfast.store.sqlite import SqliteStore

SEQUENTIAL_COMMITS = 500
WRITERS = 64
COMMITS_PER_WRITER = 50
BATCH_ROWS = 256
BATCHES = 40
SUBSCRIBERS = 500
FAN_OUT_COMMITS = 50
FAN_OUT_ROWS = 10
OBJECTS = 10_000

_WORKLOAD = kinds.BY_NAME["Workload"]
_TEMPLATE = Template(
    command=("serve", "--port", "8080"), resources={"cpu": "500m", "memory": "1Gi"}, ports=(Port(name="http"),)
)


def workload(number: int) -> Workload:
    meta = ObjectMeta(
        name=f"workload-{number:06}",
        namespace="acme",
        uid=f"00000000-0000-4000-8000-{number:012}",
        generation=1,
        creation_timestamp="2026-01-01T00:00:00Z",
        labels={"app": f"app-{number % 100}", "team": "payments"},
        finalizers=("holdfast.dev/assignments",),
    )
    return Workload(metadata=meta, spec=WorkloadSpec(template=_TEMPLATE, replicas=number % 9))


def put(number: int) -> Put:
    item = workload(number)
    return Put(_WORKLOAD.store_key("acme", item.metadata.name), codec.encode(item), item)


async def _per_second(count: int, work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return count / (time.perf_counter() - started)


async def commits(store: SqliteStore) -> dict[str, float]:
    async def one_by_one(key: str, count: int) -> None:
        value = put(0).value
        for i in range(count):
            await store.commit(Txn(writes=(Put(f"/{key}/{i}", value),)))

    async def at_once() -> None:
        await asyncio.gather(*(one_by_one(f"w{writer}", COMMITS_PER_WRITER) for writer in range(WRITERS)))

    async def batches() -> None:
        for batch in range(BATCHES):
            rows = tuple(put(batch * BATCH_ROWS + i) for i in range(BATCH_ROWS))
            await store.commit(Txn(writes=rows))

    alone = await _per_second(SEQUENTIAL_COMMITS, lambda: one_by_one("s", SEQUENTIAL_COMMITS))
    grouped = await _per_second(WRITERS * COMMITS_PER_WRITER, at_once)
    return {
        "commits/s, one writer": alone,
        f"commits/s, {WRITERS} writers": grouped,
        "gain of group commit": grouped / alone,
        f"rows/s in batches of {BATCH_ROWS}": await _per_second(BATCHES * BATCH_ROWS, batches),
    }


async def fan_out() -> dict[str, float]:
    """Changes/s delivered to many subscribers of one kind."""
    objects = Objects(MemoryStore(), MemoryStore())
    await objects.start()
    total = FAN_OUT_COMMITS * FAN_OUT_ROWS

    async def read() -> None:
        count = 0
        async for changes in objects.stream(_WORKLOAD, after=0):
            count += len(changes)
            if count == total:
                return

    async def work() -> None:
        readers = [asyncio.create_task(read()) for _ in range(SUBSCRIBERS)]
        await asyncio.sleep(0)
        for commit in range(FAN_OUT_COMMITS):
            rows = tuple(put(commit * FAN_OUT_ROWS + i) for i in range(FAN_OUT_ROWS))
            await objects.commit(_WORKLOAD, Txn(writes=rows))
            await asyncio.sleep(0)
        await asyncio.gather(*readers)

    delivered = await _per_second(total * SUBSCRIBERS, work)
    await objects.close()
    return {f"changes/s delivered to {SUBSCRIBERS} streams": delivered}


async def memory(place: Path) -> dict[str, float]:
    """Memory and time to open a file of typical objects and decode them."""
    store = SqliteStore(place / "memory.db")
    for start in range(0, OBJECTS, BATCH_ROWS):
        rows = (Put(p.key, p.value) for p in map(put, range(start, min(start + BATCH_ROWS, OBJECTS))))
        await store.commit(Txn(writes=tuple(rows)))
    await store.close()
    del store
    gc.collect()
    before = _resident_bytes()
    store = SqliteStore(place / "memory.db")
    objects = Objects(store, MemoryStore())
    started = time.perf_counter()
    await objects.start()
    decoded_s = time.perf_counter() - started
    used = _resident_bytes() - before
    await objects.close()
    await store.close()
    return {f"MiB for {OBJECTS:,} workloads": used / 2**20, f"seconds to decode {OBJECTS:,}": decoded_s}


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def run() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        memory_bytes = await memory(Path(place))
        store = SqliteStore(Path(place) / "commits.db")
        figures = await commits(store)
        await store.close()
    return {**figures, **await fan_out(), **memory_bytes}
