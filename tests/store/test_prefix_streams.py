"""Lists and streams by prefix of a field value, as a process for many hollow nodes uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests import factories
from tests.expected import present

from holdfast.model import codec, kinds
from holdfast.model.binding import Binding
from holdfast.model.meta import ObjectMeta
from holdfast.server.selectors import parse
from holdfast.store.contract import Put, Remove, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

BINDING = kinds.BY_NAME["Binding"]


def binding(name: str, node: str) -> Binding:
    made = factories.binding(factories.replica(status=factories.bound_status(node, name=name)), node)
    return msgspec.structs.replace(made, metadata=ObjectMeta(name=name, namespace="acme", uid=f"uid-{name}"))


async def save(objects: Objects, *items: Binding) -> None:
    puts = (Put(BINDING.store_key("acme", i.metadata.name), codec.encode(i), i) for i in items)
    await objects.commit(BINDING, Txn(writes=tuple(puts)))


@pytest.fixture
async def objects() -> AsyncIterator[Objects]:
    made = Objects(MemoryStore(), MemoryStore())
    await made.start()
    yield made
    await made.close()


async def test_prefix_filter_lists_and_streams_only_matching_objects(objects: Objects) -> None:
    await save(objects, binding("a", "h-1"), binding("b", "other"), binding("c", "h-2"))
    found, revision = objects.list(BINDING, fields={"node": "h-*"})
    assert [item.metadata.name for item in found] == ["a", "c"]
    stream = objects.stream(BINDING, after=revision, fields={"node": "h-*"})
    exact = objects.stream(BINDING, after=revision, fields={"node": "h-1"})
    reading = asyncio.ensure_future(anext(stream))
    also = asyncio.ensure_future(anext(exact))
    await asyncio.sleep(0)
    await save(objects, binding("d", "other"), binding("e", "h-3"), binding("f", "h-1"))
    assert [present(change.new).metadata.name for change in await reading] == ["e", "f"]
    assert [present(change.new).metadata.name for change in await also] == ["f"]
    await objects.commit(BINDING, Txn(writes=(Remove(BINDING.store_key("acme", "e")),)))
    gone = await anext(stream)
    assert [(change.new, present(change.old).metadata.name) for change in gone] == [(None, "e")]
    await stream.aclose()
    await exact.aclose()
    assert not objects._cache(BINDING).streams._prefixes.get("node"), "a closed stream leaves no entry"


@pytest.mark.parametrize(
    ("selector", "matches"),
    [("node=h-*", True), ("node=h-1", True), ("node=x-*", False), ("node!=h-*", False), ("spec.node=h-*", False)],
)
def test_prefix_selector_works_only_for_indexed_fields(selector: str, matches: bool) -> None:
    assert parse(BINDING, "", selector).matches(binding("a", "h-1")) is matches
