"""What a region answers to the console: totals, packed columns, access, and the bound on its cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.console.answers import RegionAnswer, RegionMap, RegionQuery, RegionSummary
from holdfast.console.region_queries import BUSY_SHARE, RegionAnswers
from holdfast.console.region_reads import RegionReader, region_history
from holdfast.console.replica_rows import replica_row
from holdfast.console.viewer import asserted_viewer
from holdfast.foundation.ports import SystemPorts
from holdfast.model import codec
from holdfast.model.errors import Forbidden
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.node import ContactState
from holdfast.model.principal import MONITORS, OPERATORS, TENANT_PREFIX, VIEWERS
from holdfast.model.replica import ExecutionBlock, ExitStatus, Phase, PlacementBlock, Replica, ReplicaStatus
from holdfast.model.workload import WorkloadType
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

OPERATOR = ("ada", (OPERATORS,))
TENANT = ("tim", (f"{TENANT_PREFIX}acme",))
NODES, REPLICAS = 5000, 20_000
NODE_MAX_BYTES = 25
SUMMARY_GROWTH_MAX_BYTES = 2000
"""Longer counts and the names of the oldest replicas."""


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


async def test_batch_replica_at_work_is_not_counted_as_waiting_for_a_stage(region: Region) -> None:
    batch = factories.replica(1, status=factories.serving_status("n1", name="batch", serving=False))
    batch = msgspec.structs.replace(batch, spec=msgspec.structs.replace(batch.spec, type=WorkloadType.BATCH))
    await region.put(batch)
    ready = next(row for row in (await region.summary()).stages if row.stage == "Ready")
    assert (ready.count, ready.at_work, ready.oldest_since_s) == (1, 1, 0.0)


def test_ended_replica_keeps_the_times_of_the_attempt_that_ended() -> None:
    ran = ExecutionBlock(
        phase=Phase.SUCCEEDED,
        attempt=1,
        started_at="2026-01-01T00:00:02Z",
        last_exit=ExitStatus(code=0, at="2026-01-01T00:00:09Z"),
    )
    status = ReplicaStatus(placement=PlacementBlock(attempt=2, released_reason="Finished"), execution=ran)
    batch = factories.replica(1, status=status)
    batch = msgspec.structs.replace(batch, spec=msgspec.structs.replace(batch.spec, type=WorkloadType.BATCH))
    row = replica_row(batch)
    assert row.stage == "Succeeded"
    assert row.queued_at == batch.metadata.creation_timestamp
    assert (row.started_at, row.ended_at, row.since) == ("2026-01-01T00:00:02Z", *["2026-01-01T00:00:09Z"] * 2)


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


@pytest.mark.slow
async def test_answers_about_a_large_region_are_totals_and_packed_columns(region: Region) -> None:
    """5,000 nodes and 20,000 replicas never travel whole: a node takes a few bytes, and a replica none."""
    zones = ("west-a", "west-b", "west-c")
    capacity = {"cpu": "8", "memory": "8Gi"}
    await region.put(
        *(factories.node(f"{zones[i % 3]}-{i}", zone=zones[i % 3], capacity=capacity) for i in range(NODES))
    )
    found = await region.ask("map", resource="cpu")
    assert isinstance(found.data, RegionMap) and found.data.nodes == NODES
    assert len(msgspec.json.encode(found)) < NODES * NODE_MAX_BYTES
    empty = len(msgspec.json.encode(await region.ask("summary")))
    bound = (factories.replica(i, status=factories.bound_status("west-a-0", name=f"r{i}")) for i in range(REPLICAS))
    await region.put(*bound)
    full = await region.ask("summary")
    assert isinstance(full.data, RegionSummary) and full.data.replicas == REPLICAS
    assert len(msgspec.json.encode(full)) < empty + SUMMARY_GROWTH_MAX_BYTES


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


async def test_expensive_answers_share_one_part_of_a_core(region: Region, monkeypatch: Any) -> None:
    clock, now = type(region.reader.ports.clock), [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda self: now[0])

    made: list[float] = []

    def slow(*arguments: Any) -> dict[str, int]:
        now[0] += 0.05
        made.append(now[0])
        return {"made": len(made)}

    monkeypatch.setattr(region.reader, "summary", slow)
    monkeypatch.setattr(region.reader, "map", slow)
    began = now[0]
    while now[0] < began + 100.0:
        await region.ask("summary")
        for resource in ("cpu", "memory"):
            await region.ask("map", resource=resource)
        now[0] += 0.1
    used = 0.05 * len(made) / (now[0] - began)
    assert BUSY_SHARE / 2 < used < BUSY_SHARE * 1.2, f"{len(made)} computations used {used:.3f} of a core"


async def test_answer_that_the_global_cell_has_is_not_sent_again(region: Region) -> None:
    await region.put(factories.replica(1))
    query = RegionQuery(id="west.1", name="summary", user=OPERATOR[0], groups=OPERATOR[1])
    first = msgspec.json.decode(await region.answers.encoded(query), type=RegionAnswer)
    assert first.data["replicas"] == 1 and first.etag and not first.unchanged
    again = msgspec.structs.replace(query, known=first.etag)
    second = msgspec.json.decode(await region.answers.encoded(again), type=RegionAnswer)
    assert second.unchanged and second.data is None and second.etag == first.etag
    await region.put(factories.replica(2))
    third = second
    async with asyncio.timeout(60):  # a kept answer is repeated, for longer the longer it took
        while third.unchanged:
            await asyncio.sleep(0.1)
            third = msgspec.json.decode(await region.answers.encoded(again), type=RegionAnswer)
    assert third.data["replicas"] == 2 and third.etag != first.etag


async def test_totals_are_computed_again_only_when_an_object_changed(region: Region) -> None:
    await region.put(factories.node("n1"), factories.replica(1))
    viewer = asserted_viewer(*OPERATOR)
    first, nodes = region.reader.summary(viewer), region.reader.node_rows()
    assert region.reader.summary(viewer) is first
    await region.put(factories.replica(2))
    assert region.reader.summary(viewer).replicas == 2
    assert region.reader.node_rows() is nodes, "a changed replica changes no node"
    assert region.reader.count(kind_of(Replica)) == 2


async def test_query_of_a_newer_release_is_an_error_not_a_failure(region: Region) -> None:
    assert "unknown in this release" in (await region.ask("teleport")).error
