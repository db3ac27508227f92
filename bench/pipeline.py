"""From the first POST to the last binding: 10,000 replicas on 5,000 hollow nodes, through the real API.

A global cell and one region, each a process on a SQLite file with synchronous=FULL, TLS, authentication and audit on; a
process of hollow nodes that heartbeat and follow their bindings. Nodes have 4 CPU and 32Gi, replicas ask for 100m and
500Mi, as Kubernetes' scheduler_perf SchedulingBasic. Shapes:

- workloads: 20 workloads of 500 replicas each;
- singles: 10,000 workloads of one replica, posted one by one from 64 clients, the global hop included;
- ready: the first shape again, until every replica is reported ready; hollow work takes 0.2 to 1 s to start.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.cells import REGION, TENANT, Bed, Process, bed, first_objects, until_placing, until_ready
from bench.https import connect, request, send_all
from holdfast.model.meta import ObjectMeta
from holdfast.model.template import Template
from holdfast.model.workload import Workload, WorkloadSpec

NODES = 5_000
REPLICAS = 10_000
PER_WORKLOAD = 500
CLIENTS = 64
LOOK_EVERY_S = 0.05
MOST_S = 120.0
RESOURCES = {"cpu": "100m", "memory": "500Mi"}
LATER = ("--start-delay", "300")
"""Hollow work that does not begin while bindings are counted, as in scheduler_perf, where nodes run nothing."""


class _ListMeta(msgspec.Struct, rename="camel"):
    remaining_item_count: int = 0


class _Count(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] = []


class _Summary(msgspec.Struct):
    ready: int = 0


class _Status(msgspec.Struct):
    summary: _Summary = msgspec.field(default_factory=_Summary)


class _Item(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class _Items(msgspec.Struct):
    items: list[_Item] = []


def workload_body(name: str, replicas: int, **spec: Any) -> bytes:
    template = Template(driver="hollow", command=("serve",), resources=RESOURCES)  # type: ignore[arg-type]
    item = Workload(ObjectMeta(name=name, namespace=TENANT), WorkloadSpec(replicas=replicas, template=template, **spec))
    plain = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", **msgspec.to_builtins(item)}
    plain.pop("status", None)
    plain["metadata"] = {"name": name, "namespace": TENANT}
    return msgspec.json.encode(plain)


def workload_requests(url: str, count: int, replicas: int) -> list[bytes]:
    path = f"/apis/holdfast.dev/v1/namespaces/{TENANT}/workloads"
    return [request(url, "POST", path, workload_body(f"w{number:05}", replicas)) for number in range(count)]


class Watcher:
    """Counts from outside, at little cost to the cells: a list of one item says how many follow."""

    def __init__(self, made: Bed) -> None:
        self._made = made
        self._bindings = request(
            made.urls[REGION], "GET", f"/apis/holdfast.dev/v1/namespaces/{TENANT}/bindings?limit=1"
        )
        self._workloads = request(made.urls["global"], "GET", f"/apis/holdfast.dev/v1/namespaces/{TENANT}/workloads")

    async def until_bound(self, wanted: int) -> float:
        return await self._until("bound", REGION, self._bindings, _bound, wanted)

    async def until_ready(self, wanted: int) -> float:
        return await self._until("ready", "global", self._workloads, _ready, wanted)

    async def _until(self, what: str, cell: str, message: bytes, count: Any, wanted: int) -> float:
        """The moment when so many were counted."""
        line = await connect(self._made.urls[cell], self._made.tls(self._made.operator))
        deadline = time.perf_counter() + MOST_S
        found = 0
        try:
            while time.perf_counter() < deadline:
                found = count(await line.ask(message))
                if found >= wanted:
                    return time.perf_counter()
                self._made.check()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            line.close()
        raise TimeoutError(f"{found} of {wanted} replicas were {what} after {MOST_S} s")


def _bound(body: bytes) -> int:
    found = msgspec.json.decode(body, type=_Count)
    return len(found.items) + found.metadata.remaining_item_count


def _ready(body: bytes) -> int:
    return sum(item.status.summary.ready for item in msgspec.json.decode(body, type=_Items).items)


class Stage:
    """A whole small world, ready to place."""

    def __init__(self, made: Bed) -> None:
        self.made = made
        self.parts: dict[str, Process] = {}

    async def build(self, nodes: int, *hollow: str) -> None:
        made = self.made
        self.parts["global"] = made.start_cell("global")
        await until_ready(made, "global")
        client = made.client("global")
        try:
            await first_objects(client, region=True)
            self.parts["region"] = made.start_cell(REGION)
            await until_ready(made, REGION)
            self.parts["hollow"] = made.start_hollow(nodes, *hollow)
            await until_placing(client, nodes)
        finally:
            await client.close()

    def used(self) -> dict[str, float]:
        return {name: part.cpu_s() for name, part in self.parts.items()}


async def place(made: Bed, nodes: int, replicas: int, per_workload: int, *, ready: bool = False) -> dict[str, float]:
    """One shape in a fresh world."""
    stage = Stage(made)
    await stage.build(nodes, *(() if ready else LATER))
    watcher = Watcher(made)
    url = made.urls["global"]
    messages = workload_requests(url, replicas // per_workload, per_workload)
    gc.collect()
    before, own = stage.used(), time.process_time()
    began = time.perf_counter()
    sending = asyncio.create_task(send_all(url, made.tls(made.user), messages, min(CLIENTS, len(messages))))
    looking = asyncio.create_task(watcher.until_ready(replicas) if ready else watcher.until_bound(replicas))
    await sending
    posted_s = time.perf_counter() - began
    took_s = await looking - began
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


async def run(nodes: int = NODES, replicas: int = REPLICAS, shapes: tuple[str, ...] = ()) -> dict[str, Any]:
    per_workload = {"workloads": min(PER_WORKLOAD, replicas), "singles": 1, "ready": min(PER_WORKLOAD, replicas)}
    found: dict[str, dict[str, float]] = {}
    for shape in shapes or tuple(per_workload):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place_, bed(Path(place_)) as made:
            found[shape] = await place(made, nodes, replicas, per_workload[shape], ready=shape == "ready")
    figures: dict[str, Any] = {}
    if "workloads" in found:
        figures["bound_per_s"] = found["workloads"]["per_s"]
    for shape, rows in found.items():
        figures.update({f"{shape}_{name}": value for name, value in rows.items()})
    return figures
