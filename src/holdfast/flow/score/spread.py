"""Prefers zones, and then nodes, with the fewest replicas of the same workload.

The zone's part (0 to 75) falls with the distance to the emptiest zone, the node's (0 to 25) with its own count. The
parts are added, never mixed: placing a replica then moves a whole zone's scores by one amount and nothing else, which
is what lets the planner keep one heap per zone.
"""

from __future__ import annotations

from holdfast.flow.score.standing import Standing
from holdfast.flow.snapshot import Counts

ZONE_PART = 75
NODE_PART = 25


def score(at: Standing) -> Counts:
    """The node's part alone."""
    return at.by_own(lambda own: NODE_PART // (1 + own))


def zone_points(above_fewest: int) -> int:
    return ZONE_PART // (1 + above_fewest)
