"""This release reads a file that the next release wrote: unknown fields, kinds and records do no harm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.cell.cell import GLOBAL, Cell
from holdfast.foundation.ports import SystemPorts
from holdfast.model import codec, kinds, limits
from holdfast.model.errors import Conflict, StoreFailed
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import OPERATORS, from_identity
from holdfast.model.priority_class import PriorityClass
from holdfast.model.region import Region, RegionSpec
from holdfast.model.template import Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload, WorkloadSpec
from holdfast.model.writes import Create, Update
from holdfast.sim.releases import UNKNOWN, UNKNOWN_KIND_KEY, UNKNOWN_VALUE, ReleaseVersion, stored_by
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects
from holdfast.store.sqlite import SqliteStore

ANN = from_identity("ann", (OPERATORS,), credential="token")
NODE, REPLICA, REGION = (kinds.BY_NAME[name] for name in ("Node", "Replica", "Region"))


async def until(true: Callable[[], Any], what: str) -> None:
    try:
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"never came true: {what}")


class Platform:
    """A global cell on a file, started several times."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def start(self) -> None:
        self.store = SqliteStore(self.path)
        self.cell = Cell(GLOBAL, self.store, MemoryStore(), SystemPorts(), identity="g-0")
        await self.cell.start()
        self.client = self.cell.client(ANN)

    async def stop(self) -> None:
        await self.cell.stop()
        await self.store.close()

    async def scale(self, name: str, replicas: int) -> None:
        """Retries if a controller was faster."""
        for _ in range(limits.READ_BACK_ATTEMPTS):
            found = await self.client.get(Workload, name, "acme")
            assert found is not None
            spec = msgspec.structs.replace(found.spec, replicas=replicas)
            try:
                await self.client.commit([Update(msgspec.structs.replace(found, spec=spec))])
                return
            except Conflict:
                continue
        pytest.fail("somebody was faster every time")

    async def upgraded_for_a_while(self) -> int:
        """Rewrites the file as the next release would: every object, plus one of an unknown kind."""
        store = SqliteStore(self.path)
        page = await store.range("")
        puts = tuple(Put(entry.key, entry.value) for entry in page.entries)
        made = stored_by(
            ReleaseVersion.NEXT, Txn(writes=(*puts, Put(f"{UNKNOWN_KIND_KEY}x", b'{"metadata":{"name":"x"}}')))
        )
        await store.commit(made)
        await store.close()
        return len(puts)


async def test_cell_runs_on_store_written_by_next_release(tmp_path: Path) -> None:
    platform = Platform(tmp_path / "cell.db")
    await platform.start()
    spec = WorkloadSpec(template=Template(command=("sleep", "1"), resources={"cpu": "1"}), replicas=2)
    for item in (
        Tenant(ObjectMeta(name="acme")),
        PriorityClass(ObjectMeta(name="standard")),
        Region(ObjectMeta(name="east"), RegionSpec(zones=("east-a",))),
        Workload(ObjectMeta(name="web", namespace="acme"), spec),
    ):
        await platform.client.commit([Create(item)])
    before = await platform.client.get(Workload, "web", "acme")
    assert before is not None
    await platform.stop()

    assert await platform.upgraded_for_a_while() > 5
    await platform.start()
    try:
        found = await platform.client.get(Workload, "web", "acme")
        assert found is not None and (found.spec, found.uid) == (before.spec, before.uid)
        entry = await platform.store.get(kinds.BY_NAME["Tenant"].store_key("", "acme"))
        assert entry is not None
        served = msgspec.json.decode(codec.wire_bytes(kinds.BY_NAME["Tenant"], entry.value, entry.revision))
        assert served[UNKNOWN] == UNKNOWN_VALUE and served["metadata"][UNKNOWN] == UNKNOWN_VALUE, (
            "kept until the object is rewritten"
        )
        # An object that this release rewrites has only fields that it knows.
        await platform.scale("web", 7)
        key = kinds.BY_NAME["Workload"].store_key("acme", "web")
        after = await platform.store.get(key)
        assert after is not None and UNKNOWN.encode() not in after.value, "dropped by the release that rewrites it"
        found = await platform.client.get(Workload, "web", "acme")
        assert found is not None and found.spec.replicas == 7
        assert await platform.client.get(Region, "east") is not None
        other = await platform.store.get(f"{UNKNOWN_KIND_KEY}x")
        assert other is not None and other.value == b'{"metadata":{"name":"x"}}', "an unknown kind is left alone"
    finally:
        await platform.stop()


async def test_objects_with_unknown_fields_are_read(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "cell.db")
    items = {
        NODE: factories.node("n1"),
        REPLICA: factories.replica(status=factories.bound_status()),
        REGION: factories.region("east"),
    }
    puts = {
        kind: Put(kind.store_key(i.metadata.namespace, i.metadata.name), codec.encode(i)) for kind, i in items.items()
    }
    await store.commit(stored_by(ReleaseVersion.NEXT, Txn(writes=tuple(puts.values()))))
    objects = Objects(store, MemoryStore())
    await objects.start()
    try:
        for kind, item in items.items():
            found: Any = objects.get(kind, item.metadata.namespace, item.metadata.name)
            assert codec.encode(found) == puts[kind].value
            entry = objects.entry(kind, item.metadata.namespace, item.metadata.name)
            assert entry is not None and entry.value.count(b'"tomorrow"') > 3
    finally:
        await objects.close()
        await store.close()


async def test_unknown_enum_value_stops_cell_naming_the_object(tmp_path: Path) -> None:
    """This release would not know how to act on it, and a guess could violate placement rules."""
    store = SqliteStore(tmp_path / "cell.db")
    item = factories.node("n1")
    key = NODE.store_key("", "n1")
    value = codec.encode(item).replace(b'"Live"', b'"Dozing"')
    assert b"Dozing" in value
    await store.commit(Txn(writes=(Put(key, value),)))
    objects = Objects(store, MemoryStore())
    with pytest.raises(StoreFailed, match=r"Node /nodes/n1: cannot decode revision 1 .*Dozing.* run the release"):
        await objects.start()
    await store.commit(Txn(writes=(Put(key, codec.encode(item)),)))
    objects = Objects(store, MemoryStore())
    await objects.start()
    try:
        # Written by a process of the next release that shares the store.
        await store.commit(Txn(writes=(Put(key, value),)))
        await until(lambda: _stopped(objects), "the cell notices")
        with pytest.raises(StoreFailed, match=r"Node /nodes/n1: cannot decode revision 3"):
            objects.check()
    finally:
        await objects.close()
        await store.close()


def _stopped(objects: Objects) -> bool:
    try:
        objects.check()
    except StoreFailed:
        return True
    return False
