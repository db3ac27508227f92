"""Time from the first POST to the last Binding: 10,000 replicas on 5,000 hollow nodes, through the API.

A global cell and one region run as processes with SQLite (synchronous=FULL), TLS, authentication and audit, and a
process of hollow nodes. `bench/shapes.py` defines the shapes; `arrival` (`bench/arrival.py`) measures single replicas
on an idle region. Every shape starts new cells.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from bench import arrival
from bench.__main__ import Unknown
from bench.cells import REGION, TENANT, BenchCells, Process, bench_cells, first_objects, until_placing, until_ready
from bench.https import connect, request, send_all
from bench.load import ProgressPoller, posts, workload_body, workload_requests, workloads_path
from bench.shapes import BESIDE, SHAPES, Shape
from holdfast.client.http import HttpClient
from holdfast.model.meta import ObjectMeta
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.scheduler_policy import PolicyRules, PreemptionRules, SchedulerPolicy, SchedulerPolicySpec
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Create

CLIENTS = 64
CHURN_EVERY_S = 0.25
CHURN_REPLICAS = 20
CHURN_LIVES = 8
"""A churn workload is deleted after this many newer ones were created."""
NAMES = (*SHAPES, "arrival")

BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "bound_per_s": (1_500, None),
    "workloads_region_us_per_replica": (None, 450),
    "workloads_region_peak_mb": (None, 600),
    "singles_per_s": (750, None),
    "singles_region_peak_mb": (None, 600),
    "ready_per_s": (1_000, None),
    "spread_per_s": (1_000, None),
    "anti-affinity_per_s": (1_000, None),
    "backlog_cost_pct": (None, 20),
    "preemption_seconds": (None, 8),
    "arrival_p99_ms": (None, 25),
}
"""Bounds at full size."""
BY_SPEED = frozenset(BOUNDS) - {"workloads_region_peak_mb", "singles_region_peak_mb", "backlog_cost_pct"}

# The cells are idle below this CPU time per second. Heartbeats of up to AT_REST_NODES nodes stay below it; those of
# more nodes cost in proportion.
AT_REST_CPU_S = 0.25
AT_REST_NODES = 5_000
REST_SECONDS_MAX = 60
NODES_PER_S_LEAST = 50
"""Nodes that must be live per second; a busy machine registers a hundred or more."""


class Stage:
    """A global cell, a region and hollow nodes, ready to schedule."""

    def __init__(self, bench: BenchCells) -> None:
        self.bench = bench
        self.parts: dict[str, Process] = {}
        self._at_rest_cpu_s = AT_REST_CPU_S

    async def build(self, nodes: int, *hollow: str) -> None:
        bench = self.bench
        self._at_rest_cpu_s = AT_REST_CPU_S * max(1.0, nodes / AT_REST_NODES)
        self.parts["global"] = bench.start_cell("global")
        await until_ready(bench, "global")
        client = bench.client("global")
        try:
            await first_objects(client, region=True)
            await _beside(client)
            self.parts["region"] = bench.start_cell(REGION)
            await until_ready(bench, REGION)
            self.parts["hollow"] = bench.start_hollow(nodes, *hollow)
            await until_placing(client, nodes, within_s=max(90.0, nodes / NODES_PER_S_LEAST))
        finally:
            await client.close()

    def used(self) -> dict[str, float]:
        return {name: part.cpu_s() for name, part in self.parts.items()}

    async def rest(self) -> None:
        """Waits until the cells are idle, so that the setup does not affect the measurement."""
        for _ in range(REST_SECONDS_MAX):
            before = sum(self.used().values())
            await asyncio.sleep(1.0)
            if sum(self.used().values()) - before < self._at_rest_cpu_s:
                return
        raise TimeoutError(f"the cells are not idle after {REST_SECONDS_MAX} s")


async def _beside(client: HttpClient) -> None:
    """Creates a second tenant, a preempting priority class, and a policy without preemption limits."""
    rules = PolicyRules(preemption=PreemptionRules(per_tenant_per_minute=1_000_000))
    ample: Any = {"cpu": "1000000", "memory": "1000Ti", "gpu": "100000"}
    await client.commit(
        [
            Create(Tenant(ObjectMeta(name=BESIDE))),
            Create(
                PriorityClass(
                    ObjectMeta(name="urgent"), PriorityClassSpec(priority=1_000, may_preempt=True, tenants=("*",))
                )
            ),
            Create(SchedulerPolicy(ObjectMeta(name="default"), SchedulerPolicySpec(rules=rules))),
        ]
    )
    spec = QuotaSpec(hard=ample, pending_cap=1_000_000)
    await client.commit([Create(Quota(ObjectMeta(name="quota", namespace=BESIDE), spec))])


async def place(bench: BenchCells, shape: Shape, nodes: int, replicas: int) -> dict[str, float]:
    """Measures one shape with new cells."""
    stage = Stage(bench)
    await stage.build(nodes, *shape.hollow)
    poller = ProgressPoller(bench)
    url = bench.urls["global"]
    if shape.before is not None:
        await _before(bench, poller, shape, nodes, replicas)
    await stage.rest()
    messages = posts(url, shape.posted(replicas))
    gc.collect()
    async with _churning(bench) if shape.churn else contextlib.nullcontext():
        before, own = stage.used(), time.process_time()
        began = time.perf_counter()
        sending = asyncio.create_task(send_all(url, bench.tls(bench.user), messages, min(CLIENTS, len(messages))))
        looking = poller.until_ready(replicas) if shape.until_ready else poller.until_bound(replicas)
        counted = asyncio.create_task(looking)
        await sending
        posted_s = time.perf_counter() - began
        took_s = await counted - began
    figures = {
        "per_s": round(replicas / took_s, 1),
        "seconds": round(took_s, 3),
        "posted_s": round(posted_s, 3),
        "client_us_per_replica": round((time.process_time() - own) / replicas * 1e6, 1),
    }
    for name, used in stage.used().items():
        figures[f"{name}_us_per_replica"] = round((used - before[name]) / replicas * 1e6, 1)
        figures[f"{name}_peak_mb"] = round(stage.parts[name].memory_bytes("VmHWM") / 1e6, 1)
    return figures


async def _before(bench: BenchCells, poller: ProgressPoller, shape: Shape, nodes: int, replicas: int) -> None:
    """Creates the existing workloads and waits until they are placed or pending."""
    assert shape.before is not None
    url = bench.urls["global"]
    messages = posts(url, shape.before(nodes, replicas), BESIDE)
    await send_all(url, bench.tls(bench.operator), messages, min(CLIENTS, len(messages)))
    placed = shape.placed_before(nodes)
    if not placed:
        await poller.until_waiting(len(messages), BESIDE)
    elif shape.hollow:
        await poller.until_bound(placed, BESIDE)
    else:
        await poller.until_ready(placed, BESIDE)


@contextlib.asynccontextmanager
async def _churning(bench: BenchCells) -> AsyncIterator[None]:
    """Creates and deletes other workloads and cordons a node repeatedly inside the block."""
    task = asyncio.create_task(_churn(bench))
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _churn(bench: BenchCells) -> None:
    globe, region = bench.urls["global"], bench.urls[REGION]
    tls = bench.tls(bench.operator)
    at_global, at_region = await connect(globe, tls), await connect(region, tls)
    number = 0
    try:
        while True:
            name = f"churn{number:05}"
            await at_global.ask(posts(globe, [workload_body(name, CHURN_REPLICAS, tenant=BESIDE)], BESIDE)[0])
            if number >= CHURN_LIVES:
                old = f"{workloads_path(BESIDE)}/churn{number - CHURN_LIVES:05}"
                await at_global.ask(request(globe, "DELETE", old))
            patch = msgspec.json.encode({"spec": {"unschedulable": number % 2 == 0}})
            path = f"/apis/holdfast.dev/v1/nodes/{arrival.NODE}"
            await at_region.ask(request(region, "PATCH", path, patch, content="application/merge-patch+json"))
            number += 1
            await asyncio.sleep(CHURN_EVERY_S)
    finally:
        at_global.close()
        at_region.close()


async def measure(name: str, nodes: int = 0, replicas: int = 0, store: tuple[str, ...] = ()) -> dict[str, float]:
    """Measures one shape, in its own size if none is given. `store` has the region's store options; SQLite if empty."""
    shape = SHAPES["workloads" if name == "arrival" else name]
    size = shape.size(nodes, replicas)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place_, bench_cells(Path(place_)) as bench:
        bench.region_store = store
        if name == "arrival":
            stage = Stage(bench)
            await stage.build(size[0], *shape.hollow)
            return await arrival.measure(bench, arrivals=min(arrival.ARRIVALS, size[1]))
        return await place(bench, shape, *size)


async def run(nodes: int = 0, replicas: int = 0, shapes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Measures all shapes, or the named ones. `backlog` includes `workloads`, because its cost is the difference."""
    unknown = [name for name in shapes if name not in NAMES]
    if unknown:
        raise Unknown(f"shape {', '.join(unknown)}: not found (expected {', '.join(NAMES)})")
    chosen = [name for name in NAMES if not shapes or name in shapes or (name == "workloads" and "backlog" in shapes)]
    found: dict[str, dict[str, float]] = {}
    for name in chosen:
        found[name] = await measure(name, nodes, replicas)
        print(f"  {name}: {found[name]}", file=sys.stderr, flush=True)
    figures: dict[str, Any] = {}
    if "workloads" in found:
        figures["bound_per_s"] = found["workloads"]["per_s"]
    for shape, rows in found.items():
        figures.update({f"{shape}_{name}": value for name, value in rows.items()})
    if "backlog" in found:
        plain, beside = found["workloads"]["per_s"], found["backlog"]["per_s"]
        figures["backlog_cost_pct"] = round(max(0.0, 1 - beside / plain) * 100, 1)
    return figures


__all__ = ["BOUNDS", "NAMES", "TENANT", "measure", "run", "workload_requests"]
