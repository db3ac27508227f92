"""Garbage collection by the real controller runtime over a real gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests import factories
from tests.gate.conftest import (
    OPERATOR,
    USER,
    World,
    assignment,
    binding,
    by,
    link_at_global,
    replica,
    with_meta,
    workload,
)

from holdfast.cell.controller_table import garbage_collection
from holdfast.controllers.informer import Informers
from holdfast.controllers.runner import Runner
from holdfast.gate.garbage_collection import Collector
from holdfast.gate.local_client import LocalClient
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.core import Lease
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import Conflict
from holdfast.model.kinds import kind_of
from holdfast.model.meta import API_VERSION, Key, Object, ObjectMeta, OwnerReference
from holdfast.model.ownership import TENANT_CONTENTS
from holdfast.model.quota import Grant, GrantClass, GrantSpec, Quota, QuotaSpec
from holdfast.model.replica import ExecutionBlock, Phase, Replica, ReplicaStatus
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload
from holdfast.model.writes import Delete, Update


class Running:
    """A world with a running collector."""

    def __init__(self, world: World) -> None:
        client = LocalClient(world.gate, by("collect", world.cell))
        self.informers = Informers(client, world.ports)
        controller = garbage_collection(world.cell)
        self.runner = Runner(controller, client, self.informers, world.ports, None)

    async def start(self) -> None:
        await self.informers.start()
        await self.runner.start()

    async def stop(self) -> None:
        await self.runner.stop()
        await self.informers.stop()


@pytest.fixture
async def collected(world: World) -> AsyncIterator[World]:
    running = Running(world)
    await running.start()
    yield world
    await running.stop()


@pytest.fixture
async def collected_north(north: World) -> AsyncIterator[World]:
    running = Running(north)
    await running.start()
    yield north
    await running.stop()


async def until(true: Callable[[], Any], what: str) -> None:
    try:
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"never came true: {what}")


def owned_by(*owners: Object, block: bool = False) -> tuple[OwnerReference, ...]:
    return tuple(
        OwnerReference(
            api_version="holdfast.dev/v1",
            kind=kind_of(o).name,
            name=o.metadata.name,
            uid=o.uid,
            block_owner_deletion=block,
        )
        for o in owners
    )


async def finish(world: World, item: Any) -> None:
    """Removes the finalizer of a workload, as `assign` does at its end."""
    held = world.get(Workload, item.metadata.name, "shop")
    left = tuple(f for f in held.metadata.finalizers if f != "holdfast.dev/assignments")
    await world.do(by("assign"), Update(with_meta(held, finalizers=left)))


async def test_dependent_of_unknown_kind_is_kept(collected: World) -> None:
    """Its owner may exist: only a release that knows the kind can tell."""
    owner = await collected.create(USER, workload())
    tomorrow = OwnerReference(api_version="holdfast.dev/v2", kind="Tomorrow", name="t", uid="t-1")
    await collected.create(by("assign"), with_meta(assignment("north"), owner_references=(tomorrow,)))
    await collected.create(by("assign"), with_meta(assignment("south"), owner_references=owned_by(owner)))
    await collected.do(USER, Delete("Workload", owner.key, owner.uid))
    await finish(collected, owner)
    await until(lambda: collected.get(Assignment, "web.south.normal", "shop") is None, "what is known is collected")
    assert collected.get(Assignment, "web.north.normal", "shop") is not None


async def test_dependents_of_deleted_owner_are_collected(collected: World) -> None:
    owner = await collected.create(USER, workload())
    other = await collected.create(USER, workload("other"))
    await collected.create(by("assign"), with_meta(assignment("north"), owner_references=owned_by(owner)))
    await collected.create(by("assign"), with_meta(assignment("south"), owner_references=owned_by(owner, other)))
    await collected.create(by("assign"), assignment("west"))
    await collected.do(USER, Delete("Workload", owner.key, owner.uid))
    assert collected.get(Assignment, "web.north.normal", "shop"), "not while the owner exists"
    await finish(collected, owner)
    await until(lambda: collected.get(Assignment, "web.north.normal", "shop") is None, "its only owner is gone")
    await until(
        lambda: collected.get(Assignment, "web.south.normal", "shop").metadata.owner_references == owned_by(other),
        "the reference to the gone owner is dropped",
    )
    assert collected.get(Assignment, "web.west.normal", "shop")


async def test_dependent_of_recreated_owner_is_collected(collected: World) -> None:
    owner = await collected.create(USER, workload())
    await collected.do(by("assign"), Update(with_meta(owner, finalizers=())))
    old = owned_by(owner)
    await collected.do(USER, Delete("Workload", owner.key, owner.uid))
    await collected.create(USER, workload())
    await collected.create(by("assign"), with_meta(assignment(), owner_references=old))
    await until(lambda: collected.get(Assignment, "web.north.normal", "shop") is None, "the uid does not match")


async def test_foreground_deletion_waits_for_blocking_dependents(collected: World) -> None:
    owner = await collected.create(USER, workload())
    refs = owned_by(owner, block=True)
    kept = with_meta(assignment(), owner_references=refs, finalizers=("example.com/slow",))
    dependent = await collected.create(by("assign"), kept)
    await collected.do(USER, Delete("Workload", owner.key, owner.uid, propagation="Foreground"))
    await until(
        lambda: collected.get(Assignment, dependent.metadata.name, "shop").metadata.terminating, "dependents go first"
    )
    await finish(collected, owner)
    held = collected.get(Workload, "web", "shop")
    assert held.metadata.finalizers == ("foregroundDeletion",)
    going = collected.get(Assignment, dependent.metadata.name, "shop")
    await collected.do(OPERATOR, Update(with_meta(going, finalizers=())))
    await until(lambda: collected.get(Workload, "web", "shop") is None, "then the owner")


async def test_orphan_deletion_keeps_dependents(collected: World) -> None:
    owner = await collected.create(USER, workload())
    await collected.create(by("assign"), with_meta(assignment(), owner_references=owned_by(owner)))
    await collected.do(USER, Delete("Workload", owner.key, owner.uid, propagation="Orphan"))
    await until(
        lambda: "orphan" not in collected.get(Workload, "web", "shop").metadata.finalizers,
        "the finalizer is taken away",
    )
    await finish(collected, owner)
    await until(lambda: collected.get(Workload, "web", "shop") is None, "the owner is gone")
    left = collected.get(Assignment, "web.north.normal", "shop")
    assert left is not None and left.metadata.owner_references == ()


async def test_tenant_with_unseen_workload_is_not_removed(world: World) -> None:
    await world.create(USER, workload("late"))
    shop = world.get(Tenant, "shop")
    await world.do(OPERATOR, Delete("Tenant", shop.key, shop.uid))
    going = world.get(Tenant, "shop")
    blind = with_meta(going, finalizers=())
    with pytest.raises(Conflict, match="not empty: 1 workloads"):
        await world.do(by("collect"), Update(blind))
    assert world.get(Tenant, "shop") is not None


async def test_terminating_tenant_is_emptied_in_order(collected: World) -> None:
    made = await collected.create(USER, workload())
    await collected.create(
        OPERATOR, Quota(metadata=ObjectMeta(name="quota", namespace="shop"), spec=QuotaSpec({"cpu": 8}))
    )
    await collected.create(by("assign"), assignment())
    await collected.create(by("assign"), Lease(metadata=ObjectMeta(name="l", namespace="shop")))
    slice_ = Endpoint(
        metadata=ObjectMeta(name="web.north", namespace="shop"), spec=EndpointSpec(workload="web", region="north")
    )
    await collected.create(link_at_global(), slice_)
    shop = collected.get(Tenant, "shop")
    await collected.do(OPERATOR, Delete("Tenant", shop.key, shop.uid))
    await until(lambda: collected.get(Workload, "web", "shop").metadata.terminating, "work goes first")
    assert collected.get(Assignment, "web.north.normal", "shop") and collected.get(Quota, "quota", "shop")
    await finish(collected, made)
    await until(lambda: collected.get(Tenant, "shop") is None, "the tenant goes last")
    assert collected.get(Quota, "quota", "shop") is None and collected.get(Lease, "l", "shop") is None
    assert collected.get(Endpoint, "web.north", "shop") is None


async def test_collector_deletion_with_existing_owner_is_refused(world: World) -> None:
    """The collector's cache may be stale: the gate checks current state before it deletes a dependent."""
    owner = await world.create(USER, workload())
    made = await world.create(by("assign"), with_meta(assignment(), owner_references=owned_by(owner)))
    with pytest.raises(Conflict, match="owner Workload web still exists"):
        await world.do(by("collect"), Delete("Assignment", made.key, made.uid))


