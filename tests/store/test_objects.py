"""Objects over a store: reads, indexes, pages, and streams that deliver exactly the changes after a list."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from tests import factories
from tests.expected import of_type, present

from holdfast.model import codec, kinds, limits
from holdfast.model.binding import Binding
from holdfast.model.core import Event
from holdfast.model.errors import BadRequest, Conflict, Expired, Unavailable
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.workload import Workload
from holdfast.store.contract import Change, Compare, Put, Remove, Store, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects
from holdfast.store.sqlite import SqliteStore
from holdfast.store.streams import ObjectChange

BINDING = kinds.BY_NAME["Binding"]
WORKLOAD = kinds.BY_NAME["Workload"]
EVENT = kinds.BY_NAME["Event"]


class WatchOnly:
    """A store like one over the network: it can be watched but calls no subscribers."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.get, self.range, self.commit = store.get, store.range, store.commit
        self.watch, self.compact = store.watch, store.compact
        self.read_log, self.trim_log, self.close = store.read_log, store.trim_log, store.close
        self.newest_revision, self.revision_back = store.newest_revision, store.revision_back

    @property
    def head(self) -> int:
        return self._store.head

    @property
    def compacted(self) -> int:
        return self._store.compacted

    @property
    def log_position(self) -> int:
        return self._store.log_position

    @property
    def max_writes(self) -> int:
        return self._store.max_writes


