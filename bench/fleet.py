"""A fleet: hollow regions on one global cell (SQLite, TLS, authentication and audit), and many workloads.

Measures the time until every workload is assigned and reported as serving, the CPU time and memory of the global cell
at rest, and the recovery of the critical workloads, which all run in one region, when that region is lost. That region
has a process of its own (`bench/hollow_regions.py`), which is killed.

Critical workloads may run in every region, so each compares all of them. The others may run in three each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.cells import BenchCells, Process, bench_cells, free_port, until_ready
from bench.hollow_regions import NODE_CPU, HollowConfig, RegionIdentity, zones_of
from holdfast.client.http import HttpClient
from holdfast.model.errors import Expired, Overloaded, Unavailable
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.principal import REGIONS as REGIONS_GROUP
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quantity import Amount
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.region import HealthState, Region, RegionSpec
from holdfast.model.template import DriverName, Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import RecoveryObjective, Workload, WorkloadSpec
from holdfast.model.writes import Create, Write

REGIONS = 100
WORKLOADS = 10_000
CRITICAL_PART = 50
"""One workload of this many is critical: 2,000 of 100,000."""
NODES = 1_000
"""Nodes that each region reports."""
TENANTS = 20
CRITICAL_TENANT = "critical"
SHAPE: dict[str, Amount] = {"cpu": "500m", "memory": "256Mi"}
ALLOWED_REGIONS = 3
LOST_AFTER_S = 15.0
STARTS_PER_S = 100.0
CHEAP, USUAL = 10, 100
WRITES = 200
POSTS_AT_ONCE = 4
POST_TRIES = 10
AT_REST_S = 10.0
SETTLE_CPU_CHANGE = 0.1
WORKLOADS_PER_S_LEAST = 40
"""A run fails if the global cell absorbs fewer."""
MOST_S = 300.0
POLL_EVERY_S = 0.5
MB = 1e6

BOUNDS: dict[str, tuple[float | None, float | None]] = {"recovered_seconds": (None, 60), "short": (None, 0)}
"""At full size."""


def _region(number: int) -> str:
    return f"r{number:04}"


LOST = _region(0)


def start_regions(bench: BenchCells, names: list[str], ports: dict[str, int], label: str) -> Process:
    identities = []
    for name in names:
        user = bench.issue_user(f"link-{name}", f"holdfast:region:{name}", (REGIONS_GROUP,))
        identities.append(RegionIdentity(name, user.cert, user.key, ports[name]))
    config = bench.place / f"{label}.json"
    made = HollowConfig(bench.urls["global"], bench.ca, NODES, tuple(identities), ports)
    config.write_bytes(msgspec.json.encode(made))
    return bench.start_program(label, ["-m", "bench.hollow_regions", str(config)])


async def build(bench: BenchCells, regions: int, critical: int) -> tuple[HttpClient, Process, list[Process]]:
    """Starts the global cell and the hollow regions, and waits until all of them are healthy."""
    cell = bench.start_cell("global")
    await until_ready(bench, "global")
    client = bench.client("global")
    names = [_region(number) for number in range(regions)]
    ports = {name: free_port() for name in names}
    tenants = [CRITICAL_TENANT, *(f"t{number:03}" for number in range(TENANTS))]
    first: list[Write] = [Create(Tenant(ObjectMeta(name=tenant))) for tenant in tenants]
    first += [
        Create(PriorityClass(ObjectMeta(name="standard"), PriorityClassSpec(tenants=("*",)))),
        Create(PriorityClass(ObjectMeta(name="critical"), PriorityClassSpec(priority=1_000, tenants=("*",)))),
    ]
    first += [
        Create(
            Region(
                ObjectMeta(name=name),
                RegionSpec(
                    zones=zones_of(name),
                    endpoint=f"https://127.0.0.1:{ports[name]}",
                    lost_after_seconds=LOST_AFTER_S,
                    cost=CHEAP if name == LOST else USUAL,  # so that the critical workloads start there
                ),
            )
        )
        for name in names
    ]
    await _commit(client, first)
    cpu = regions * NODES * NODE_CPU
    ample: dict[str, Amount] = {"cpu": str(cpu), "memory": f"{cpu}Gi"}
    spec = QuotaSpec(hard=ample, recovery_allowance=ample, pending_cap=10_000_000)
    await _commit(client, [Create(Quota(ObjectMeta(name="quota", namespace=tenant), spec)) for tenant in tenants])
    slots = (SlotShape(resources=SHAPE, count=-(-critical * 3 // (2 * (regions - 1))), min_zones=1),)
    await _commit(
        client,
        [
            Create(
                RecoveryBudget(
                    ObjectMeta(name=name),
                    RecoveryBudgetSpec(region=name, slot_shapes=slots, starts_per_second=STARTS_PER_S),
                )
            )
            for name in names
            if name != LOST
        ],
    )
    processes = [
        start_regions(bench, [LOST], ports, "lost-region"),
        start_regions(bench, [name for name in names if name != LOST], ports, "other-regions"),
    ]
    await _until(lambda: _healthy(client, regions), "every region is healthy")
    return client, cell, processes


async def _commit(client: HttpClient, writes: list[Write]) -> None:
    for start in range(0, len(writes), WRITES):
        await _commit_some(client, writes[start : start + WRITES])


async def _commit_some(client: HttpClient, writes: Sequence[Write]) -> None:
    """One commit, again if a busy cell refused it or was not reached. Neither took effect."""
    for _ in range(POST_TRIES - 1):
        with contextlib.suppress(Unavailable, Overloaded):
            await client.commit(writes, brief=True)
            return
        await asyncio.sleep(POLL_EVERY_S)
    await client.commit(writes, brief=True)


async def _healthy(client: HttpClient, regions: int) -> bool:
    found = (await client.list(Region)).items
    return len(found) == regions and all(r.status.health.state is HealthState.HEALTHY for r in found)


async def _until(true: Any, what: str, *, within_s: float = MOST_S) -> float:
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        with contextlib.suppress(Unavailable, Overloaded):  # a busy cell is asked again
            if await true():
                return time.monotonic() - began
        await asyncio.sleep(POLL_EVERY_S)
    raise TimeoutError(f"not within {within_s:.0f} s: {what}")


def _template() -> Template:
    return Template(driver=DriverName.HOLLOW, command=("serve",), resources=SHAPE)


def _critical(number: int) -> Workload:
    return Workload(
        ObjectMeta(name=f"c{number:06}", namespace=CRITICAL_TENANT),
        WorkloadSpec(
            replicas=1,
            template=_template(),
            priority_class_name="critical",
            placement=PlacementRules(spread_regions=1),
            recovery=RecoveryObjective(min_serving=1),
        ),
    )


def _ordinary(number: int, regions: int) -> Workload:
    allowed = tuple(sorted({_region(1 + (number + step) % (regions - 1)) for step in range(ALLOWED_REGIONS)}))
    return Workload(
        ObjectMeta(name=f"w{number:06}", namespace=f"t{number % TENANTS:03}"),
        WorkloadSpec(
            replicas=1,
            template=_template(),
            priority_class_name="standard",
            placement=PlacementRules(regions=allowed, spread_regions=1),
        ),
    )


async def post(client: HttpClient, workloads: list[Workload]) -> None:
    """Commits of many workloads, several at once."""
    batches = [workloads[start : start + WRITES] for start in range(0, len(workloads), WRITES)]
    running = asyncio.Semaphore(POSTS_AT_ONCE)

    async def one(batch: list[Workload]) -> None:
        async with running:
            await _commit_some(client, [Create(workload) for workload in batch])

    await asyncio.gather(*(one(batch) for batch in batches))


class Absorbed:
    """Counts the workloads that serve, from watch events: lists of all would load the cell that is measured."""

    def __init__(self, client: HttpClient, tenants: list[str]) -> None:
        self._client = client
        self.serving: dict[Key, None] = {}
        self._tasks = [asyncio.create_task(self._follow(tenant)) for tenant in tenants]

    async def _follow(self, tenant: str) -> None:
        while True:
            with contextlib.suppress(Unavailable, Overloaded, Expired):  # a busy cell: list and watch again
                listed = await self._client.list(Workload, tenant)
                self._count(listed.items)
                async for batch in self._client.watch(Workload, tenant, after=listed.revision):
                    self._count([event.object for event in batch if event.object is not None])
            await asyncio.sleep(POLL_EVERY_S)

    def _count(self, workloads: Sequence[Workload]) -> None:
        self.serving.update((item.key, None) for item in workloads if item.status.summary.serving)

    async def until(self, expected: int) -> None:
        within_s = max(MOST_S, expected / WORKLOADS_PER_S_LEAST)

        async def enough() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return len(self.serving) >= expected

        await _until(enough, f"{expected} workloads serve", within_s=within_s)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def measure(bench: BenchCells, regions: int, workloads: int) -> dict[str, Any]:
    critical = max(1, workloads // CRITICAL_PART)
    client, cell, processes = await build(bench, regions, critical)
    async with contextlib.AsyncExitStack() as tidying:
        tidying.push_async_callback(client.close)
        idle = await _at_rest(cell)
        absorbed = Absorbed(client, [CRITICAL_TENANT, *(f"t{number:03}" for number in range(TENANTS))])
        tidying.push_async_callback(absorbed.stop)
        empty_mb, cpu, began = cell.memory_bytes("VmRSS") / MB, cell.cpu_s(), time.monotonic()
        await post(client, [_critical(number) for number in range(critical)])
        await absorbed.until(critical)
        chosen_cpu, chosen_s = cell.cpu_s() - cpu, time.monotonic() - began
        cpu, began = cell.cpu_s(), time.monotonic()
        await post(client, [_ordinary(number, regions) for number in range(workloads - critical)])
        posted_s = time.monotonic() - began
        await absorbed.until(workloads)
        took_s, used_cpu = time.monotonic() - began, cell.cpu_s() - cpu
        await absorbed.stop()
        print(f"  absorbed in {took_s:.0f} s", file=sys.stderr, flush=True)
        steady = await _at_rest(cell)
        figures = {
            "regions": regions,
            "workloads": workloads,
            "critical": critical,
            "posted_s": round(posted_s, 1),
            "absorbed_s": round(took_s, 1),
            "absorbed_per_s": round((workloads - critical) / took_s, 1),
            "global_us_per_workload": round(used_cpu / (workloads - critical) * 1e6),
            "global_us_per_critical": round(chosen_cpu / critical * 1e6),
            "critical_absorbed_s": round(chosen_s, 1),
            "idle_cpu_s_per_s": round(idle, 3),
            "steady_cpu_s_per_s": round(steady, 3),
            "empty_mb": round(empty_mb, 1),
            "full_mb": round(cell.memory_bytes("VmRSS") / MB, 1),
            "peak_mb": round(cell.memory_bytes("VmHWM") / MB, 1),
            "store_mb": round(
                sum(f.stat().st_size for f in (bench.place / "global").rglob("*") if f.is_file()) / MB, 1
            ),
        }
        return figures | await _lose(client, cell, processes[0], critical)


async def _at_rest(cell: Process) -> float:
    """CPU time per second of the global cell, when two intervals in a row use about the same."""
    before = cell.cpu_s()
    last = None
    for _ in range(int(MOST_S / AT_REST_S)):
        await asyncio.sleep(AT_REST_S)
        now = cell.cpu_s()
        used, before = (now - before) / AT_REST_S, now
        if last is not None and used >= last * (1 - SETTLE_CPU_CHANGE):
            return used
        last = used
    raise TimeoutError(f"the CPU time of the global cell still falls after {MOST_S:.0f} s")


async def _lose(client: HttpClient, cell: Process, lost: Process, critical: int) -> dict[str, Any]:
    """Kills the region with the critical workloads, and waits until they serve in others."""
    touched, _ = await _served(client)
    cpu, died = cell.cpu_s(), time.monotonic()
    os.kill(lost.pid, signal.SIGKILL)
    detected_s = 0.0
    elsewhere = 0
    while elsewhere < critical and time.monotonic() - died < MOST_S:
        await asyncio.sleep(POLL_EVERY_S)
        with contextlib.suppress(Unavailable, Overloaded):
            if not detected_s:
                region = await client.get(Region, LOST)
                if region is not None and region.status.health.state is HealthState.LOST:
                    detected_s = time.monotonic() - died
            _, elsewhere = await _served(client)
    return {
        "lost_workloads": touched,
        "detected_seconds": round(detected_s, 1),
        "recovered_seconds": round(time.monotonic() - died, 1),
        "recovery_cpu_s": round(cell.cpu_s() - cpu, 1),
        "short": critical - elsewhere,
    }


async def _served(client: HttpClient) -> tuple[int, int]:
    """Critical workloads that serve in the lost region, and in others."""
    here = elsewhere = 0
    for workload in (await client.list(Workload, CRITICAL_TENANT)).items:
        rows = workload.status.summary.regions
        here += any(row.region == LOST and row.serving for row in rows)
        elsewhere += any(row.region != LOST and row.serving for row in rows)
    return here, elsewhere


async def run(regions: int = REGIONS, workloads: int = WORKLOADS) -> dict[str, Any]:
    """Runs with this many hollow regions and workloads."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place, bench_cells(Path(place)) as bench:
        return await measure(bench, max(ALLOWED_REGIONS + 1, regions), workloads)
