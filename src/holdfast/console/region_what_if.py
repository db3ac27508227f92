"""What a region would do if a node were drained or Assignments were changed: planned on a copy of its objects.

One plan at a time, in a thread: a large region's snapshot must not hold up its other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.console.region_reads import RegionReader
from holdfast.console.viewer import Viewer, read_refusal
from holdfast.insight.region_clients import RegionClient
from holdfast.insight.replay import SNAPSHOT_KINDS
from holdfast.insight.what_if import PlannedPlacement, RegionOutcome, planned_in_region, what_if_drained
from holdfast.model.assignment import Assignment
from holdfast.model.errors import BadRequest, Forbidden, NotFound
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key
from holdfast.model.node import Node
from holdfast.model.quota import Grant

KINDS = tuple(dict.fromkeys((*SNAPSHOT_KINDS, "Replica", "SchedulingRequest", "PolicyRevision", "Override", "Binding")))

T = TypeVar("T")

_decoder = msgspec.json.Decoder(tuple[Assignment, ...])
_grants_decoder = msgspec.json.Decoder(tuple[Grant, ...])
_ended_decoder = msgspec.json.Decoder(tuple[tuple[str, str], ...])


async def drained(reader: RegionReader, viewer: Viewer, node: str) -> list[PlannedPlacement]:
    """Where the replicas of a node would go if it were drained now."""
    _check_reads_all(viewer)
    if not isinstance(reader.get(Node, node), Node):
        raise NotFound(f"node {node[:100]}: not found in region {reader.region}")
    return await _plan(reader, lambda region: what_if_drained(region, node))


async def applied(reader: RegionReader, viewer: Viewer, assignments: str, ended: str, grants: str) -> RegionOutcome:
    """What this region would do with these Assignments and Grants; `ended` are the tenants and names of deleted
    Assignments."""
    _check_reads_all(viewer)
    try:
        wanted = _decoder.decode(assignments)
        gone = [Key(*pair) for pair in _ended_decoder.decode(ended)]
        limits = _grants_decoder.decode(grants)
    except msgspec.MsgspecError as wrong:
        raise BadRequest(f"what if: cannot decode the assignments ({wrong})") from wrong
    now_s = reader.ports.clock.now()
    mine = _of(wanted, reader.region)
    return await _plan(reader, lambda region: planned_in_region(region, mine, gone, now_s, grants=limits))


def _of(assignments: Sequence[Assignment], region: str) -> list[Assignment]:
    return [a for a in assignments if a.spec.region == region]


def _check_reads_all(viewer: Viewer) -> None:
    """Planning reads the nodes and the work of every tenant."""
    for resource in ("nodes", "replicas"):
        refused = read_refusal(viewer, resource)
        if refused is not None:
            raise Forbidden(refused.message, facts=refused.facts)


async def _plan(reader: RegionReader, plan: Callable[[RegionClient], T]) -> T:
    async with reader.planning:
        present = {kind: reader.objects.list(BY_NAME[kind])[0] for kind in KINDS}
        return await asyncio.to_thread(lambda: plan(RegionClient.holding(reader.region, present)))
