"""Excludes nodes whose zone or region an active AvoidZone or AvoidRegion override forbids."""

from __future__ import annotations

from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    if not scratch.avoidances(requirements):
        return []
    zones = scratch.snapshot.static.zone
    return [
        (
            Reason.NODE_EXCLUDED_BY_OVERRIDE,
            zones.where(lambda zone: scratch.avoidance_of(requirements, zone) is not None),
        )
    ]
