"""Latency from the arrival of one replica to its durable Binding, on an idle region with many nodes.

Single-replica workloads are created one after another. Two latencies are measured: in the region, from the Assignment
to the Binding, and from the POST at the global cell to the Binding. All times are those of watch events, which are sent
after the commit is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

from bench.cells import PREFIX, REGION, TENANT, BenchCells
from bench.https import connect
from bench.load import posts, workload_body
from holdfast.client.http import HttpClient
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.meta import Object

ARRIVALS = 300
WARM_UP = 20
BETWEEN_S = 0.05
"""Pause between two arrivals, in which the region is idle."""
EACH_MOST_S = 10.0
NODE = f"{PREFIX}00000"

Kind = TypeVar("Kind", bound=Object)


class _FirstEvents:
    """Time of the first watch event of each workload."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self._changed = asyncio.Condition()

    async def follow(self, client: HttpClient, kind: type[Kind], workload: Callable[[Kind], str]) -> None:
        listed = await client.list(kind, TENANT)
        async for batch in client.watch(kind, TENANT, after=listed.revision):
            now = time.perf_counter()
            async with self._changed:
                for event in batch:
                    if event.object is not None:
                        self.at.setdefault(workload(event.object), now)
                self._changed.notify_all()

    async def wait(self, name: str) -> float:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: name in self.at), EACH_MOST_S)
        return self.at[name]


async def measure(bench: BenchCells, *, arrivals: int) -> dict[str, float]:
    """Latencies in milliseconds: median, 99th percentile and maximum."""
    clients = [bench.client(REGION), bench.client(REGION)]
    assigned, bound = _FirstEvents(), _FirstEvents()
    tasks = [
        asyncio.create_task(assigned.follow(clients[0], Assignment, lambda found: found.spec.workload)),
        asyncio.create_task(bound.follow(clients[1], Binding, lambda found: found.spec.workload)),
    ]
    line = await connect(bench.urls["global"], bench.tls(bench.user))
    here, whole = [], []
    try:
        for number in range(WARM_UP + arrivals):
            name = f"a{number:05}"
            message = posts(bench.urls["global"], [workload_body(name, 1)])[0]
            began = time.perf_counter()
            await line.ask(message)
            ended = await bound.wait(name)
            arrived = await assigned.wait(name)
            if number >= WARM_UP:
                here.append((ended - arrived) * 1e3)
                whole.append((ended - began) * 1e3)
            await asyncio.sleep(BETWEEN_S)
    finally:
        line.close()
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for client in clients:
            await client.close()
    return {"count": arrivals, **_rows("", here), **_rows("with_global_", whole)}


def _rows(before: str, took_ms: list[float]) -> dict[str, float]:
    ordered = sorted(took_ms)
    at_99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return {
        f"{before}p50_ms": round(statistics.median(ordered), 2),
        f"{before}p99_ms": round(at_99, 2),
        f"{before}max_ms": round(ordered[-1], 2),
    }
