"""Requires free GPUs of a requested model: enough whole ones, or one with a large enough free share (S2)."""

from __future__ import annotations

from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    if not requirements.gpu_milli:
        return []
    usable = scratch.gpu_usable(requirements).sum(axis=0)
    return [(Reason.INSUFFICIENT_DEVICES, usable < max(requirements.whole_gpus, 1))]
