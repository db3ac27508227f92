"""The progress of a rollout in each region, as `holdfast rollout status` shows it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.assignment import Assignment, counts_desired_revision
from holdfast.model.newest_template import target_revision, unserved_template
from holdfast.model.workload import RolloutBlock, Workload


class RegionRollout(msgspec.Struct, frozen=True, rename="camel"):
    """One Assignment. `updated_serving` counts replicas of the newest template, 0 before the region has it."""

    region: str
    revision: str
    wanted: int
    bound: int
    started: int
    ready: int
    serving: int
    updated_serving: int
    waiting_for: str


class RolloutProgress(msgspec.Struct, frozen=True, rename="camel"):
    """`phase` is empty while the newest template has no rollout: `message` then says why, and `reason` names it."""

    workload: str
    revision: str
    phase: str
    reason: str
    message: str
    next: str
    last_good: str
    regions: tuple[RegionRollout, ...]


def rollout_progress(workload: Workload, assignments: Sequence[Assignment]) -> RolloutProgress:
    block, target = workload.status.rollout or RolloutBlock(), target_revision(workload)
    unserved, started = unserved_template(workload), block.revision == target
    waits = unserved.reason if unserved is not None and not started else ""
    regions = [_region(a, target, waits) for a in sorted(assignments, key=lambda a: (a.spec.region, a.spec.purpose))]
    return RolloutProgress(
        workload=str(workload.key),
        revision=target,
        phase=block.phase if started else "",
        reason=unserved.reason if unserved is not None else "",
        message=unserved.message if unserved is not None else block.message,
        next=unserved.next_step if unserved is not None else "",
        last_good=block.last_good_revision,
        regions=tuple(regions),
    )


def _region(item: Assignment, target: str, waits: str) -> RegionRollout:
    spec, status = item.spec, item.status
    counted = spec.revision == target and (not status.revision or counts_desired_revision(item))
    found = (p.reason for p in (*status.pending, *status.failing))
    return RegionRollout(
        region=spec.region,
        revision=spec.revision,
        wanted=spec.replicas,
        bound=status.bound,
        started=status.started,
        ready=status.ready,
        serving=status.serving,
        updated_serving=status.updated_serving if counted else 0,
        waiting_for=next(found, waits),
    )
