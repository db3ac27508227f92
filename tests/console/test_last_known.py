"""A region that is out of contact: no page claims that one of its replicas or nodes is at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.console import last_known
from holdfast.console.answers import (
    NodeDetail,
    RegionAnswer,
    RegionMap,
    RegionSummary,
    RegionWorkload,
    ReplicaRow,
    SearchHit,
    StageCount,
    ZoneColumns,
    ZoneTotal,
)
from holdfast.console.fleet_reads import navigation, overview, pipeline_page
from holdfast.console.global_reads import GlobalReader
from holdfast.console.last_known import UNKNOWN, as_last_known
from holdfast.console.region_hub import RegionHub
from holdfast.console.viewer import asserted_viewer
from holdfast.foundation.ports import SystemPorts
from holdfast.model import codec
from holdfast.model.assignment import Assignment, AssignmentStatus
from holdfast.model.kinds import kind_of
from holdfast.model.lifecycle import Stage
from holdfast.model.meta import Object
from holdfast.model.principal import OPERATORS, TENANT_PREFIX
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region, RegionHealth
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

SINCE = "2026-11-19T21:42:57Z"
AT_WORK = ("Reserved", "Bound", "Starting", "Running", "Ready", "Serving", "Unknown", "Stopping")
KEPT = ("Queued", "Succeeded", "Failed", "Released")


def silent_region() -> Region:
    health = RegionHealth(
        state=HealthState.LOST,
        reason=Reason.UNREACHABLE_CONFIRMED,
        message="no report for 12 s; east cannot reach it either",
        since=SINCE,
    )
    found = factories.region("west", state=HealthState.LOST)
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, health=health))


def replica(stage: str) -> ReplicaRow:
    return ReplicaRow(tenant="acme", name=f"web-{stage}", workload="web", stage=stage, since="2026-11-19T21:00:00Z")


def test_every_stage_is_kept_or_told_as_unknown() -> None:
    assert {*AT_WORK, *KEPT} == {s.value for s in Stage}
    assert set(AT_WORK) == last_known.IN_CONTACT


def test_stages_of_replicas_at_work_are_counted_as_unknown() -> None:
    stages = tuple(StageCount(stage=s.value, count=i + 1, oldest="web-0") for i, s in enumerate(Stage))
    before = {row.stage: row.count for row in stages}
    told = as_last_known(RegionSummary(stages=stages, waiting=1, replicas=78), silent_region())
    after = {row.stage: row.count for row in told.stages}
    assert after[UNKNOWN] == sum(before[name] for name in AT_WORK)
    assert all(not after[name] for name in AT_WORK if name != UNKNOWN)
    assert all(after[name] == before[name] for name in KEPT)
    assert sum(after.values()) == sum(before.values()), "no replica is forgotten"
    unknown = next(row for row in told.stages if row.stage == UNKNOWN)
    assert unknown.oldest == "west" and unknown.oldest_since_s > 0


@pytest.mark.parametrize("stage", AT_WORK)
def test_replica_at_work_is_unknown_with_its_last_known_stage(stage: str) -> None:
    row = as_last_known(RegionWorkload(replicas=(replica(stage),)), silent_region()).replicas[0]
    assert (row.stage, row.reason, row.since) == (UNKNOWN, "UnreachableConfirmed", SINCE)
    assert row.message == f"region west does not answer; the last known stage is {stage}"
    assert (row.next_owner, row.next_step) == ("region-health", "waits until the region reports again")


@pytest.mark.parametrize("stage", KEPT)
def test_ended_and_waiting_replica_stays_as_it_was(stage: str) -> None:
    found = RegionWorkload(replicas=(replica(stage),))
    assert as_last_known(found, silent_region()) == found


def test_nodes_are_unknown_and_need_attention() -> None:
    zone = ZoneColumns(zone="west-a", prefix="west-", names=("1", "2", "3", "4"), states="lcdl", used=(1, 2, 3, 4))
    empty = ZoneColumns(zone="west-b")
    totals = (ZoneTotal(zone="west-a", nodes=4, live=4, attention=2), ZoneTotal(zone="west-b"))
    told = as_last_known(RegionMap(nodes=4, zones=(zone, empty), totals=totals), silent_region())
    assert [z.states for z in told.zones] == ["uuuu", ""] and told.zones[0].used == ()
    assert [(t.live, t.attention) for t in told.totals] == [(0, 4), (0, 0)]
    only = told.attention[0]
    assert len(told.attention) == 1 and (only.zone, only.state, only.count) == ("west-a", UNKNOWN, 4)
    assert only.examples == ("west-1", "west-2", "west-3") and only.since == SINCE


def test_node_and_search_hit_are_unknown() -> None:
    node = NodeDetail(
        name="n", region="west", zone="west-a", pool="", state="Live", renewed_at=5.0, replicas=(replica("Serving"),)
    )
    told = as_last_known(node, silent_region())
    assert (told.state, told.reason, told.renewed_at) == (UNKNOWN, "UnreachableConfirmed", 5.0)
    assert told.replicas[0].stage == UNKNOWN
    hit = SearchHit(kind="Replica", name="acme/web-0", note="", path="", stage="Serving")
    assert as_last_known(hit, silent_region()).stage == UNKNOWN
    decision = SearchHit(kind="Decision", name="d", note="", path="")
    assert as_last_known(decision, silent_region()) == decision


def test_other_parts_are_unchanged() -> None:
    found: Any = RegionAnswer(as_of=1.0)
    assert as_last_known(found, silent_region()) is found


# The pages of the global cell


@pytest.fixture
async def reader() -> AsyncIterator[GlobalReader]:
    """A global cell with a lost region to which it assigned three replicas of tenant acme and one of shop."""
    objects = Objects(MemoryStore(), MemoryStore())
    await objects.start()
    ports = SystemPorts()
    for item in (
        silent_region(),
        factories.region("east"),
        factories.assignment("web", "west", status=AssignmentStatus(bound=3)),
        factories.assignment("till", "west", namespace="shop", status=AssignmentStatus(bound=1)),
        factories.assignment("web", "east", status=AssignmentStatus(bound=2)),
    ):
        await _put(objects, item)
    yield GlobalReader(objects, RegionHub(ports), ports)
    await objects.close()


async def _put(objects: Objects, item: Object) -> None:
    kind = kind_of(type(item))
    key = kind.store_key(item.metadata.namespace, item.metadata.name)
    await objects.commit(kind, Txn(writes=(Put(key, codec.encode(item)),)))


OPERATOR = asserted_viewer("ada", (OPERATORS,))
SHOP = asserted_viewer("tim", (f"{TENANT_PREFIX}shop",))


def unknown(stages: tuple[StageCount, ...]) -> int:
    return sum(row.count for row in stages if row.stage == UNKNOWN)


async def test_region_that_never_answered_is_counted_by_its_last_report(reader: GlobalReader) -> None:
    """Whoever opens the console after the loss must not read that nothing is missing."""
    found = await overview(reader, OPERATOR, {})
    assert unknown(found.stages) == 4 and sum(row.count for row in found.stages) == 4, "east is healthy: not known yet"
    page = await pipeline_page(reader, OPERATOR, {})
    assert unknown(page.stages_by_region["west"]) == 4 and "east" not in page.stages_by_region
    assert unknown((await overview(reader, SHOP, {})).stages) == 1, "a tenant counts its own replicas"
    assert (await navigation(reader, OPERATOR, {}))["queues"] == 0
    assert len(list(reader.view.list(Assignment))) == 3


async def test_last_answer_of_a_silent_region_claims_nothing_at_work(reader: GlobalReader) -> None:
    hub = reader.hub
    assert isinstance(hub, RegionHub)
    queue = hub.connect("west")
    asking = asyncio.ensure_future(reader.summaries(OPERATOR))
    query = await queue.get()
    assert query is not None
    body = b'{"asOf": 12.5, "data": {"stages": [{"stage": "Serving", "count": 3}, {"stage": "Queued", "count": 1}]}}'
    assert hub.resolve("west", query.id, body)
    current = reader.known_summaries(await asking, OPERATOR)["west"]
    assert unknown(current.stages) == 0, "a region that answers speaks for itself"
    hub.disconnect("west", queue)
    await asyncio.sleep(1.0)
    told = reader.known_summaries(await reader.summaries(OPERATOR), OPERATOR)["west"]
    assert {row.stage: row.count for row in told.stages if row.count} == {"Unknown": 3, "Queued": 1}
