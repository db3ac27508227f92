"""Prefers zones, and then nodes, with the fewest replicas of the same workload.

The zone's points (0 to 75) fall with its distance to the emptiest zone, the node's points (0 to 25) with its own count.
They are added, so a placement shifts all scores of a zone by the same amount. The planner's heap per zone needs this.
"""

from __future__ import annotations

from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts

ZONE_POINTS_MAX = 75
NODE_POINTS_MAX = 25


def score(candidate: CandidateState) -> Counts:
    """The node's points alone."""
    return candidate.by_sibling_count(lambda own: NODE_POINTS_MAX // (1 + own))


def zone_points(above_fewest: int) -> int:
    return ZONE_POINTS_MAX // (1 + above_fewest)
