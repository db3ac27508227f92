"""The past of a region for the console: which moment is shown, how far back it goes, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.console import past
from holdfast.console.answers import RegionQuery
from holdfast.console.past import CellHistory
from holdfast.console.region_queries import RegionAnswers, parse_moment
from holdfast.console.region_reads import RegionReader, region_history
from holdfast.foundation.ports import SystemPorts
from holdfast.model import codec
from holdfast.model.core import Lease, LeaseSpec
from holdfast.model.errors import BadRequest, Expired, Overloaded
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.principal import OPERATORS
from holdfast.model.replica import Replica
from holdfast.model.times import micro_text
from holdfast.store.contract import Put, Remove, Store, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects
from holdfast.store.sqlite import SqliteStore

BEGIN_S = 1_800_000_000.0


class Cell:
    """A cell whose election lease is renewed every five seconds, and a replica more each time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.objects = Objects(self.store, MemoryStore())
        self.history: CellHistory[RegionReader] = region_history("west", self.objects, SystemPorts())
        reader = RegionReader("west", self.objects, SystemPorts())
        self.answers = RegionAnswers(reader, self.history)

    async def put(self, item: Object) -> None:
        kind = kind_of(type(item))
        key = kind.store_key(item.metadata.namespace, item.metadata.name)
        await self.objects.commit(kind, Txn(writes=(Put(key, codec.encode(item)),)))

    async def renew(self, at_s: float) -> None:
        meta = ObjectMeta(name="controllers", namespace="holdfast-system", creation_timestamp="2026-01-01T00:00:00Z")
        await self.put(Lease(metadata=meta, spec=LeaseSpec(holder_identity="west-0", renew_time=micro_text(at_s))))

    async def live(self, marks: int) -> None:
        for index in range(marks):
            await self.renew(BEGIN_S + 5 * index)
            await self.put(factories.replica(index))

    async def replicas_at(self, at_s: float) -> int:
        reader, _ = await self.history.reader(at_s)
        return len(reader.all(Replica))


@pytest.fixture(params=["memory", "sqlite"])
async def cell(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cell]:
    made = Cell(MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store.db"))
    await made.objects.start()
    yield made
    await made.objects.close()
    await made.store.close()


async def test_state_is_never_newer_than_the_moment(cell: Cell) -> None:
    await cell.live(40)
    for index in (0, 1, 7, 39):
        assert await cell.replicas_at(BEGIN_S + 5 * index) == index
        assert await cell.replicas_at(BEGIN_S + 5 * index + 4.9) == index
    reader, moment = await cell.history.reader(BEGIN_S + 37)
    assert moment.at_s == BEGIN_S + 35 and reader.ports.clock.now() == BEGIN_S + 35
    assert reader.revision() == moment.revision


async def test_moment_of_the_past_is_measured_by_one_lease_of_several(cell: Cell) -> None:
    """Leases are renewed in turn: whichever was renewed last, the same one gives the marks."""
    await cell.live(10)
    meta = ObjectMeta(name="another", namespace="holdfast-system", creation_timestamp="2030-01-01T00:00:00Z")
    for index in range(10, 20):
        late = LeaseSpec(holder_identity="west-0", renew_time=micro_text(BEGIN_S + 5 * index + 3))
        await cell.renew(BEGIN_S + 5 * index)
        await cell.put(Lease(metadata=meta, spec=late))
        await cell.put(factories.replica(index))
    for index in (3, 9, 10, 15, 19):
        _, moment = await cell.history.reader(BEGIN_S + 5 * index + 4)
        assert moment.at_s == BEGIN_S + 5 * index
        assert await cell.replicas_at(BEGIN_S + 5 * index) == index


async def test_removed_object_is_there_in_the_past_and_its_index_too(cell: Cell) -> None:
    await cell.live(3)
    kind, gone = kind_of(Replica), factories.replica(0)
    await cell.objects.commit(kind, Txn(writes=(Remove(kind.store_key("acme", gone.metadata.name)),)))
    await cell.renew(BEGIN_S + 60)
    assert await cell.replicas_at(BEGIN_S + 60) == 2
    reader, _ = await cell.history.reader(BEGIN_S + 10)
    assert reader.get(Replica, gone.metadata.name, "acme") is not None
    assert reader.all(Replica, "acme", assignment=f"acme/{gone.spec.assignment}")


async def test_moment_before_the_history_is_refused_with_its_begin(cell: Cell) -> None:
    with pytest.raises(Expired, match="there is none yet"):
        await cell.history.reader(BEGIN_S)
    await cell.live(20)
    assert (await cell.history.range()).oldest_s == BEGIN_S
    with pytest.raises(Expired, match="history begins at"):
        await cell.history.reader(BEGIN_S - 1)
    _, moment = await cell.history.reader(BEGIN_S + 50)
    await cell.store.compact(moment.revision)
    oldest = (await cell.history.range()).oldest_s
    assert oldest == BEGIN_S + 55
    with pytest.raises(Expired):
        await cell.history.reader(BEGIN_S + 54)
    assert await cell.replicas_at(oldest) == 11


async def test_state_is_built_once_however_many_ask(cell: Cell, monkeypatch: Any) -> None:
    await cell.live(5)
    built: list[int] = []
    build = CellHistory._objects_at

    async def counted(self: Any, revision: int) -> Any:
        built.append(revision)
        return await build(self, revision)

    monkeypatch.setattr(CellHistory, "_objects_at", counted)
    found = await asyncio.gather(*(cell.history.reader(BEGIN_S + 10) for _ in range(past.STATES_WAITING_MAX)))
    assert len({id(reader) for reader, _ in found}) == 1 and len(built) == 1
    crowd = (cell.history.reader(BEGIN_S + i) for i in range(past.STATES_WAITING_MAX + 1))
    results = await asyncio.gather(*crowd, return_exceptions=True)
    assert [type(r) for r in results if isinstance(r, Exception)] == [Overloaded]
    for index in range(4):
        await cell.history.reader(BEGIN_S + 5 * index)
    assert len(cell.history._readers) == past.STATES_KEPT


async def test_answer_about_the_past_has_the_time_of_its_state(cell: Cell) -> None:
    await cell.live(6)
    query = RegionQuery(
        id="west.1", name="summary", parameters={"at": str(BEGIN_S + 12)}, user="ada", groups=(OPERATORS,)
    )
    answer = await cell.answers.answer(query)
    assert (answer.as_of, answer.data.replicas, answer.error) == (BEGIN_S + 10, 2, "")
    wrong = await cell.answers.answer(msgspec.structs.replace(query, parameters={"at": "1"}))
    assert "not kept" in wrong.error


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "0", "yesterday", "1e300"])
def test_moment_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_moment(text)