async def test_region_collector_removes_leftovers_but_no_claims(collected_north: World) -> None:
    north = collected_north
    rep = await north.create(by("replicate", "north"), replica())
    await north.plant(binding())
    await north.plant(
        Decision(metadata=ObjectMeta(name="d", namespace="shop"), spec=DecisionSpec(request="r", workload="web"))
    )
    claim = north.get(Binding, "web-north-0.1", "shop")
    await north.plant(with_meta(claim, owner_references=owned_by(rep)))
    shop = north.get(Tenant, "shop")
    await north.do(by("link", "north"), Delete("Tenant", shop.key, shop.uid))
    await north.do(by("replicate", "north"), Delete("Replica", rep.key, rep.uid))
    going = north.get(Replica, "web-north-0", "shop")
    assert north.get(Decision, "d", "shop"), "not while a replica is left"
    await north.do(by("release", "north"), Update(with_meta(going, finalizers=())))
    await until(lambda: north.get(Decision, "d", "shop") is None, "then its leftovers go")
    assert north.get(Binding, "web-north-0.1", "shop"), "only the authority releases a claim, on proof"


async def test_resync_finds_leftovers_without_event(north: World) -> None:
    await north.plant(
        Decision(metadata=ObjectMeta(name="d", namespace="long-gone"), spec=DecisionSpec(request="r", workload="web"))
    )
    running = Running(north)
    await running.start()
    await until(lambda: north.get(Decision, "d", "long-gone") is None, "a look at everything finds it")
    await running.stop()


