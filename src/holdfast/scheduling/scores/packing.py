"""Prefers the most used nodes, so that other nodes stay empty (bin packing)."""

from __future__ import annotations

import numpy as np

from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts


def score(candidate: CandidateState) -> Counts:
    used = candidate.used_percent
    points: Counts = used.sum(axis=0) // len(used)
    return np.minimum(np.maximum(points, 0), 100)
