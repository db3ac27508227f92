"""Prefers nodes whose most used resource has the most left, so that load is balanced."""

from __future__ import annotations

import numpy as np

from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts


def score(candidate: CandidateState) -> Counts:
    points: Counts = 100 - candidate.most_used_percent
    return np.minimum(np.maximum(points, 0), 100)