def test_replica_without_its_assignment_is_collected_only_when_it_has_ended() -> None:
    lost = factories.batch_assignment(completions=2, parallelism=2)
    done = ReplicaStatus(execution=ExecutionBlock(attempt=1, phase=Phase.SUCCEEDED))
    kept, ended = factories.replica(0, lost), factories.replica(1, lost, status=done)
    kept, ended = (with_meta(r, owner_references=owned_by(lost)) for r in (kept, ended))
    view, collector = factories.cache_of(kept, ended), Collector("us-east")
    assert not _writes(collector, kept, view), "its Assignment is deleted only after it has ended"
    assert [type(write) for write in _writes(collector, ended, view)] == [Delete]
    confirmed = factories.cache_of(kept, factories.confirm_deletion("us-east", tenant="acme"))
    assert [type(write) for write in _writes(collector, kept, confirmed)] == [Delete]
    assert not _writes(collector, kept, factories.cache_of(kept, factories.confirm_deletion("eu-west")))


def test_assignment_without_its_workload_is_collected_only_when_it_is_empty() -> None:
    """A global cell that lost its Workloads must not order the end of their replicas."""
    gone = OwnerReference(api_version=API_VERSION, kind="Workload", name="api", uid="lost")
    work, empty = factories.assignment("api"), factories.assignment("web", replicas=0)
    work, empty = (with_meta(a, owner_references=(gone,)) for a in (work, empty))
    view, collector = factories.cache_of(work, empty), Collector("global")
    assert not _writes(collector, work, view)
    assert [type(write) for write in _writes(collector, empty, view)] == [Delete]
    confirmed = factories.cache_of(work, factories.confirm_deletion("us-east"))
    assert [type(write) for write in _writes(collector, work, confirmed)] == [Delete]


def _writes(collector: Collector, item: Any, view: Any) -> list[Any]:
    kind, meta = type(item).__name__, item.metadata
    return list(collector.decide(Key(meta.namespace, f"{kind}/{meta.name}/{item.uid}"), view, 0.0).writes)


def test_collector_watches_owners_but_not_claims() -> None:
    controller = garbage_collection("north")
    assert Binding not in controller.wakes, "it does not watch claims"
    assert Assignment in controller.wakes, "mirrors may own objects"


def test_grants_are_left_to_their_controller() -> None:
    """A region may still enforce a Grant whose Quota or Tenant is deleted."""
    owner = OwnerReference(api_version=API_VERSION, kind="Quota", name="quota", uid="deleted")
    spec = GrantSpec(region="east", grant_class=GrantClass.NORMAL, limit={"cpu": "1"})
    grant = Grant(metadata=factories.meta("east.normal", "acme", owner_references=(owner,)), spec=spec)
    ending = factories.meta("acme", finalizers=(TENANT_CONTENTS,), deletion_timestamp="2026-01-01T00:00:00Z")
    tenant = Tenant(metadata=ending)
    view, collector = factories.cache_of(grant, tenant), Collector("global")
    assert not collector.decide(Key("acme", f"Grant/east.normal/{grant.uid}"), view, 0.0).writes
    emptied = collector.decide(Key("", f"Tenant/acme/{tenant.uid}"), view, 0.0)
    assert not emptied.writes and emptied.requeue_after_s, "the tenant waits for its last Grant"
