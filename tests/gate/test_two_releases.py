"""Two processes of one cell, one of them of the next release, on one store: each follows the other and loses no field
that both know.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Condition, is_condition_true
from holdfast.model.workload import Workload
from holdfast.model.writes import SetStatus, Update
from holdfast.sim.releases import UNKNOWN, ReleaseVersion, stored_by
from holdfast.store.contract import Committed, Store, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

from .conftest import USER, TestPorts, World, by, with_spec, workload

WORKLOAD = BY_NAME["Workload"]


class TomorrowsStore:
    """The store as a process of the next release uses it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, txn: Txn) -> Committed:
        return await self._store.commit(stored_by(ReleaseVersion.NEXT, txn))


@pytest.fixture
async def beside(world: World) -> AsyncIterator[World]:
    """The other process of the cell."""
    shared: Any = TomorrowsStore(world.store)
    objects = Objects(shared, MemoryStore())
    await objects.start()
    made = World("global", shared, objects, TestPorts())
    yield made
    await made.gate.close()
    await objects.close()


async def test_two_releases_can_write_one_object_alternately(world: World, beside: World) -> None:
    made = await world.create(USER, workload())
    for number in range(1, 6):
        one, other = (world, beside) if number % 2 else (beside, world)
        await one.do(by("workload-status"), SetStatus("Workload", made.key, made.uid, {"summary": {"ready": number}}))
        await other.do(by("autoscale"), SetStatus("Workload", made.key, made.uid, {"scale": {"replicas": number}}))
        await one.do(
            by("workload-status"),
            SetStatus("Workload", made.key, made.uid, conditions=(Condition(type=f"C{number}", status="True"),)),
        )
        held = one.get(Workload, "web", "shop")
        await one.do(USER, Update(with_spec(held, replicas=number + 10)))
        assert world.get(Workload, "web", "shop") == beside.get(Workload, "web", "shop")
    found = world.get(Workload, "web", "shop")
    assert (found.spec.replicas, found.status.summary.ready, found.status.scale.replicas) == (15, 5, 5)
    assert all(is_condition_true(found.status.conditions, f"C{number}") for number in range(1, 6))
    assert found.metadata.generation == 6 and found.uid == made.uid


async def test_unknown_fields_survive_write_without_change(world: World, beside: World) -> None:
    made = await beside.create(USER, workload())
    write = SetStatus("Workload", made.key, made.uid, {"summary": {"ready": 1}})
    await beside.do(by("workload-status"), write)
    entry = world.objects.entry(WORKLOAD, "shop", "web")
    assert entry is not None and UNKNOWN.encode() in entry.value
    await world.do(by("workload-status"), write)
    held = world.get(Workload, "web", "shop")
    await world.do(USER, Update(held))
    again = world.objects.entry(WORKLOAD, "shop", "web")
    assert again is not None and again.revision == entry.revision, "unknown fields alone cause no write"
    await world.do(by("workload-status"), SetStatus("Workload", made.key, made.uid, {"summary": {"ready": 2}}))
    less = world.objects.entry(WORKLOAD, "shop", "web")
    assert less is not None and UNKNOWN.encode() not in less.value, "dropped by the release that rewrites it"
