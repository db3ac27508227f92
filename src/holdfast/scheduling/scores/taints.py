"""Prefers nodes with few untolerated PreferNoSchedule taints: each costs 25 points."""

from __future__ import annotations

from holdfast.model.placement_rules import Taint, TaintEffect, tolerates
from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts

_EACH = 25


def score(candidate: CandidateState) -> Counts:
    tolerations = candidate.requirements.placement.tolerations

    def points(taints: tuple[Taint, ...]) -> int:
        untolerated = sum(t.effect is TaintEffect.PREFER_NO_SCHEDULE and not tolerates(tolerations, t) for t in taints)
        return max(0, 100 - _EACH * untolerated)

    return candidate.cached_while_nodes_unchanged(
        "taints score", tolerations, lambda: candidate.scratch.snapshot.static.taints.numbers(points)
    )
