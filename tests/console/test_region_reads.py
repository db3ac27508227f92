"""What a region answers to the console: totals, packed columns, access, and the bound on its cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.console.answers import RegionAnswer, RegionMap, RegionQuery, RegionSummary
from holdfast.console.region_queries import BUSY_SHARE, RegionAnswers
from holdfast.console.region_reads import RegionReader, region_history
from holdfast.console.viewer import asserted_viewer
from holdfast.foundation.ports import SystemPorts
from holdfast.model import codec
from holdfast.model.errors import Forbidden
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.node import ContactState
from holdfast.model.principal import MONITORS, OPERATORS, TENANT_PREFIX, VIEWERS
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

OPERATOR = ("ada", (OPERATORS,))
TENANT = ("tim", (f"{TENANT_PREFIX}acme",))


class Region:
    """A region's objects and what it answers."""

    def __init__(self) -> None:
        self.objects = Objects(MemoryStore(), MemoryStore())
        self.reader = RegionReader("west", self.objects, SystemPorts())
        self.answers = RegionAnswers(self.reader, region_history("west", self.objects, SystemPorts()))

    async def put(self, *items: Object) -> None:
        for item in items:
            kind = kind_of(type(item))
            key = kind.store_key(item.metadata.namespace, item.metadata.name)
            await self.objects.commit(kind, Txn(writes=(Put(key, codec.encode(item)),)))

    async def ask(self, name: str, who: tuple[str, tuple[str, ...]] = OPERATOR, **parameters: str) -> RegionAnswer:
        query = RegionQuery(id="west.1", name=name, parameters=parameters, user=who[0], groups=who[1])
        return await self.answers.answer(query)

    async def summary(self, who: tuple[str, tuple[str, ...]] = OPERATOR) -> RegionSummary:
        found: Any = (await self.ask("summary", who)).data
        assert isinstance(found, RegionSummary)
        return found


@pytest.fixture
async def region() -> AsyncIterator[Region]:
    made = Region()
    await made.objects.start()
    yield made
    await made.objects.close()


def stages(summary: RegionSummary) -> dict[str, int]:
    return {row.stage: row.count for row in summary.stages if row.count}


async def test_summary_counts_every_replica_in_one_stage(region: Region) -> None:
    await region.put(
        factories.replica(0),
        factories.replica(1, status=factories.bound_status("n1", name="bound")),
        factories.replica(2, status=factories.serving_status("n1", name="serving")),
    )
    found = await region.summary()
    assert stages(found) == {"Queued": 1, "Bound": 1, "Serving": 1}
    assert found.replicas == 3


async def test_tenant_gets_only_its_own_replicas_and_no_map(region: Region) -> None:
    other = factories.replica(1)
    other = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, namespace="other"))
    await region.put(factories.replica(0), other, factories.node("n1"))
    assert (await region.summary(TENANT)).replicas == 1
    assert (await region.summary()).replicas == 2
    for page in ("map", "system"):
        refused = await region.ask(page, TENANT)
        assert refused.data is None and "forbidden" in refused.error
    assert "forbidden" in (await region.ask("node", TENANT, node="n1")).error
    assert "forbidden" in (await region.ask("workload", TENANT, tenant="other", workload="x")).error


async def test_global_cell_cannot_assert_a_component(region: Region) -> None:
    for groups in ((MONITORS,), ("holdfast:controllers",), ("holdfast:nodes",), ()):
        with pytest.raises(Forbidden):
            asserted_viewer("holdfast:controller:authority", groups)
        assert "forbidden" in (await region.ask("summary", ("x", groups))).error
    assert asserted_viewer("vera", (VIEWERS, "holdfast:controllers")).groups[0] == VIEWERS


async def test_map_packs_nodes_by_zone_with_their_states(region: Region) -> None:
    capacity = {"cpu": "8", "memory": "8Gi"}
    await region.put(
        *(factories.node(f"west-a{i}", zone="west-a", capacity=capacity) for i in (2, 10, 1)),
        factories.node("west-b1", zone="west-b", capacity=capacity, contact=ContactState.EXPIRED),
    )
    found: Any = (await region.ask("map", resource="cpu")).data
    assert isinstance(found, RegionMap)
    first, second = found.zones
    assert (first.prefix, first.names, first.states) == ("west-a", ("1", "2", "10"), "lll")
    assert second.states == "x"
    assert [(a.zone, a.state, a.count) for a in found.attention] == [("west-b", "Expired", 1)]
    assert "unknown" in (await region.ask("map", resource="<script>")).error


async def test_unchanged_objects_keep_their_rows(region: Region) -> None:
    await region.put(factories.replica(1), factories.replica(2))
    viewer = asserted_viewer(*OPERATOR)
    before = {r.row.name[-1]: r for r in region.reader.replicas(viewer)}
    await region.put(factories.replica(2, status=factories.bound_status("n1", name="two")))
    after = {r.row.name[-1]: r for r in region.reader.replicas(viewer)}
    assert after["1"] is before["1"] and after["2"] is not before["2"]


async def test_expensive_answer_is_repeated_with_its_own_time(region: Region, monkeypatch: Any) -> None:
    clock, now = type(region.reader.ports.clock), [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda self: now[0])
    cheap = region.reader.summary

    def slow(viewer: Any) -> RegionSummary:
        now[0] += 0.05
        return cheap(viewer)

    monkeypatch.setattr(region.reader, "summary", slow)
    first = await region.ask("summary")
    now[0] = 100.0 + 0.05 / BUSY_SHARE - 0.01
    assert (await region.ask("summary")) is first, "0.05 s of work is repeated for 2 s"
    now[0] += 0.02
    assert (await region.ask("summary")) is not first


async def test_query_of_a_newer_release_is_an_error_not_a_failure(region: Region) -> None:
    assert "unknown in this release" in (await region.ask("teleport")).error
