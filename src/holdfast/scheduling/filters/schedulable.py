"""Requires a schedulable node: live lease, not cordoned, draining, fenced, reconciling, quarantined or terminating."""

from __future__ import annotations

from holdfast.scheduling.filters.refusal import Refusal, reason_named
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    refusal = scratch.snapshot.static.unschedulable_reason
    return [(reason_named(why), refusal.ids == index) for index, why in enumerate(refusal.values) if why]
