"""Optimistic conflicts: proposals that came second, per thousand placements, with 1, 2, 4 and 8 schedulers of a region.

Load model: all replicas are pending at the start, in workloads of REPLICAS_PER_WORKLOAD. Every scheduler sees every
request and plans it from its own cache: the worst case, because schedulers do not divide the work. `free` nodes hold
four times the load, `tight` nodes a tenth more than the load. The cell is real: SQLite, gate, authority, watches.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import structlog

from bench.authority import fill
from holdfast.cell.cell import Cell
from holdfast.controllers.informer import Informers
from holdfast.foundation import metrics
from holdfast.foundation.ports import SystemPorts
from holdfast.model.binding import Binding
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import ContactBlock, ContactState, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.placement_api import PlacementOutcome
from holdfast.model.principal import controller
from holdfast.model.replica import Replica, ReplicaSpec
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template, template_hash
from holdfast.scheduler.scheduler import Scheduler
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

REGION = "bench"
SCHEDULERS = (1, 2, 4, 8)
REPLICAS = 2_000
REPLICAS_PER_WORKLOAD = 100
REPLICAS_PER_NODE = 8
LOADS = {"free": 4.0, "tight": 1.1}
"""Room of all nodes by load."""
TIMEOUT_S = 120.0
QUIET_S = 0.5
BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "free.one.conflicts_per_1000": (None, 0),
    "tight.one.conflicts_per_1000": (None, 0),
    # Schedulers that plan everything at once come second with nearly everything, and with nothing twice.
    "free.eight.conflicts_per_1000": (None, 8_000),
    "tight.eight.conflicts_per_1000": (None, 8_000),
}
NAMES = {1: "one", 2: "two", 4: "four", 8: "eight"}
TEMPLATE = Template(command=("serve",), resources={"cpu": "500m", "memory": "1Gi"})


def _world(replicas: int, room: float, now: float) -> list[Object]:
    """Live nodes, a grant, and the pending replicas with their requests."""
    status = NodeStatus(
        contact=ContactBlock(state=ContactState.LIVE), execution=NodeExecution(epoch=1, reconciled=True)
    )
    count = max(1, round(replicas * room / REPLICAS_PER_NODE))
    capacity: dict[str, Any] = {"cpu": f"{REPLICAS_PER_NODE * 500}m", "memory": f"{REPLICAS_PER_NODE}Gi"}
    names = [f"n-{number}" for number in range(count)]
    nodes = [Node(ObjectMeta(name=name, uid=name), NodeSpec("z", capacity=capacity), status) for name in names]
    leases = {name: NodeLease(1, now, 3600.0) for name in names}
    page = LeasePage(ObjectMeta(name="page-0", uid="page-0"), LeasePageSpec(0, leases))
    limit = GrantCopySpec(limit={"cpu": 10**6, "memory": "1Pi"})
    copy = GrantCopy(ObjectMeta(name=f"{REGION}.normal", namespace="t", uid="g"), limit)
    work: list[Object] = []
    for first in range(0, replicas, REPLICAS_PER_WORKLOAD):
        name = f"w{first}"
        members = []
        for ordinal in range(min(REPLICAS_PER_WORKLOAD, replicas - first)):
            meta = ObjectMeta(name=f"{name}-{ordinal}", namespace="t", uid=f"{name}-{ordinal}", generation=1)
            spec = ReplicaSpec(
                name, name, f"{name}.{REGION}.normal", template_hash(TEMPLATE), TEMPLATE, ordinal=ordinal
            )
            work.append(Replica(meta, spec))
            members.append(RequestMember(meta.name, meta.uid, 1))
        spec_of_request = SchedulingRequestSpec(
            workload=name,
            assignment=f"{name}.{REGION}.normal",
            revision=template_hash(TEMPLATE),
            template=TEMPLATE,
            members=tuple(members),
        )
        meta = ObjectMeta(
            name=name, namespace="t", uid=f"request-{name}", generation=1, creation_timestamp="2026-01-01T00:00:00Z"
        )
        work.append(SchedulingRequest(meta, spec_of_request))
    return [*nodes, page, copy, *work]


def _counted() -> Counter[str]:
    """Responses of the authority to proposals, by result and reason, and commits that lost a compare-and-swap."""
    found: Counter[str] = Counter()
    for metric in (metrics.SCHEDULER_RESPONSES, metrics.AUTHORITY_CONFLICTS):
        for family in metric.collect():
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    found["/".join(sample.labels.values()) or "cas"] += int(sample.value)
    return found


async def _when_answered(before: Counter[str]) -> Counter[str]:
    """The counts once every proposal in flight has its response."""
    counted = _counted()
    while True:
        await asyncio.sleep(QUIET_S)
        counted, last = _counted(), counted
        if counted == last:
            return counted - before


async def measure(schedulers: int, replicas: int, room: float) -> dict[str, Any]:
    ports = SystemPorts()
    with tempfile.TemporaryDirectory() as place:
        store = SqliteStore(Path(place) / "cell.db")
        cell = Cell(REGION, store, MemoryStore(), ports, identity=REGION, parts=frozenset({"api", "authority"}))
        await cell.objects.start()
        await fill(cell.objects, _world(replicas, room, ports.clock.now()))
        await cell.start()
        running = []
        for _ in range(schedulers):
            client = cell.client(controller("scheduler", cell=REGION))
            informers = Informers(client, ports)
            running.append((informers, Scheduler(client, informers, ports, REGION)))
        try:
            while not all(cell.ready().values()):
                await asyncio.sleep(0.01)
            before, began = _counted(), time.perf_counter()
            for informers, scheduler in running:
                await informers.start()
                await scheduler.start()
            while len(cell.objects.list(kind_of(Binding))[0]) < replicas:
                if time.perf_counter() - began > TIMEOUT_S:
                    raise RuntimeError(f"{schedulers} schedulers did not place {replicas} replicas in {TIMEOUT_S:g} s")
                await asyncio.sleep(0.005)
            took_s = time.perf_counter() - began
            counted = await _when_answered(before)
        finally:
            for informers, scheduler in running:
                await scheduler.stop()
                await informers.stop()
            await cell.stop()
            await store.close()
    return _figures(counted, replicas, took_s)


def _figures(counted: Counter[str], replicas: int, took_s: float) -> dict[str, Any]:
    per_thousand = 1000.0 / replicas
    already = sum(n for name, n in counted.items() if name.startswith(PlacementOutcome.ALREADY))
    refused = {name.partition("/")[2]: n for name, n in counted.items() if name.startswith(PlacementOutcome.REJECTED)}
    reasons = ", ".join(f"{name} {n}" for name, n in sorted(refused.items(), key=lambda row: -row[1]))
    return {
        "bound_per_s": round(replicas / took_s),
        "conflicts_per_1000": round((sum(refused.values()) + already + counted["cas"]) * per_thousand, 1),
        "refused_per_1000": round(sum(refused.values()) * per_thousand, 1),
        "repeated_per_1000": round(already * per_thousand, 1),
        "cas_conflicts_per_1000": round(counted["cas"] * per_thousand, 1),
        "refused_because": reasons or "none",
    }


async def run(replicas: int = 0) -> dict[str, Any]:
    """`conflicts` is the sum of three. `refused`: the node has no room any more. `repeated`: another scheduler has
    placed the replica. `cas_conflicts`: commits of the authority that lost a compare-and-swap and were repeated."""
    size, logging_before = replicas or REPLICAS, structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        return {
            load: {NAMES[number]: await measure(number, size, room) for number in SCHEDULERS}
            for load, room in LOADS.items()
        }
    finally:
        structlog.configure(**logging_before)
