"""Soft node preferences. Each score is an integer from 0 to 100; the policy weights them, and the sum decides."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.model.decision import ScoreComponent
from holdfast.model.placement_rules import has_preferences
from holdfast.model.scheduler_policy import PolicyRules, ScoreName, WeightedScore
from holdfast.scheduling.filters.spread import Skew
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scores import (
    artifact_locality,
    balance,
    cost,
    evictions,
    expressions,
    fragmentation,
    gpu_shape,
    image_locality,
    locality,
    packing,
    spread,
    taints,
)
from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Counts

__all__ = ["NodeScorer", "NodeScores"]

ScoreFunction = Callable[[CandidateState], Counts]

SCORES: dict[ScoreName, ScoreFunction] = {
    ScoreName.LOCALITY: locality.score,
    ScoreName.COST: cost.score,
    ScoreName.FRAGMENTATION: fragmentation.score,
    ScoreName.GPU_SHAPE: gpu_shape.score,
    ScoreName.ARTIFACT_LOCALITY: artifact_locality.score,
    ScoreName.BALANCE: balance.score,
    ScoreName.PACKING: packing.score,
    ScoreName.SPREAD: spread.score,
    ScoreName.TAINTS: taints.score,
    ScoreName.EVICTIONS: evictions.score,
    ScoreName.IMAGE_LOCALITY: image_locality.score,
}


class NodeScores(msgspec.Struct, frozen=True):
    """Per candidate: the weighted sum without the zone's points, and the single values."""

    total: Counts
    values: tuple[Counts, ...]


class NodeScorer:
    """Scores candidates for one request. Scores with weight zero are skipped, and Locality without preferences."""

    def __init__(self, scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, skew: Skew) -> None:
        self._scratch = scratch
        self._requirements = requirements
        self._skew = skew
        self._known: dict[str, Counts] = {}
        prefers = has_preferences(requirements.placement)
        self._weighted: tuple[WeightedScore, ...] = tuple(
            s for s in rules.scores if s.weight and (prefers or s.name is not ScoreName.LOCALITY)
        )
        self._expressions = tuple(s for s in rules.score_expressions if s.weight)
        self._spread_weight = next((s.weight for s in self._weighted if s.name is ScoreName.SPREAD), 0)

    def score(self, slots: NDArray[np.intp] | None = None, level: Counts | int = 0) -> NodeScores:
        candidate = CandidateState(self._scratch, self._requirements, self._skew, self._known, slots=slots, level=level)
        total: Counts = np.zeros(candidate.size, dtype=np.int64)
        values: list[Counts] = []
        for weighted in self._weighted:
            value = SCORES[weighted.name](candidate)
            values.append(value)
            total += value * weighted.weight
        for expression in self._expressions:
            value = expressions.score(candidate, expression.expression)
            values.append(value)
            total += value * expression.weight
        return NodeScores(total, tuple(values))

    def zone_points(self, zone: int) -> int:
        """Points that the zone adds to the weighted sum of each of its nodes at present."""
        if not self._spread_weight:
            return 0
        return self._spread_weight * spread.zone_points(self._skew.above_fewest(zone))

    def score_parts(self, scored: NodeScores, index: int, zone: int) -> tuple[ScoreComponent, ...]:
        """The values behind one candidate's sum, including the zone's points."""
        parts = []
        for weighted, values in zip(self._weighted, scored.values, strict=False):
            value = int(values[index])
            if weighted.name is ScoreName.SPREAD:
                value += spread.zone_points(self._skew.above_fewest(zone))
            parts.append(ScoreComponent(name=weighted.name.value, value=value, weight=weighted.weight))
        for expression, values in zip(self._expressions, scored.values[len(self._weighted) :], strict=True):
            parts.append(ScoreComponent(name=expression.name, value=int(values[index]), weight=expression.weight))
        return tuple(parts)
