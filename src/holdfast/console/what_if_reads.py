"""What-if questions of the console: lose a region or zone, drain a node, apply manifests.

Computed by the decisions that would run, on copies of the present objects. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from holdfast.console.answers import AnswerRow
from holdfast.console.global_reads import GlobalReader, ObjectiveState, RegionState, part, parts
from holdfast.console.viewer import Viewer
from holdfast.controllers.cache import Cache
from holdfast.fleet.recovery.backing import Loss
from holdfast.fleet.recovery.target_plan import plan_targets
from holdfast.insight.region_loss import loss_outcome
from holdfast.insight.spec_diff import WorkloadChange
from holdfast.insight.what_if import (
    GLOBAL_KINDS,
    ManifestWorkload,
    PlannedPlacement,
    PlannedRemoval,
    RegionOutcome,
    RejectedChange,
    apply_to_view,
    unreachable_placement,
)
from holdfast.model.assignment import Assignment
from holdfast.model.errors import BadRequest, NotFound, Unavailable
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key
from holdfast.model.quota import Grant
from holdfast.model.region import Region

# Workloads of one question. More are refused: a person reads the answer.
MANIFESTS_MAX = 20
# Size of the Assignments that are sent to one region. More do not fit into one query.
ASSIGNMENTS_BYTES_MAX = 96 * 1024
# Replicas of one answer. The rest is only counted.
PLACINGS_MAX = 500

Parameters = dict[str, str]
Admission = Callable[[dict[str, Any]], Awaitable[str]]
"""Why the server would refuse a document; empty if it would accept it."""
_encoder = msgspec.json.Encoder()


class DrainOutcome(AnswerRow, frozen=True, kw_only=True):
    """Where the replicas of a node would go."""

    region: str
    node: str
    placings: tuple[PlannedPlacement, ...]


class WhatIfPage(AnswerRow, frozen=True, kw_only=True):
    losses: tuple[Any, ...]
    regions: tuple[RegionState, ...]
    outcome: Any = None
    drain: DrainOutcome | None = None
    objective: ObjectiveState | None = None


async def what_if_page(reader: GlobalReader, viewer: Viewer, parameters: Parameters) -> WhatIfPage:
    """The outcome of losing a region or zone, or of draining a node."""
    region, zone, node = parameters.get("region", ""), parameters.get("zone", ""), parameters.get("node", "")
    known = {r.metadata.name: r.spec.zones for r in reader.view.list(Region)}
    outcome, drain = None, None
    if region and (region not in known or (zone and zone not in known[region])):
        raise NotFound(f"region {region} {zone}: not found")
    if region and node:
        answer = await reader.hub.ask(region, "what-if-drain", viewer, node=node)
        if answer.answer is None:
            raise Unavailable(answer.problem) if "not found" not in answer.problem else NotFound(answer.problem)
        drain = DrainOutcome(region=region, node=node, placings=tuple(parts(answer, PlannedPlacement)))
    elif region:
        outcome = loss_outcome(plan_targets(Loss(region, zone), reader.view, reader.now_s), reader.view)
    return WhatIfPage(
        losses=tuple({"region": name, "zones": zones} for name, zones in known.items()),
        regions=tuple(reader.regions({})),
        outcome=outcome,
        drain=drain,
        objective=reader.objective(),
    )


class ChangeRow(AnswerRow, frozen=True, kw_only=True):
    workload: str
    new: bool
    fields: tuple[str, ...]


class ApplyOutcome(AnswerRow, frozen=True, kw_only=True):
    """What applying manifests would do. `placings` and `removals` are cut; `placed` and the others count all."""

    refused: tuple[RejectedChange, ...]
    changes: tuple[ChangeRow, ...]
    placings: tuple[PlannedPlacement, ...]
    removals: tuple[PlannedRemoval, ...]
    placed: int
    waiting: int
    evicted: int
    removed: int


async def what_if_applied(
    reader: GlobalReader, viewer: Viewer, manifests: Sequence[ManifestWorkload], admission: Admission
) -> ApplyOutcome:
    """Each workload as the global cell would assign it and the regions would place it, in order."""
    if len(manifests) > MANIFESTS_MAX:
        raise BadRequest(f"what if: too many workloads (limit {MANIFESTS_MAX}, found {len(manifests)})")
    view = Cache()
    for kind in GLOBAL_KINDS:
        for item in reader.view.list(BY_NAME[kind].type):
            view.put(item)
    refused: list[RejectedChange] = []
    changes: list[WorkloadChange] = []
    placings: list[PlannedPlacement] = []
    assignments: list[Assignment] = []
    ended: list[Assignment] = []
    grants: dict[Key, Grant] = {}
    for manifest in manifests:
        why = await admission(manifest.document)
        if why:
            refused.append(RejectedChange(str(manifest.workload.key), why))
            continue
        applied = apply_to_view(view, manifest.workload, reader.now_s)
        changes.append(applied.change)
        assignments += applied.assignments
        ended += applied.ended
        grants |= {grant.key: grant for grant in applied.grants}
        if applied.refused is not None:
            placings.append(applied.refused)
    removals: list[PlannedRemoval] = []
    for region in dict.fromkeys(a.spec.region for a in (*assignments, *ended)):
        outcome = await _in_region(reader, viewer, region, assignments, ended, grants=tuple(grants.values()))
        placings += outcome.placings
        removals += outcome.removals
    return ApplyOutcome(
        refused=tuple(refused),
        changes=tuple(
            ChangeRow(workload=c.workload, new=c.new, fields=tuple(map(str, c.fields))) for c in changes if c
        ),
        placings=tuple(sorted(placings, key=lambda p: bool(p.node))[:PLACINGS_MAX]),
        removals=tuple(removals[:PLACINGS_MAX]),
        placed=sum(bool(p.node) for p in placings),
        waiting=sum(not p.node for p in placings),
        evicted=sum(len(p.victims) for p in placings),
        removed=len(removals),
    )


async def _in_region(
    reader: GlobalReader,
    viewer: Viewer,
    region: str,
    assignments: Sequence[Assignment],
    ended: Sequence[Assignment],
    *,
    grants: Sequence[Grant],
) -> RegionOutcome:
    wanted = [a for a in assignments if a.spec.region == region]
    body = _encoder.encode(wanted).decode()
    if len(body) > ASSIGNMENTS_BYTES_MAX:
        raise BadRequest(
            f"what if: too large for one question (limit {ASSIGNMENTS_BYTES_MAX}, found {len(body)} bytes)"
        )
    gone = _encoder.encode([(a.key.namespace, a.key.name) for a in ended if a.spec.region == region]).decode()
    limits = _encoder.encode([grant for grant in grants if grant.spec.region == region]).decode()
    answer = await reader.hub.ask(region, "what-if-apply", viewer, assignments=body, ended=gone, grants=limits)
    outcome = part(answer, RegionOutcome)
    if outcome is None or answer.problem:
        return RegionOutcome(placings=tuple(unreachable_placement(a) for a in wanted))
    return outcome
