"""Replicas with persistent volumes: their ordinals are 0 to replicas - 1, and each is replaced in place. Pure.

A volume belongs to the name of its replica. So a new revision of a replica has the same ordinal as the old one, which
must be gone first: `maxSurge` is not used, and at least one replica at a time may be unavailable.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.assignment import Assignment
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.replica import Replica


def stable_changes(
    assignment: Assignment, replicas: Sequence[Replica], live: Sequence[Replica]
) -> tuple[int, list[Replica]]:
    """Number of replicas to create, and the replicas to remove. `replicas` includes those that are being deleted."""
    spec = assignment.spec
    missing = free_ordinals(assignment, replicas)
    unwanted = [r for r in live if r.spec.ordinal >= spec.replicas]
    old = [r for r in live if r.spec.ordinal < spec.replicas and r.spec.revision != spec.revision]
    if spec.rollout.paused:
        return len(missing), unwanted
    serving = sum(stage(r) is Stage.SERVING for r in live if r.spec.ordinal < spec.replicas)
    spare = serving - (spec.replicas - max(1, spec.rollout.max_unavailable))
    idle = [r for r in old if stage(r) is not Stage.SERVING]
    busy = sorted((r for r in old if stage(r) is Stage.SERVING), key=lambda r: -r.spec.ordinal)
    return len(missing), [*unwanted, *idle, *busy[: max(0, spare)]]


def free_ordinals(assignment: Assignment, replicas: Sequence[Replica]) -> list[int]:
    """Ordinals without a replica, not even one that is being deleted."""
    taken = {r.spec.ordinal for r in replicas}
    return [ordinal for ordinal in range(assignment.spec.replicas) if ordinal not in taken]
