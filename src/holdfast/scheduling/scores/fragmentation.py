"""Prefers nodes where the remaining resources stay balanced and whole GPUs stay whole.

The score is halved for work without GPUs on nodes with free GPUs, and for a GPU share that would split a whole GPU.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.quantity import WHOLE_GPU_MILLI
from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts


def score(candidate: CandidateState) -> Counts:
    used = candidate.used_percent
    unevenness: Counts = used.max(axis=0) - used.min(axis=0)
    even = np.clip(100 - unevenness, 0, 100)
    free = candidate.scratch.gpu_free
    if not free.size or candidate.requirements.whole_gpus:
        return even
    if candidate.requirements.gpu_milli:
        begun = candidate.scratch.gpu_usable(candidate.requirements) & (free < WHOLE_GPU_MILLI)
        divisor: Counts = np.where(begun.any(axis=0), 1, 2)
    else:
        divisor = np.where((free > 0).any(axis=0), 2, 1)
    return even // candidate.select(divisor)
