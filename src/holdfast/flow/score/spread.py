"""Prefers zones, and then nodes, with the fewest replicas of the same workload.

The zone's points (0 to 75) fall with its distance to the emptiest zone, the node's points (0 to 25) with its own count.
They are added, so a placement shifts all scores of a zone by the same amount. The planner's heap per zone needs this.
"""

from __future__ import annotations

from holdfast.flow.score.standing import Standing
from holdfast.flow.snapshot import Counts

ZONE_PART = 75
NODE_PART = 25


def score(at: Standing) -> Counts:
    """The node's points alone."""
    return at.by_own(lambda own: NODE_PART // (1 + own))


def zone_points(above_fewest: int) -> int:
    return ZONE_PART // (1 + above_fewest)
