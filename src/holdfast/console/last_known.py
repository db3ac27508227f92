"""The last answer of a region that is out of contact: what it said of running work is told as unknown.

Nobody knows whether a replica of such a region still serves, so no page shows one as serving. The last known stage
stays in the message.
What does not depend on contact stays as it was: ended replicas, waiting ones, times of past steps, capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.console.answers import (
    NodeAttention,
    NodeDetail,
    RegionMap,
    RegionSummary,
    RegionWorkload,
    ReplicaRow,
    SearchHit,
    StageCount,
)
from holdfast.console.node_rows import UNKNOWN_LETTER
from holdfast.model.assignment import Assignment
from holdfast.model.lifecycle import PLACED_STAGES, Stage
from holdfast.model.region import Region
from holdfast.model.times import parse_time

# Nodes that the list of nodes that need attention names for a zone.
EXAMPLES = 3

UNKNOWN = Stage.UNKNOWN.value
IN_CONTACT = frozenset(s.value for s in PLACED_STAGES | {Stage.RESERVED, Stage.STOPPING})
"""Stages of replicas that something acts on: their present is known only while the region answers."""

T = TypeVar("T")


def as_last_known(found: T, region: Region) -> T:
    """`found`, a part of the region's last answer, as it may be shown while the region is out of contact."""
    tell = _TELLERS.get(type(found))
    told: T = tell(found, region) if tell is not None else found
    return told


def unanswered_summary(region: Region, assignments: Iterable[Assignment]) -> RegionSummary:
    """Totals of a region that is out of contact and never answered the console: what its last report counted."""
    bound = sum(item.status.bound for item in assignments if item.spec.region == _name(region))
    report = region.status.report
    counted = RegionSummary(
        stages=tuple(StageCount(stage=s.value, count=bound if s is Stage.BOUND else 0) for s in Stage),
        nodes=report.nodes if report is not None else 0,
        replicas=bound,
    )
    return _summary(counted, region)


def _summary(found: RegionSummary, region: Region) -> RegionSummary:
    lost = sum(row.count for row in found.stages if row.stage in IN_CONTACT)
    since = region.status.health.since
    unknown = StageCount(
        stage=UNKNOWN, count=lost, oldest_since_s=parse_time(since) if since and lost else 0.0, oldest=_name(region)
    )
    stages = {row.stage: StageCount(stage=row.stage) if row.stage in IN_CONTACT else row for row in found.stages}
    stages[UNKNOWN] = unknown
    return msgspec.structs.replace(found, stages=tuple(stages.values()), live=0)


def _workload(found: RegionWorkload, region: Region) -> RegionWorkload:
    return msgspec.structs.replace(found, replicas=tuple(_replica(row, region) for row in found.replicas))


def _replica(row: ReplicaRow, region: Region) -> ReplicaRow:
    if row.stage not in IN_CONTACT:
        return row
    return msgspec.structs.replace(
        row,
        stage=UNKNOWN,
        reason=region.status.health.reason,
        message=f"region {_name(region)} does not answer; the last known stage is {row.stage}",
        since=region.status.health.since,
        next_owner="region-health",
        next_step="waits until the region reports again",
    )


def _map(found: RegionMap, region: Region) -> RegionMap:
    health = region.status.health
    attention = [
        NodeAttention(
            zone=zone.zone,
            state=UNKNOWN,
            reason=health.reason,
            count=len(zone.names),
            examples=tuple(zone.prefix + name for name in zone.names[:EXAMPLES]),
            since=health.since,
        )
        for zone in found.zones
        if zone.names
    ]
    zones = [msgspec.structs.replace(zone, states=UNKNOWN_LETTER * len(zone.names), used=()) for zone in found.zones]
    totals = [msgspec.structs.replace(total, live=0, attention=total.nodes) for total in found.totals]
    return msgspec.structs.replace(found, zones=tuple(zones), totals=tuple(totals), attention=tuple(attention))


def _node(found: NodeDetail, region: Region) -> NodeDetail:
    return msgspec.structs.replace(
        found,
        state=UNKNOWN,
        reason=region.status.health.reason,
        replicas=tuple(_replica(row, region) for row in found.replicas),
    )


def _hit(found: SearchHit, region: Region) -> SearchHit:
    return msgspec.structs.replace(found, stage=UNKNOWN) if found.stage in IN_CONTACT else found


def _name(region: Region) -> str:
    return region.metadata.name


_TELLERS: dict[type, Callable[[Any, Region], Any]] = {
    RegionSummary: _summary,
    RegionWorkload: _workload,
    RegionMap: _map,
    NodeDetail: _node,
    SearchHit: _hit,
}
