"""Prefers nodes that are already full, so that whole nodes stay empty."""

from __future__ import annotations

import numpy as np

from holdfast.flow.score.standing import Standing
from holdfast.flow.snapshot import Counts


def score(at: Standing) -> Counts:
    used = at.used_percent
    points: Counts = used.sum(axis=0) // len(used)
    return np.minimum(np.maximum(points, 0), 100)
