"""Time of the authority to reserve and bind batches of 256 on 5,000 nodes, with the memory and SQLite stores."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.authority.authority import Authority
from holdfast.client.contract import FencingToken
from holdfast.foundation.ports import SystemPorts
from holdfast.model import codec, limits
from holdfast.model.binding import Intent
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import ContactBlock, ContactState, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.placement_api import PlacementOutcome, RenewItem, RenewRequest, ReserveItem, ReserveRequest
from holdfast.model.principal import controller
from holdfast.model.replica import Replica, ReplicaSpec
from holdfast.model.template import Port, Template, template_hash
from holdfast.store.contract import Put, Store, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects
from holdfast.store.sqlite import SqliteStore

NODES = 5_000
BATCHES = 8
WHO = controller("scheduler", cell="bench")


async def fill(objects: Objects, items: list[Object]) -> None:
    size = min(1000, objects.max_writes)
    for start in range(0, len(items), size):
        part = items[start : start + size]
        puts = tuple(Put(kind_of(i).store_key(i.metadata.namespace, i.metadata.name), codec.encode(i), i) for i in part)
        await objects.commit(None, Txn(writes=puts))


def _replica(index: int) -> Replica:
    template = Template(
        command=("server",), resources={"cpu": "500m", "memory": "1Gi"}, ports=(Port("http"),), env={"A": "1"}
    )
    meta = ObjectMeta(name=f"web-{index}", namespace="t", uid=f"replica-{index}", generation=1)
    return Replica(meta, ReplicaSpec("web", "w", "web.bench.normal", "1", template, ordinal=index))


async def measure(store: Store) -> dict[str, Any]:
    objects, ports = Objects(store, MemoryStore()), SystemPorts()
    await objects.start()
    status = NodeStatus(
        contact=ContactBlock(state=ContactState.LIVE), execution=NodeExecution(epoch=1, reconciled=True)
    )
    spec = NodeSpec("z1", capacity={"cpu": "16", "memory": "64Gi"})
    nodes = [Node(ObjectMeta(name=f"n-{i}", uid=f"node-{i}"), spec, status) for i in range(NODES)]
    now = ports.clock.now()
    pages = [
        LeasePage(
            ObjectMeta(name=f"page-{p}", uid=f"page-{p}"),
            LeasePageSpec(p, {f"n-{i}": NodeLease(1, now, 60.0) for i in range(p * 500, p * 500 + 500)}),
        )
        for p in range(NODES // 500)
    ]
    replicas = [_replica(i) for i in range(limits.PLACEMENT_BATCH_MAX * BATCHES)]
    limit = GrantCopySpec(limit={"cpu": 10**6, "memory": "1Pi"})
    copy = GrantCopy(ObjectMeta(name="bench.normal", namespace="t", uid="g"), limit)
    term = Term(ObjectMeta(name="authority", uid="t"), TermSpec("bench"))
    await fill(objects, [*nodes, *pages, *replicas, copy, term])
    found = objects.get(kind_of(Term), "", "authority")
    assert found is not None
    authority = Authority("bench", objects, ports, lease_ttl_s=60.0)
    await authority.start(FencingToken("authority", found.revision))
    running = asyncio.create_task(authority.run())
    items = [
        ReserveItem("t", r.metadata.name, Intent(r.uid, template_hash(r.spec.template), 1), f"n-{i % NODES}")
        for i, r in enumerate(replicas)
    ]
    gc.collect()
    gc.freeze()
    cpu, wall = time.process_time(), time.perf_counter()
    for start in range(0, len(items), limits.PLACEMENT_BATCH_MAX):
        answers = await authority.reserve(WHO, ReserveRequest(tuple(items[start : start + limits.PLACEMENT_BATCH_MAX])))
        assert all(a.result is PlacementOutcome.ACCEPTED for a in answers.results)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    result = {
        "cpu_ms_per_batch": round(1000 * cpu / BATCHES, 2),
        "wall_ms_per_batch": round(1000 * wall / BATCHES, 2),
        "bound_per_s": round(len(items) / wall),
    }
    cpu = time.process_time()
    await authority.renew(WHO, RenewRequest(tuple(RenewItem(n.metadata.name, 1) for n in nodes)))
    result["renew_5000_cpu_ms"] = round(1000 * (time.process_time() - cpu), 2)
    authority.stop()
    await running
    gc.unfreeze()
    await objects.close()
    await store.close()
    return result


async def run() -> dict[str, Any]:
    """CPU time is that of the whole process: checks, encoding, store, watch events and the authority's watches."""
    memory = await measure(MemoryStore())
    with tempfile.TemporaryDirectory() as place:
        sqlite = await measure(SqliteStore(Path(place) / "cell.db"))
    return {"memory": memory, "sqlite": sqlite}
