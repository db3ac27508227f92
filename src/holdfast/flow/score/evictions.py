"""For firm work, prefers nodes with the least reclaimable work, because that would be evicted next."""

from __future__ import annotations

import numpy as np

from holdfast.flow.score.standing import Standing
from holdfast.flow.snapshot import Counts
from holdfast.flow.snapshot.frozen import percent


def score(at: Standing) -> Counts:
    return at.once("evictions", _score)


def _score(at: Standing) -> Counts:
    scratch = at.scratch
    snapshot = scratch.snapshot
    if at.ask.reclaimable:
        return np.full(len(snapshot.static.live), 100, dtype=np.int64)
    # Resources of reclaimable work, including proposals of this plan.
    reclaimable = scratch.firm_room + snapshot.held - scratch.room
    share: Counts = percent(reclaimable, snapshot.capacity, snapshot.static.largest).max(axis=0)
    return np.clip(100 - share, 0, 100)
