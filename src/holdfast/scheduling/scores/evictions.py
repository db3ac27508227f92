"""For firm work, prefers nodes with the least reclaimable work, because that would be evicted next."""

from __future__ import annotations

import numpy as np

from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts
from holdfast.scheduling.snapshot.frozen import percent


def score(candidate: CandidateState) -> Counts:
    return candidate.cached_for_request("evictions", _score)


def _score(candidate: CandidateState) -> Counts:
    scratch = candidate.scratch
    snapshot = scratch.snapshot
    if candidate.requirements.reclaimable:
        return np.full(len(snapshot.static.has_node), 100, dtype=np.int64)
    # Resources of reclaimable work, including proposals of this plan.
    reclaimable = scratch.unreserved + snapshot.recovery_reserved - scratch.free_for_reclaimable
    share: Counts = percent(reclaimable, snapshot.capacity, snapshot.static.largest_capacity).max(axis=0)
    return np.clip(100 - share, 0, 100)
