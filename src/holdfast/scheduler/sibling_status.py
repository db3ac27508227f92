"""Serving counts of possible victims' workloads, from the informer cache.

An unknown replica counts as serving. A workload without known replicas has unknown counts.
"""

from __future__ import annotations

from holdfast.controllers.cache import Cache
from holdfast.model.replica import Replica
from holdfast.scheduling.eviction.preempted import SiblingCounts, charged_workload, sibling_measure


class CachedSiblingStatus:
    """Implements the planner's `SiblingStatusSource`. The cache maintains the counts, so reads are cheap."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def siblings(self, namespace: str, workload: str) -> SiblingCounts | None:
        totals = self._cache.total(Replica, namespace, sibling_measure)
        total = totals.get((workload, "staying"), 0)
        return SiblingCounts(total, totals.get((workload, "serving"), 0)) if total else None

    def counts_as_serving(self, claim: str) -> bool:
        namespace, _, name = claim.partition("/")
        replica = self._cache.get(Replica, name.rpartition(".")[0], namespace)
        if replica is None or replica.status.placement.binding != name:
            return True
        return bool(charged_workload(replica))
