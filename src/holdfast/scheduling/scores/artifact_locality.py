"""Prefers nodes that cache the template's artifacts: the score is the percentage of artifacts present."""

from __future__ import annotations

import numpy as np

from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts


def score(candidate: CandidateState) -> Counts:
    return candidate.cached_for_request("artifact locality", _score)


def _score(candidate: CandidateState) -> Counts:
    static = candidate.scratch.snapshot.static
    artifacts_needed = [artifact.digest or artifact.source for artifact in candidate.requirements.template.artifacts]
    if not artifacts_needed:
        return np.zeros(len(static.has_node), dtype=np.int64)
    return static.cached_artifacts.numbers(
        lambda there: 100 * sum(name in there for name in artifacts_needed) // len(artifacts_needed)
    )
