"""Prefers nodes with few untolerated PreferNoSchedule taints: each costs 25 points."""

from __future__ import annotations

from holdfast.flow.score.standing import Standing
from holdfast.flow.snapshot import Counts
from holdfast.model.placement_rules import Taint, TaintEffect, tolerates

_EACH = 25


def score(at: Standing) -> Counts:
    tolerations = at.ask.placement.tolerations

    def points(taints: tuple[Taint, ...]) -> int:
        disliked = sum(t.effect is TaintEffect.PREFER_NO_SCHEDULE and not tolerates(tolerations, t) for t in taints)
        return max(0, 100 - _EACH * disliked)

    return at.kept("taints score", tolerations, lambda: at.scratch.snapshot.static.taints.numbers(points))
