"""Whether the node has the GPUs: enough whole ones, or one with enough left to share, of a wanted model (S2)."""

from __future__ import annotations

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.model.reasons import Reason


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    if not ask.gpu_milli:
        return []
    usable = scratch.gpu_usable(ask).sum(axis=0)
    return [(Reason.INSUFFICIENT_DEVICES, usable < max(ask.whole_gpus, 1))]