@pytest.fixture(params=["memory", "sqlite", "watched"])
def backing(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return SqliteStore(tmp_path / "cell.db")
    return MemoryStore() if request.param == "memory" else WatchOnly(MemoryStore())


@pytest_asyncio.fixture
async def objects(backing: Store) -> AsyncIterator[Objects]:
    made = Objects(backing, MemoryStore(keep=limits.EVENTS_MAX))
    await made.start()
    yield made
    await made.close()
    await backing.close()


def put(item: Object) -> Put:
    kind, meta = kind_of(item), item.metadata
    fresh = msgspec.structs.replace(item, metadata=msgspec.structs.replace(meta, resource_version=""))
    return Put(kind.store_key(meta.namespace, meta.name), codec.encode(fresh), fresh)


async def save(objects: Objects, *items: Object) -> int:
    return (await objects.commit(kind_of(items[0]), Txn(writes=tuple(map(put, items))))).revision


async def drop(objects: Objects, *items: Object) -> int:
    keys = [kind_of(item).store_key(item.metadata.namespace, item.metadata.name) for item in items]
    return (await objects.commit(kind_of(items[0]), Txn(writes=tuple(map(Remove, keys))))).revision


def binding(name: str, node: str, namespace: str = "acme") -> Binding:
    made = factories.binding(factories.replica(status=factories.bound_status(node, name=name)), node)
    return msgspec.structs.replace(made, metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}"))


def names(items: Iterable[Object]) -> list[str]:
    return [item.metadata.name for item in items]


async def read(stream: AsyncIterator[Sequence[ObjectChange]], count: int) -> list[ObjectChange]:
    found: list[ObjectChange] = []
    while len(found) < count:
        found += await asyncio.wait_for(anext(stream), 5)
    return found


async def is_quiet(stream: AsyncIterator[Sequence[ObjectChange]]) -> bool:
    try:
        await asyncio.wait_for(anext(stream), 0.05)
    except TimeoutError:
        return True
    return False


async def test_commit_is_readable_when_it_returns(objects: Objects) -> None:
    for i in range(20):
        revision = await save(objects, factories.workload(replicas=i))
        found = of_type(objects.get(WORKLOAD, "acme", "api"), Workload)
        assert (found.spec.replicas, found.revision, objects.head(WORKLOAD)) == (i, revision, revision)
        entry = present(objects.entry(WORKLOAD, "acme", "api"))
        assert codec.decode(WORKLOAD, entry.value, entry.revision) == found
    await drop(objects, factories.workload())
    assert objects.get(WORKLOAD, "acme", "api") is None


async def test_commit_with_failed_compare_raises_conflict(objects: Objects) -> None:
    with pytest.raises(Conflict):
        await objects.commit(None, Txn((Compare("/workloads/acme/api", 7),), (put(factories.workload()),)))


async def test_list_is_in_key_order_and_filtered(objects: Objects) -> None:
    await save(objects, *(binding(f"b{i}", f"n{i % 3}", ns) for ns in ("zeta", "acme") for i in range(6)))
    listed, revision = objects.list(BINDING)
    assert revision == objects.head(BINDING)
    assert names(listed) == [f"b{i}" for i in range(6)] * 2
    assert {item.metadata.namespace for item in objects.list(BINDING, "acme")[0]} == {"acme"}
    assert names(objects.list(BINDING, fields={"node": "n1"})[0]) == ["b1", "b4"] * 2
    assert names(objects.list(BINDING, "zeta", fields={"node": "n1"})[0]) == ["b1", "b4"]
    assert names(objects.list(BINDING, fields={"metadata.name": "b4"})[0]) == ["b4", "b4"]
    assert names(objects.list(BINDING, "acme", fields={"metadata.name": "b4", "node": "n1"})[0]) == ["b4"]
    assert objects.list(BINDING, "acme", fields={"metadata.name": "b4", "node": "n2"})[0] == []
    assert names(objects.list(BINDING, fields={"metadata.namespace": "acme"})[0]) == [f"b{i}" for i in range(6)]
    assert objects.list(BINDING, fields={"node": "none"})[0] == []
    entries, _ = objects.entries(BINDING, fields={"node": "n1"})
    assert entries[0].key == "/bindings/acme/b1"
    with pytest.raises(BadRequest, match="field colour is not selectable"):
        objects.list(BINDING, fields={"colour": "red"})


async def test_modified_list_does_not_affect_next_list(objects: Objects) -> None:
    await save(objects, binding("a", "n1"), binding("b", "n1"), binding("b", "n1", "zeta"))
    for _ in range(2):
        listed, _ = objects.list(BINDING, "acme")
        assert names(listed) == ["a", "b"]
        listed.clear()
    await save(objects, binding("b", "n2"))
    assert [of_type(item, Binding).spec.node for item in objects.list(BINDING, "acme")[0]] == ["n1", "n2"]
    await drop(objects, binding("a", "n1"))
    assert (names(objects.list(BINDING, "acme")[0]), len(objects.list(BINDING)[0])) == (["b"], 2)
    await save(objects, binding("c", "n1"))
    assert names(objects.list(BINDING, "acme")[0]) == ["b", "c"]


async def test_index_follows_changes(objects: Objects) -> None:
    await save(objects, binding("b", "n1"))
    await save(objects, binding("b", "n2"))
    assert objects.list(BINDING, fields={"node": "n1"})[0] == []
    assert names(objects.list(BINDING, fields={"node": "n2"})[0]) == ["b"]
    await drop(objects, binding("b", "n2"))
    assert objects.list(BINDING, fields={"node": "n2"})[0] == []


async def test_stream_after_list_delivers_exactly_later_changes(objects: Objects) -> None:
    await save(objects, factories.workload("one"))
    listed, revision = objects.list(WORKLOAD)
    stream = objects.stream(WORKLOAD, after=revision)
    await save(objects, factories.workload("two"))
    await save(objects, factories.workload("one", replicas=9), factories.node("n1"))
    await drop(objects, factories.workload("two"))
    changes = await read(stream, 3)
    assert [(c.new and c.new.metadata.name, c.old and c.old.metadata.name) for c in changes] == [
        ("two", None),
        ("one", "one"),
        (None, "two"),
    ]
    assert changes[1].old is listed[0]
    assert changes[1].new is objects.get(WORKLOAD, "acme", "one")
    assert [codec.decode(WORKLOAD, c.value, c.revision) for c in changes[:2]] == [c.new for c in changes[:2]]
    assert codec.decode(WORKLOAD, changes[2].value, changes[0].revision) == changes[0].new
    assert await is_quiet(stream)
    await save(objects, factories.workload("three"))
    assert [present(c.new).metadata.name for c in await read(stream, 1)] == ["three"]


async def test_namespace_stream_delivers_only_its_namespace(objects: Objects) -> None:
    stream = objects.stream(WORKLOAD, "acme", after=0)
    await save(objects, factories.workload("x", "other"), factories.workload("a"), factories.workload("y", "other"))
    assert [present(c.new).metadata.name for c in await read(stream, 1)] == ["a"]
    await save(objects, factories.workload("z", "other"), factories.workload("b"))
    assert [present(c.new).metadata.name for c in await read(stream, 1)] == ["b"]


@pytest.mark.parametrize("live", [True, False], ids=["live", "caught-up"])
async def test_field_stream_reports_objects_that_start_or_stop_matching(objects: Objects, live: bool) -> None:
    start = await save(objects, binding("other", "n9"))
    one = objects.stream(BINDING, after=start, fields={"node": "n1"})
    if live:
        assert await is_quiet(one)
    await save(objects, binding("b", "n1"))
    await save(objects, binding("b", "n1"), binding("c", "n2"))
    moved = await save(objects, binding("b", "n2"))
    back = await save(objects, binding("b", "n1"))
    gone = await drop(objects, binding("b", "n1"))
    changes = await read(one, 5)
    seen = [(c.new and of_type(c.new, Binding).spec.node, c.old and of_type(c.old, Binding).spec.node) for c in changes]
    assert seen == [("n1", None), ("n1", "n1"), (None, "n1"), ("n1", None), (None, "n1")]
    assert [c.revision for c in changes[2:]] == [moved, back, gone]
    assert codec.decode(BINDING, changes[2].value, moved).spec.node == "n1"
    assert await is_quiet(one)


async def test_field_change_is_delivered_only_to_matching_streams(objects: Objects) -> None:
    streams = [objects.stream(BINDING, after=0, fields={"node": f"n{i}"}) for i in range(200)]
    for stream in streams:
        assert await asyncio.wait([asyncio.ensure_future(anext(stream))], timeout=0)
    await save(objects, binding("b", "n7"))
    unread = [len(present(stream._live).unread) for stream in streams]
    assert sum(unread) <= 1
    assert unread[7] == sum(unread)


async def test_stream_with_several_fields_requires_all(objects: Objects) -> None:
    stream = objects.stream(BINDING, "acme", after=0, fields={"node": "n1", "metadata.name": "b"})
    await save(objects, binding("a", "n1"), binding("b", "n1", "zeta"), binding("b", "n2"))
    await save(objects, binding("b", "n1"))
    (change,) = await read(stream, 1)
    assert (of_type(change.new, Binding).spec.node, change.old) == ("n1", None)


async def test_stream_of_slow_reader_ends_with_expired_error(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.streams.WATCHER_BACKLOG_EVENTS_MAX", 50)
    slow, quick = objects.stream(WORKLOAD, after=0), objects.stream(WORKLOAD, after=0)
    assert await is_quiet(slow) and await is_quiet(quick)
    for i in range(60):
        await save(objects, factories.workload(replicas=i))
        assert await read(quick, 1)
    with pytest.raises(Expired, match="behind"):
        await anext(slow)
    with pytest.raises(Expired):
        await anext(slow)


async def test_stream_resumes_from_any_revision(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects._durable.cache(WORKLOAD).recent, "_keep_events", 5)
    revisions = [await save(objects, factories.workload(replicas=i), factories.node(f"n{i}")) for i in range(20)]
    for after in (0, revisions[2], revisions[17], revisions[19]):
        stream = objects.stream(WORKLOAD, after=after)
        expected = [i for i, revision in enumerate(revisions) if revision > after]
        changes = await read(stream, len(expected))
        assert [of_type(c.new, Workload).spec.replicas for c in changes] == expected
        assert [c.old and of_type(c.old, Workload).spec.replicas for c in changes] == [
            i - 1 if i else None for i in expected
        ]
        assert await is_quiet(stream)


async def test_stream_of_unchanged_kind_is_live_at_once(objects: Objects, backing: Store) -> None:
    """History before this process started has no change of the kind."""
    for i in range(5):
        await save(objects, factories.node(f"n{i}"))
    second = Objects(backing, MemoryStore())
    await second.start()
    stream = second.stream(WORKLOAD, after=1)
    assert await is_quiet(stream)
    assert stream._live is not None
    await save(second, factories.workload("w"))
    assert len(await read(stream, 1)) == 1
    await second.close()


async def test_stream_from_compacted_revision_expires(objects: Objects) -> None:
    for i in range(5):
        await save(objects, factories.workload(replicas=i))
    objects._durable.cache(WORKLOAD).recent.drop_through(objects.head(WORKLOAD))
    await objects.store_of(WORKLOAD).compact(objects.head(WORKLOAD))
    with pytest.raises(Expired):
        await anext(objects.stream(WORKLOAD, after=1))


async def test_closed_stream_releases_its_subscription(objects: Objects) -> None:
    streams = objects._durable.cache(BINDING).streams
    kept, dropped = (objects.stream(BINDING, after=0, fields={"node": "n1"}) for _ in range(2))
    assert await is_quiet(kept) and await is_quiet(dropped)
    assert len(streams._by_field["node"]["n1"]) == 2
    del dropped
    gc.collect()
    await save(objects, binding("b", "n2"))
    assert len(streams._by_field["node"]["n1"]) == 1
    await kept.aclose()
    assert streams._by_field == {}


async def test_stream_collected_during_a_delivery_disturbs_no_other(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python may collect the abandoned stream of a client anywhere, also between two steps of a delivery."""
    cache = objects._durable.cache(BINDING)
    kept = objects.stream(BINDING, after=0, fields={"node": "n1"})
    dropped = objects.stream(BINDING, after=0, fields={"metadata.name": "other"})
    assert await is_quiet(kept) and await is_quiet(dropped)
    cycle: list[object] = [dropped]
    cycle.append(cycle)
    node_of = cache._index["node"]

    def collect_between(item: Object) -> Iterable[str]:
        gc.collect()
        return node_of(item)

    monkeypatch.setattr(cache, "_index", {**cache._index, "node": collect_between})
    del dropped, cycle
    await save(objects, binding("b", "n1"))
    assert names(present(change.new) for change in await read(kept, 1)) == ["b"]
    await save(objects, binding("c", "n1"))
    assert names(present(change.new) for change in await read(kept, 1)) == ["c"]
    assert list(cache.streams._by_field) == ["node"]


async def test_pages_of_past_revision_show_one_state(objects: Objects) -> None:
    await save(objects, *(factories.workload(f"w{i}") for i in range(7)))
    first = await objects.page(WORKLOAD, "acme", at=None, after="", limit=3)
    assert (names(first.items), first.more, first.remaining) == (["w0", "w1", "w2"], True, 4)
    await save(objects, factories.workload("w3", replicas=99), factories.workload("w2x"))
    await drop(objects, factories.workload("w5"))
    found, after = list(first.items), WORKLOAD.store_key("acme", "w2")
    while True:
        page = await objects.page(WORKLOAD, "acme", at=first.revision, after=after, limit=3)
        found += page.items
        assert page.revision == first.revision
        if not page.more:
            break
        assert page.remaining > 0
        after = WORKLOAD.store_key("acme", page.items[-1].metadata.name)
    assert names(found) == [f"w{i}" for i in range(7)]
    assert of_type(found[3], Workload).spec.replicas == 3 and found[3].revision <= first.revision
    assert found[4] is objects.get(WORKLOAD, "acme", "w4")
    assert (await objects.page(WORKLOAD, at=None, after="", limit=0)).remaining == 0


async def test_wait_for_revision_returns_when_reached_or_timed_out(objects: Objects) -> None:
    head = await save(objects, factories.workload())
    assert await objects.wait_for(WORKLOAD, head, timeout_s=0.01)
    assert not await objects.wait_for(WORKLOAD, head + 1, timeout_s=0.01)
    waiting = asyncio.create_task(objects.wait_for(WORKLOAD, head + 1, timeout_s=5))
    await asyncio.sleep(0)
    await save(objects, factories.workload(replicas=8))
    assert await waiting


async def test_wait_for_revision_cancelled_with_result_is_cancelled(objects: Objects) -> None:
    """Cancelled in the same iteration of the event loop as the result: a swallowed cancellation would never end the
    task.
    """
    head = await save(objects, factories.workload())
    waiting = asyncio.create_task(objects.wait_for(WORKLOAD, head + 1, timeout_s=5))
    await asyncio.sleep(0)
    saving = asyncio.create_task(save(objects, factories.workload(replicas=8)))
    while objects.head(WORKLOAD) == head:
        await asyncio.sleep(0)
    waiting.cancel()
    await saving
    await asyncio.wait({waiting})
    assert waiting.cancelled()


async def test_events_are_in_volatile_store_with_own_revisions(objects: Objects) -> None:
    await save(objects, factories.workload(), factories.node())
    event = Event(metadata=ObjectMeta(name="e", namespace="acme", uid="1"), reason="Tested")
    assert await save(objects, event) == 1
    assert objects.head(EVENT) == 1 and objects.head(WORKLOAD) == 2
    assert objects.store_of(EVENT) is not objects.store_of(WORKLOAD)
    (change,) = await read(objects.stream(EVENT, after=0), 1)
    assert change.new == objects.get(EVENT, "acme", "e")


async def test_second_objects_on_store_loads_same_state(objects: Objects, backing: Store) -> None:
    await save(objects, *(binding(f"b{i}", "n1") for i in range(5)))
    second = Objects(backing, MemoryStore())
    await second.start()
    assert second.list(BINDING) == objects.list(BINDING)
    assert second.list(BINDING, fields={"node": "n1"}) == objects.list(BINDING, fields={"node": "n1"})
    stream = second.stream(BINDING, after=second.head(BINDING))
    await save(objects, binding("b9", "n1"))
    assert [present(c.new).metadata.name for c in await read(stream, 1)] == ["b9"]
    await second.close()


async def test_close_ends_streams_and_reads(objects: Objects) -> None:
    stream = objects.stream(WORKLOAD, after=0)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await objects.close()
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        objects.list(WORKLOAD)


async def test_objects_reload_after_expired_watch() -> None:
    class Forgetful(WatchOnly):
        """Its first watch ends with `Expired` on request of the test."""

        expired = False
        forget = asyncio.Event()

        def __init__(self, store: MemoryStore) -> None:
            super().__init__(store)
            self.watch = self._watch

        async def _watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
            if not self.expired:
                self.expired = True
                await self.forget.wait()
                await self._store.commit(Txn(writes=(put(factories.workload("missed")),)))
                raise Expired("compacted")
            async for changes in self._store.watch(prefix, after=after):
                yield changes

    objects = Objects(Forgetful(MemoryStore()), MemoryStore())
    await objects.start()
    stream = objects.stream(WORKLOAD, after=0)
    assert await is_quiet(stream)
    Forgetful.forget.set()
    with pytest.raises(Expired):
        await asyncio.wait_for(anext(stream), 5)
    assert names(objects.list(WORKLOAD)[0]) == ["missed"]
    await save(objects, factories.workload("next"))
    assert names(objects.list(WORKLOAD)[0]) == ["missed", "next"]
    await objects.close()


async def test_stream_from_a_revision_of_another_life_ends_with_expired(objects: Objects) -> None:
    """A reader of a cell that lost its store would otherwise wait for the old revision forever."""
    stream = objects.stream(WORKLOAD, after=objects.head(WORKLOAD) + 1_000)
    with pytest.raises(Expired, match="in the future"):
        await asyncio.wait_for(anext(stream), 5)
