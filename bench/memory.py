"""Memory per object of the kinds that a cell holds most of: Workload, Assignment, Replica, Binding and Node.

Objects are decoded from stored bytes, as a cell does, and put into a controller's cache with the indexes that the
controllers use. `*_bytes` is the memory of both, `*_decoded_bytes` that of the objects alone, and `*_stored_bytes` the
size of the stored value. Every kind is measured in a process of its own.

`global_mb_per_10000_workloads` is the resident memory that Workloads add to a global cell without regions: with stored
values, Events, and everything else that the process keeps of them.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.cells import bench_cells, first_objects, until_ready
from bench.https import send_all
from bench.load import workload_requests
from holdfast.controllers.cache import Cache
from holdfast.model.assignment import Assignment, AssignmentSpec, AssignmentStatus
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.codec import decode, encode
from holdfast.model.indexes import INDEXES
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import ContactBlock, ContactState, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.replica import PlacementBlock, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.template import Template
from holdfast.model.workload import Workload, WorkloadSpec

OBJECTS = 10_000
CLIENTS = 64
_CREATED = "2026-01-01T00:00:00.000000Z"


def _meta(name: str, number: int, namespace: str = "bench") -> ObjectMeta:
    uid = f"{number:08x}-0000-4000-8000-000000000000"
    return ObjectMeta(name=name, namespace=namespace, uid=uid, generation=1, creation_timestamp=_CREATED)


def _template() -> Template:
    return Template(command=("serve",), resources={"cpu": "100m", "memory": "500Mi"})


def _workload(number: int) -> Object:
    return Workload(_meta(f"w{number:05}", number), WorkloadSpec(replicas=1, template=_template()))


def _assignment(number: int) -> Object:
    name = f"w{number:05}"
    spec = AssignmentSpec(name, f"uid-{number}", "bench", "1", _template(), replicas=1)
    counts = AssignmentStatus(observed_epoch=1, replicas=1, bound=1, started=1, ready=1, serving=1)
    return Assignment(_meta(f"{name}.bench.normal", number), spec, counts)


def _replica(number: int) -> Object:
    name = f"w{number:05}"
    spec = ReplicaSpec(name, f"uid-{number}", f"{name}.bench.normal", "1", _template())
    placed = PlacementBlock(node=f"node-{number % 1_000:05}", zone="bench-a", binding=f"{name}-0.1", epoch=1)
    return Replica(_meta(f"{name}-0", number), spec, ReplicaStatus(placement=placed))


def _binding(number: int) -> Object:
    name = f"w{number:05}-0"
    spec = BindingSpec(
        replica=name,
        intent=Intent(replica_uid=f"uid-{number}", template_hash="0123456789abcdef", attempt=1),
        node=f"node-{number % 1_000:05}",
        template=_template(),
        resources={"cpu": "100m", "memory": "500Mi"},
    )
    return Binding(_meta(f"{name}.1", number), spec)


def _node(number: int) -> Object:
    spec = NodeSpec(zone=f"bench-{'abc'[number % 3]}", capacity={"cpu": 4, "memory": "32Gi"})
    live = NodeStatus(contact=ContactBlock(state=ContactState.LIVE), execution=NodeExecution(epoch=1, reconciled=True))
    return Node(_meta(f"node-{number:05}", number, ""), spec, live)


BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "workload_bytes": (None, 1_200),
    "assignment_bytes": (None, 1_600),
    "replica_bytes": (None, 1_900),
    "binding_bytes": (None, 1_650),
    "node_bytes": (None, 1_450),
    "global_mb_per_10000_workloads": (None, 90),
}
"""Memory does not depend on the speed of the machine."""

KINDS: dict[str, tuple[type[Any], Callable[[int], Object]]] = {
    "workload": (Workload, _workload),
    "assignment": (Assignment, _assignment),
    "replica": (Replica, _replica),
    "binding": (Binding, _binding),
    "node": (Node, _node),
}


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure(name: str, objects: int) -> dict[str, int]:
    """Bytes per object of one kind. Runs in a process of its own, so that freed memory of another is not reused."""
    type_, make = KINDS[name]
    kind = kind_of(type_)
    stored = [encode(make(number)) for number in range(objects)]
    before = _resident_bytes()
    decoded = [decode(kind, value, revision) for revision, value in enumerate(stored, 1)]
    alone = _resident_bytes() - before
    cache = Cache()
    for item in decoded:
        cache.put(item)
    for index in INDEXES.get(type_, {}):
        cache.by(type_, index, "")
    if kind.namespaced:
        cache.list(type_, "bench")
    return {
        f"{name}_stored_bytes": sum(map(len, stored)) // objects,
        f"{name}_decoded_bytes": alone // objects,
        f"{name}_bytes": (_resident_bytes() - before) // objects,
    }


async def measure_cell(workloads: int) -> float:
    """Megabytes of resident memory per 10,000 Workloads in a global cell."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place, bench_cells(Path(place)) as bench:
        cell = bench.start_cell("global")
        await until_ready(bench, "global")
        client = bench.client("global")
        await first_objects(client, region=False)
        await client.close()
        before = cell.memory_bytes()
        url = bench.urls["global"]
        await send_all(url, bench.tls(bench.user), workload_requests(url, workloads, 1), CLIENTS)
        return round((cell.memory_bytes() - before) / workloads * 10_000 / 1e6, 1)


async def run(objects: int = OBJECTS) -> dict[str, float]:
    """Bytes per object of each kind, and the memory of a cell."""
    figures: dict[str, float] = {}
    for name in KINDS:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            figures |= await asyncio.get_running_loop().run_in_executor(process, measure, name, objects)
    figures["global_mb_per_10000_workloads"] = await measure_cell(objects)
    return figures
