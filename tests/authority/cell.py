"""A regional cell with a real store, real objects and a real authority, on a manual clock."""

from __future__ import annotations

import asyncio
import heapq
import random
from pathlib import Path
from typing import Any

import msgspec

from holdfast.authority.authority import Authority
from holdfast.authority.heartbeats import LEASE_BATCH_DELAY_S
from holdfast.client.contract import FencingToken
from holdfast.model import codec
from holdfast.model.binding import Binding, DeviceClaim, Intent
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.errors import Ambiguous
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import (
    ContactBlock,
    ContactState,
    Device,
    FenceBlock,
    Node,
    NodeExecution,
    NodeSpec,
    NodeStatus,
)
from holdfast.model.placement_api import (
    PlacementResult,
    ReleaseAction,
    ReleaseItem,
    ReleaseRequest,
    RenewItem,
    RenewRequest,
    ReserveItem,
    ReserveRequest,
)
from holdfast.model.principal import Principal, controller
from holdfast.model.quota import GrantClass, grant_name
from holdfast.model.replica import Phase, Replica, ReplicaSpec
from holdfast.model.template import Template, template_hash
from holdfast.model.times import seconds_text
from holdfast.store.contract import Committed, Compare, Put, Remove, Store, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects
from holdfast.store.sqlite import SqliteStore

WHO: Principal = controller("scheduler", cell="us-east")
TENANT = "team-a"
START_S = 1_790_000_000.0
TURNS = 40


class ManualClock:
    """A clock that the test advances. Wall and monotonic time can differ."""

    def __init__(self) -> None:
        self.wall_s = START_S
        self.monotonic_s = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.monotonic_s

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.monotonic_s + seconds, self._count, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Advances both clocks. Sleepers wake in order, and each runs before the next."""
        await yield_to_loop()
        end_s = self.monotonic_s + seconds
        while self._sleepers and self._sleepers[0][0] <= end_s:
            at_s, _, future = heapq.heappop(self._sleepers)
            self._step_to(at_s)
            if not future.done():
                future.set_result(None)
            await yield_to_loop()
        self._step_to(end_s)
        await yield_to_loop()

    def _step_to(self, at_s: float) -> None:
        self.wall_s += max(0.0, at_s - self.monotonic_s)
        self.monotonic_s = max(self.monotonic_s, at_s)


async def yield_to_loop(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class CountedIds:
    def __init__(self) -> None:
        self.count = 0

    def uid(self) -> str:
        self.count += 1
        return f"00000000-0000-4000-8000-{self.count:012d}"


class TestPorts:
    __test__ = False

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.ids = CountedIds()
        self.random = random.Random(7)


class FaultyStore:
    """A store whose commits under a token can be unanswered: not applied, applied, or applied later."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.faults: list[str] = []
        self.late: list[Txn] = []
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def commit(self, txn: Txn) -> Committed:
        self.commits += 1
        under_token = any(c.key.startswith("/terms/") for c in txn.compares) and len(txn.compares) > 1
        fault = self.faults.pop(0) if self.faults and under_token else ""
        if fault == "before":
            raise Ambiguous("no answer; nothing happened")
        if fault == "late":
            self.late.append(txn)
            raise Ambiguous("no answer; it happens later")
        done = await self.inner.commit(txn)
        if fault == "after":
            raise Ambiguous("no answer; it happened")
        return done


