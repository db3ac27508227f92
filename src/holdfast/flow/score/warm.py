"""Prefers nodes that cache the template's artifacts: the score is the percentage of artifacts present."""

from __future__ import annotations

import numpy as np

from holdfast.flow.score.standing import Standing
from holdfast.flow.snapshot import Counts


def score(at: Standing) -> Counts:
    return at.once("warm", _score)


def _score(at: Standing) -> Counts:
    static = at.scratch.snapshot.static
    wanted = [artifact.digest or artifact.source for artifact in at.ask.template.artifacts]
    if not wanted:
        return np.zeros(len(static.live), dtype=np.int64)
    return static.warm.numbers(lambda there: 100 * sum(name in there for name in wanted) // len(wanted))
