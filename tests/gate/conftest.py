"""A cell's gate over an in-memory store, with a clock that tests move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from holdfast.gate.audit import decode_record
from holdfast.gate.gate import Gate
from holdfast.model.assignment import Assignment, AssignmentSpec, assignment_name
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import Node, NodeSpec
from holdfast.model.principal import OPERATORS, Principal, agent, controller, from_identity
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.region import Region, RegionSpec
from holdfast.model.replica import PlacementBlock, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.template import Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload, WorkloadSpec
from holdfast.model.writes import Create, Write
from holdfast.store.contract import Put, Store, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects


class ManualClock:
    """Wall time stands still until a test moves it; sleeps are real but short."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def now(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


class CountedIds:
    def __init__(self) -> None:
        self.count = 0

    def uid(self) -> str:
        self.count += 1
        return f"uid-{self.count}"


class TestPorts:
    __test__ = False

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ids = CountedIds()
        self.random = random.Random(1)


OPERATOR = from_identity("ann", (OPERATORS,), credential="token:ann")
USER = from_identity("bob", ("holdfast:tenant:shop",), credential="token:bob")
TEMPLATE = Template(command=("sleep", "1"), resources={"cpu": "1"})


def by(name: str, cell: str = "global") -> Principal:
    return controller(name, cell=cell)


def node_agent(name: str = "n1", region: str = "north") -> Principal:
    return agent(name, region=region)


def link_at_global(region: str = "north") -> Principal:
    return from_identity(f"holdfast:region:{region}", ("holdfast:regions",), credential="certificate:1")


class World:
    """One cell, with helpers to create and read objects."""

    def __init__(self, cell: str, store: Store, objects: Objects, ports: TestPorts) -> None:
        self.cell, self.store, self.objects, self.ports = cell, store, objects, ports
        self.gate = Gate(cell, objects, ports)

    async def do(self, who: Principal, *writes: Write, **options: Any) -> Any:
        """Commits the writes and returns the first object."""
        return (await self.gate.commit(who, writes, **options)).objects[0]

    async def create(self, who: Principal, item: Object) -> Any:
        return await self.do(who, Create(item))

    async def plant(self, item: Object) -> Any:
        """Stores an object that only the authority writes, directly into the store."""
        from holdfast.model import codec
        from holdfast.model.kinds import kind_of

        meta = item.metadata
        if not meta.uid:
            meta = msgspec.structs.replace(meta, uid=self.ports.ids.uid(), generation=1)
        item = msgspec.structs.replace(item, metadata=msgspec.structs.replace(meta, resource_version=""))
        kind = kind_of(item)
        await self.objects.commit(
            kind, Txn(writes=(Put(kind.store_key(meta.namespace, meta.name), codec.encode(item)),))
        )
        return self.get(type(item), meta.name, meta.namespace)

    def get(self, kind: type[Any], name: str, namespace: str = "") -> Any:
        from holdfast.model.kinds import kind_of

        return self.objects.get(kind_of(kind), namespace, name)

    async def audit(self) -> list[Any]:
        await self.gate.audit.flush()
        return [decode_record(r.value) for r in await self.store.read_log("audit")]


async def make_world(cell: str) -> World:
    store, volatile = MemoryStore(), MemoryStore()
    objects = Objects(store, volatile)
    await objects.start()
    return World(cell, store, objects, TestPorts())


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """The global cell, with tenant `shop`, class `standard` and region `north`."""
    made = await make_world("global")
    await made.create(OPERATOR, tenant("shop"))
    await made.create(
        OPERATOR, PriorityClass(metadata=ObjectMeta(name="standard"), spec=PriorityClassSpec(tenants=("*",)))
    )
    await made.create(OPERATOR, Region(metadata=ObjectMeta(name="north"), spec=RegionSpec(zones=("a",))))
    yield made
    await made.gate.close()
    await made.objects.close()


@pytest.fixture
async def north() -> AsyncIterator[World]:
    """The cell of region `north`, with the copy of tenant `shop`."""
    made = await make_world("north")
    await made.create(by("link", "north"), tenant("shop"))
    yield made
    await made.gate.close()
    await made.objects.close()


def tenant(name: str) -> Tenant:
    return Tenant(metadata=ObjectMeta(name=name))


def workload(name: str = "web", namespace: str = "shop", **spec: Any) -> Workload:
    return Workload(metadata=ObjectMeta(name=name, namespace=namespace), spec=WorkloadSpec(template=TEMPLATE, **spec))


def node(name: str = "n1") -> Node:
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(zone="a", capacity={"cpu": "8"}))


def replica(name: str = "web-north-0", on: str = "") -> Replica:
    return Replica(
        metadata=ObjectMeta(name=name, namespace="shop"),
        spec=ReplicaSpec(
            workload="web", workload_uid="w", assignment="web.north.normal", revision="r", template=TEMPLATE
        ),
        status=ReplicaStatus(placement=PlacementBlock(node=on)),
    )


def binding(name: str = "web-north-0.1", on: str = "n1") -> Binding:
    return Binding(
        metadata=ObjectMeta(name=name, namespace="shop"),
        spec=BindingSpec(
            replica="web-north-0",
            intent=Intent(replica_uid="x", template_hash="h", attempt=1),
            node=on,
            template=TEMPLATE,
        ),
    )


def assignment(region: str = "north") -> Assignment:
    spec = AssignmentSpec(workload="web", workload_uid="w", region=region, revision="r", template=TEMPLATE)
    return Assignment(metadata=ObjectMeta(name=assignment_name("web", region), namespace="shop"), spec=spec)


def with_meta(item: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, **changes))


def with_spec(item: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, **changes))