class Cell:
    def __init__(self, store: Store, clock: Any) -> None:
        self.store = FaultyStore(store)
        self.clock = clock
        self.ports = TestPorts(clock)
        self.objects = Objects(self.store, MemoryStore())
        self.authority: Authority = Authority("us-east", self.objects, self.ports)
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, path: Path | None = None, *, clock: Any = None) -> Cell:
        cell = cls(SqliteStore(path) if path is not None else MemoryStore(), clock or ManualClock())
        await cell.objects.start()
        return cell

    async def close(self) -> None:
        self.authority.stop()
        await yield_to_loop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.objects.close()
        await self.store.inner.close()

    async def put(self, *items: Object) -> None:
        """Stores objects as another writer would, without compare."""
        writes = []
        for item in items:
            meta = item.metadata
            fresh = msgspec.structs.replace(meta, resource_version="", uid=meta.uid or self.ports.ids.uid())
            stored = msgspec.structs.replace(item, metadata=fresh)
            key = kind_of(item).store_key(meta.namespace, meta.name)
            writes.append(Put(key, codec.encode(stored), stored))
        await self.objects.commit(None, Txn(writes=tuple(writes)))

    async def remove(self, item: Object) -> None:
        key = kind_of(item).store_key(item.metadata.namespace, item.metadata.name)
        await self.objects.commit(None, Txn(writes=(Remove(key),)))

    async def elect(self) -> FencingToken:
        """Raises the term, as an election win does."""
        kind = kind_of(Term)
        old = self.objects.get(kind, "", "authority")
        term = old.spec.term + 1 if isinstance(old, Term) else 1
        item = Term(ObjectMeta(name="authority", uid="term"), TermSpec("me", term))
        txn = Txn(
            (Compare(kind.store_key("", "authority"), old.revision if old is not None else 0),),
            (Put(kind.store_key("", "authority"), codec.encode(item), item),),
        )
        return FencingToken("authority", (await self.objects.commit(None, txn)).revision)

    async def lead(self, *, run: bool = False) -> Authority:
        """Elects and starts a new authority; with `run`, also its background jobs."""
        self.authority = Authority("us-east", self.objects, self.ports)
        await self.authority.start(await self.elect())
        if run:
            self._tasks.append(asyncio.create_task(self.authority.run()))
            await yield_to_loop()
        return self.authority

    # Objects

    async def node(self, name: str = "n1", *, gpus: int = 0, model: str = "", epoch: int = 1, **spec: Any) -> Node:
        spec = {"zone": "z1", "capacity": {"cpu": "8", "memory": "16Gi"}, **spec}
        if self.authority.leading:
            epoch = (await self.renew(name, 0)).epoch
        devices = tuple(Device(f"gpu-{i}", model=model) for i in range(gpus))
        status = NodeStatus(
            contact=ContactBlock(state=ContactState.LIVE), execution=NodeExecution(epoch=epoch, reconciled=True)
        )
        item = Node(ObjectMeta(name=name), NodeSpec(**spec, devices=devices), status)
        if self.authority.leading:
            await self.put(item)
            return self.get_node(name)
        page = self.objects.get(kind_of(LeasePage), "", "page-0")
        leases = dict(page.spec.leases) if isinstance(page, LeasePage) else {}
        leases[name] = NodeLease(epoch, self.clock.now(), 15.0)
        await self.put(item, LeasePage(ObjectMeta(name="page-0", uid="page-0"), LeasePageSpec(0, leases)))
        return self.get_node(name)

    async def grant(self, tenant: str = TENANT, grant_class: GrantClass = GrantClass.NORMAL, **spec: Any) -> GrantCopy:
        spec = {"limit": {"cpu": "1000", "memory": "1000Gi", "gpu": "1000"}, **spec}
        name = grant_name("us-east", grant_class)
        item = GrantCopy(
            ObjectMeta(name=name, namespace=tenant, generation=1), GrantCopySpec(grant_class=grant_class, **spec)
        )
        await self.put(item)
        found = self.objects.get(kind_of(GrantCopy), tenant, name)
        assert isinstance(found, GrantCopy)
        return found

    async def replica(self, name: str = "web-0", *, tenant: str = TENANT, template: Any = None, **spec: Any) -> Replica:
        template = {"command": ("true",), "resources": {"cpu": "1", "memory": "1Gi"}, **(template or {})}
        item = Replica(
            ObjectMeta(name=name, namespace=tenant, creation_timestamp=seconds_text(START_S)),
            ReplicaSpec(
                workload="web",
                workload_uid="w",
                assignment="web.us-east.normal",
                revision="1",
                template=Template(**template),
                **spec,
            ),
        )
        await self.put(item)
        return self.get_replica(name, tenant)

    def get_node(self, name: str = "n1") -> Node:
        found = self.objects.get(kind_of(Node), "", name)
        assert isinstance(found, Node)
        return found

    def get_replica(self, name: str = "web-0", tenant: str = TENANT) -> Replica:
        found = self.objects.get(kind_of(Replica), tenant, name)
        assert isinstance(found, Replica)
        return found

    def binding(self, name: str, tenant: str = TENANT) -> Binding | None:
        found = self.objects.get(kind_of(Binding), tenant, name)
        assert found is None or isinstance(found, Binding)
        return found

    def every(self, kind: type[Any]) -> list[Any]:
        return list(self.objects.list(kind_of(kind))[0])

    async def change_node(self, name: str = "n1", *, fence: int | None = None, **spec: Any) -> None:
        node = self.get_node(name)
        status = node.status
        if fence is not None:
            status = msgspec.structs.replace(status, fence=FenceBlock(fenced_epoch=fence))
        await self.put(msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, **spec), status=status))

    async def acknowledge(self, name: str, phase: Phase = Phase.STOPPED, tenant: str = TENANT) -> None:
        """Sets the Binding's phase, as the agent does."""
        binding = self.binding(name, tenant)
        assert binding is not None
        await self.put(msgspec.structs.replace(binding, status=msgspec.structs.replace(binding.status, phase=phase)))

    # Requests

    def item(self, replica: Replica, node: str = "n1", **more: Any) -> ReserveItem:
        intent = Intent(replica.uid, template_hash(replica.spec.template), replica.status.placement.attempt)
        more = {"intent": intent, **more}
        return ReserveItem(replica.metadata.namespace, replica.metadata.name, node=node, **more)

    async def reserve(self, *items: ReserveItem, bind: bool = True, **more: Any) -> list[PlacementResult]:
        return list((await self.authority.reserve(WHO, ReserveRequest(items, bind=bind, **more))).results)

    async def place(self, replica: Replica, node: str = "n1", **more: Any) -> PlacementResult:
        return (await self.reserve(self.item(replica, node, **more)))[0]

    async def release(self, replica: Replica, action: ReleaseAction, attempt: int = 0) -> PlacementResult:
        item = ReleaseItem(
            replica.metadata.namespace,
            replica.metadata.name,
            replica.uid,
            attempt or replica.status.placement.attempt,
            action,
            "Drained",
            3.0,
        )
        return (await self.authority.release(WHO, ReleaseRequest((item,)))).results[0]

    async def renew(self, node: str, epoch: int) -> PlacementResult:
        """One heartbeat, flushed at once."""
        waiting = asyncio.create_task(self.authority.renew(WHO, RenewRequest((RenewItem(node, epoch),))))
        await yield_to_loop(2)
        if not self._tasks:
            await self.authority.tick()
        else:
            gathered_s = LEASE_BATCH_DELAY_S + 0.05
            await (self.clock.advance(gathered_s) if hasattr(self.clock, "advance") else asyncio.sleep(gathered_s))
        return (await waiting).results[0]

    def check_ledger(self) -> None:
        """The ledger equals a rebuilt one while nothing is in flight."""
        assert self.authority.ledger == self.authority.rebuilt_ledger()


def devices(*ids: str) -> tuple[DeviceClaim, ...]:
    return tuple(DeviceClaim(i) for i in ids)
