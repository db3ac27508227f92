"""Requires free resources, by the capacity rule (S2)."""

from __future__ import annotations

import numpy as np

from holdfast.model.quantity import CPU, MEMORY, STORAGE
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Counts

_REASONS = {CPU: Reason.INSUFFICIENT_CPU, MEMORY: Reason.INSUFFICIENT_MEMORY, STORAGE: Reason.INSUFFICIENT_STORAGE}

REASONS = frozenset({*_REASONS.values(), Reason.INSUFFICIENT_RESOURCE})
"""Refusals of this filter."""


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    refusals: list[Refusal] = []
    for name, amount in requirements.amounts.items():
        free = free_of(scratch, requirements, name)
        refusals.append((reason_for(name), free < amount))
    return refusals


def reason_for(resource: str) -> Reason:
    return _REASONS.get(resource, Reason.INSUFFICIENT_RESOURCE)


def free_of(scratch: Scratch, requirements: ReplicaRequirements, resource: str) -> Counts:
    """Free amount of a resource per slot for work of this class; zero if no node offers the resource."""
    row = scratch.snapshot.resources.get(resource)
    if row is None:
        return np.zeros(scratch.free_for_reclaimable.shape[1], dtype=np.int64)
    free: Counts = (
        scratch.free_for_reclaimable
        if requirements.reclaimable or requirements.uses_recovery_slots
        else scratch.free_for_firm
    )[row]
    return free
