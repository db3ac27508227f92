"""Steps for one workload of one replica, from its POST until it serves, in the global cell and in its region.

Rows are those of the cell's store, by kind; a commit is a transaction. Decodes, encodes, checked writes (validations),
keys woken (wake-ups) and Events are counted in the processes (`bench/counted_steps.py`). Workloads are posted one after
another on cells at rest, and each is followed until nothing changes any more. Kinds that a cell at rest writes too
(`AT_REST_KINDS`) are counted separately, per second and without any workload.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.cells import REGION, TENANT, BenchCells, bench_cells, first_objects, until_placing, until_ready
from bench.counted_steps import METRIC
from bench.https import connect, request
from bench.load import posts, workload_body
from holdfast.cell.storage import STORE_FILE
from holdfast.client.http import HttpClient
from holdfast.model.meta import is_condition_true
from holdfast.model.workload import Workload
from holdfast.store.schema import open_reader

NODES = 3
WORKLOADS = 20
WARM_UP = 5
SERVING_WITHIN_S = 30.0
SETTLED_AFTER_S = 2.5
"""Pause after a workload serves, in which delayed writes (debounced statuses, usage of a quota) are made."""
AT_REST_S = 20.0
AT_REST_KINDS = frozenset({"regions", "leases", "leasepages", "nodes", "terms"})
"""Kinds that heartbeats write."""
STEPS = ("decodes", "encodes", "validations", "wakeups", "events")
CELLS = ("global", REGION)

BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "global.rows": (None, 9),
    "global.rows_of.workloads": (1, 4),
    "global.audit_records": (None, 9),
    "region.rows": (None, 12),
    "at_rest.global.rows_per_s": (None, 0.8),
    "at_rest.global.audit_records_per_s": (None, 0.5),
}
"""Counts, so they hold on every machine."""


class _Count(Counter[str]):
    """Rows by kind, commits, audit records and steps of one cell up to a moment."""


async def _count(bench: BenchCells, cell: str) -> _Count:
    found = _Count()
    path = bench.place / cell / STORE_FILE
    reader = open_reader(path)
    try:
        for key, number in reader.execute("SELECT key, count(*) FROM history GROUP BY key"):
            found[f"rows_of.{str(key).split('/')[1]}"] += int(number)
        found["commits"] = int(reader.execute("SELECT count(DISTINCT last) FROM history").get)
        found["audit_records"] = int(reader.execute("SELECT count(*) FROM log WHERE name = 'audit'").get)
    finally:
        reader.close()
    line = await connect(bench.urls[cell], bench.tls(bench.operator))
    try:
        body = await line.ask(request(bench.urls[cell], "GET", "/metrics"))
    finally:
        line.close()
    for text in body.decode().splitlines():
        for step in STEPS:
            if text.startswith(f'{METRIC}_total{{step="{step}"}}'):
                found[step] = int(float(text.split()[-1]))
    return found


async def _until_serving(client: HttpClient, name: str) -> None:
    deadline = time.monotonic() + SERVING_WITHIN_S
    while time.monotonic() < deadline:
        found = await client.get(Workload, name, TENANT)
        if found is not None and is_condition_true(found.status.conditions, "Serving"):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"workload {name} did not serve within {SERVING_WITHIN_S} s")


async def _serve(bench: BenchCells, client: HttpClient, names: Iterable[str]) -> None:
    """Posts the workloads one after another; each serves, and the cells are at rest, before the next."""
    line = await connect(bench.urls["global"], bench.tls(bench.user))
    try:
        for name in names:
            await line.ask(posts(bench.urls["global"], [workload_body(name, 1)])[0])
            await _until_serving(client, name)
            await asyncio.sleep(SETTLED_AFTER_S)
    finally:
        line.close()


def _per_workload(before: _Count, after: _Count, workloads: int) -> dict[str, Any]:
    """Figures of one cell. Rows and commits of `AT_REST_KINDS` are left out."""
    change = {name: after[name] - before[name] for name in after}
    rows = {
        name.removeprefix("rows_of."): round(number / workloads, 2)
        for name, number in sorted(change.items())
        if name.startswith("rows_of.") and number and name.removeprefix("rows_of.") not in AT_REST_KINDS
    }
    found: dict[str, Any] = {"rows": round(sum(rows.values()), 2), "rows_of": rows}
    return found | {name: round(change.get(name, 0) / workloads, 2) for name in ("commits", "audit_records", *STEPS)}


def _without_rest(found: dict[str, Any], rest: dict[str, Any], seconds: float, workloads: int) -> dict[str, Any]:
    """The figures less what the cell does at rest in the same time."""
    for name in ("commits", "audit_records", *STEPS):
        idle = rest[f"{name}_per_s"] * seconds / workloads
        found[name] = round(max(0.0, found[name] - idle), 2)
    return found


def _per_second(before: _Count, after: _Count, seconds: float) -> dict[str, float]:
    rows = sum(after[name] - before[name] for name in after if name.startswith("rows_of."))
    found = {"rows_per_s": round(rows / seconds, 2)}
    return found | {
        f"{name}_per_s": round((after[name] - before[name]) / seconds, 2)
        for name in ("commits", "audit_records", *STEPS)
    }


async def run(workloads: int = WORKLOADS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place, bench_cells(Path(place)) as bench:
        bench.start_cell("global", program=("-m", "bench.counted_steps"))
        await until_ready(bench, "global")
        client = bench.client("global")
        try:
            await first_objects(client, region=True)
            bench.start_cell(REGION, program=("-m", "bench.counted_steps"))
            await until_ready(bench, REGION)
            bench.start_hollow(NODES)
            await until_placing(client, NODES)
            await _serve(bench, client, [f"warm{number:03}" for number in range(WARM_UP)])
            resting = {cell: await _count(bench, cell) for cell in CELLS}
            began = time.monotonic()
            await asyncio.sleep(AT_REST_S)
            before = {cell: await _count(bench, cell) for cell in CELLS}
            rested_s, began = time.monotonic() - began, time.monotonic()
            print(f"  at rest for {rested_s:.0f} s; then {workloads} workloads", file=sys.stderr, flush=True)
            await _serve(bench, client, [f"w{number:03}" for number in range(workloads)])
            took_s = time.monotonic() - began
            after = {cell: await _count(bench, cell) for cell in CELLS}
        finally:
            await client.close()
    names = dict(zip(CELLS, ("global", "region"), strict=True))
    rest = {names[cell]: _per_second(resting[cell], before[cell], rested_s) for cell in CELLS}
    figures: dict[str, Any] = {
        names[cell]: _without_rest(
            _per_workload(before[cell], after[cell], workloads), rest[names[cell]], took_s, workloads
        )
        for cell in CELLS
    }
    return figures | {"at_rest": rest}
