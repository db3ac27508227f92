"""A stale finalizer is removed from a stuck object, after approval and only if its owner has nothing left to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.factories import assignment, bound_status, meta, replica, tenant, with_new_revision, workload
from tests.factories import binding as make_binding
from tests.server.conftest import Api, World

from holdfast.drills.finalizer_repair import FinalizerRepair, repair_finalizer
from holdfast.foundation.exit_codes import CommandError
from holdfast.model import codec
from holdfast.model.kinds import BY_PLURAL, kind_of
from holdfast.model.meta import Object
from holdfast.model.times import seconds_text
from holdfast.store.contract import Put, Txn

NOW = 1_800_000_000.0
LONG_S = 5000.0


class ThreadApi:
    """The application, called from another thread as a command calls it."""

    def __init__(self, api: Api, loop: asyncio.AbstractEventLoop) -> None:
        self._api, self._loop = api, loop

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        target = f"{path}?{urlencode(query)}" if query else path
        call = self._api.call(method, target, body, type=content_type)
        reply = asyncio.run_coroutine_threadsafe(call, self._loop).result(10)
        if reply.code >= 400:
            raise CommandError(f"{method} {path}: {reply.code} {reply.json['message']}")
        return reply.json

    def list(self, plural: str, namespace: str = "", **query: str) -> list[dict[str, Any]]:
        where = f"namespaces/{namespace}/{plural}" if namespace else plural
        found: list[dict[str, Any]] = self.request("GET", f"{BY_PLURAL[plural].api_path}/{where}")["items"]
        return found


class Cell:
    """A cell whose store holds what an earlier release, or an owner that is gone, left behind."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._api = ThreadApi(Api(world.app), asyncio.get_running_loop())

    async def stored(self, *items: Object) -> None:
        puts = [Put(kind_of(i).store_key(i.metadata.namespace, i.metadata.name), codec.encode(i), i) for i in items]
        await self.world.objects.commit(None, Txn(writes=tuple(puts)))

    async def repair(self, item: Object, finalizer: str, **options: Any) -> FinalizerRepair:
        key = (item.metadata.namespace, item.metadata.name)
        call = partial(repair_finalizer, self._api, self.world.cell, kind_of(item), key, finalizer, now=NOW, **options)
        return await asyncio.to_thread(call)

    def exists(self, item: Object) -> bool:
        return self.world.objects.get(kind_of(item), item.metadata.namespace, item.metadata.name) is not None


@pytest.fixture
async def above(tmp_path: Path) -> AsyncIterator[Cell]:
    world = World("global", tmp_path)
    await world.objects.start()
    yield Cell(world)
    await world.app.drain()
    await world.objects.close()


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[Cell]:
    world = World("us-east", tmp_path)
    await world.objects.start()
    yield Cell(world)
    await world.app.drain()
    await world.objects.close()


def stuck(item: Object, *finalizers: str, for_s: float = LONG_S) -> Object:
    fields = {"finalizers": finalizers, "deletion_timestamp": seconds_text(NOW - for_s), "uid": item.uid}
    return with_new_revision(item, metadata=meta(item.metadata.name, item.metadata.namespace, **fields))


async def test_dry_run_changes_nothing_and_approval_removes_the_finalizer(above: Cell) -> None:
    item = stuck(workload(), "holdfast.dev/assignments")
    await above.stored(tenant(), item)
    found = await above.repair(item, "holdfast.dev/assignments")
    assert (found.removed, found.left, found.owner) == (False, (), "assign") and above.exists(item)
    found = await above.repair(item, "holdfast.dev/assignments", approved=True)
    assert found.removed and not above.exists(item), "the deletion is complete"


async def test_finalizer_whose_owner_has_work_left_stays(above: Cell, inside: Cell) -> None:
    item = stuck(workload(), "holdfast.dev/assignments")
    await above.stored(tenant(), item, assignment())
    found = await above.repair(item, "holdfast.dev/assignments", approved=True)
    assert found.left == ("Assignment acme/api.us-east.normal",) and not found.removed and above.exists(item)
    placed = replica(0, status=bound_status())
    held = stuck(placed, "holdfast.dev/release")
    await inside.stored(tenant(), held, make_binding(placed))
    found = await inside.repair(held, "holdfast.dev/release", approved=True)
    assert found.left[0].startswith("Binding acme/") and inside.exists(held)


async def test_stale_release_finalizer_of_a_replica_is_removed(inside: Cell) -> None:
    item = stuck(replica(0), "holdfast.dev/release")
    await inside.stored(tenant(), item)
    assert (await inside.repair(item, "holdfast.dev/release", approved=True)).removed and not inside.exists(item)


async def test_tenant_with_contents_keeps_its_finalizer(above: Cell) -> None:
    item = stuck(tenant(), "holdfast.dev/tenant-contents")
    await above.stored(item, workload())
    found = await above.repair(item, "holdfast.dev/tenant-contents", approved=True)
    assert found.left == ("Workload acme/api",) and above.exists(item)


async def test_foreign_finalizer_needs_a_person_who_vouches_for_it(above: Cell) -> None:
    item = stuck(workload(), "example.com/hook")
    await above.stored(tenant(), item)
    with pytest.raises(CommandError, match="nobody here owns finalizer"):
        await above.repair(item, "example.com/hook", approved=True)
    assert above.exists(item)
    assert (await above.repair(item, "example.com/hook", approved=True, foreign=True)).removed


async def test_other_finalizers_of_the_object_stay(above: Cell) -> None:
    item = stuck(workload(), "holdfast.dev/assignments", "example.com/hook")
    await above.stored(tenant(), item)
    assert (await above.repair(item, "holdfast.dev/assignments", approved=True)).removed
    kept = above.world.objects.get(kind_of(item), "acme", "api")
    assert kept is not None and kept.metadata.finalizers == ("example.com/hook",)


@pytest.mark.parametrize(
    ("item", "finalizer", "problem"),
    [
        (workload(), "holdfast.dev/assignments", "it is not being deleted"),
        (stuck(workload(), "example.com/hook"), "holdfast.dev/assignments", "it has no finalizer"),
        (stuck(workload(), "holdfast.dev/assignments", for_s=10), "holdfast.dev/assignments", "is not overdue"),
    ],
)
async def test_finalizer_that_is_not_stuck_is_refused(above: Cell, item: Object, finalizer: str, problem: str) -> None:
    await above.stored(tenant(), item)
    with pytest.raises(CommandError, match=problem):
        await above.repair(item, finalizer, approved=True)
    assert above.exists(item)
