"""Serving counts of possible victims' workloads, from the informer cache.

An unknown replica counts as serving. A workload without known replicas has unknown counts.
"""

from __future__ import annotations

from holdfast.flow.retreat.preempt import Mates, away_and_here, counts_against
from holdfast.model.replica import Replica
from holdfast.runtime.cache import Cache


class CachedStanding:
    """Implements `Standing` of the planner. The cache maintains the counts, so reads are cheap."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def mates(self, namespace: str, workload: str) -> Mates | None:
        kept = self._cache.total(Replica, namespace, away_and_here)
        staying = kept.get((workload, "staying"), 0)
        return Mates(staying, kept.get((workload, "serving"), 0)) if staying else None

    def serves(self, claim: str) -> bool:
        namespace, _, name = claim.partition("/")
        replica = self._cache.get(Replica, name.rpartition(".")[0], namespace)
        if replica is None or replica.status.placement.binding != name:
            return True
        return bool(counts_against(replica))
