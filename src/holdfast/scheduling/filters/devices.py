"""Whether the node has the GPUs: enough whole ones, or one with enough left to share, of a wanted model (S2)."""

from __future__ import annotations

from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, ask: ReplicaRequirements) -> list[Refusal]:
    if not ask.gpu_milli:
        return []
    usable = scratch.gpu_usable(ask).sum(axis=0)
    return [(Reason.INSUFFICIENT_DEVICES, usable < max(ask.whole_gpus, 1))]
