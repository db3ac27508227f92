"""Serving counts of possible victims' workloads, from the informer cache.

An unknown replica counts as serving. A workload without known replicas has unknown counts.
"""

from __future__ import annotations

from holdfast.controllers.cache import Cache
from holdfast.model.replica import Replica
from holdfast.scheduling.eviction.preempted import SiblingCounts, charged_workload, sibling_measure


class CachedSiblingStatus:
    """Implements `Standing` of the planner. The cache maintains the counts, so reads are cheap."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def siblings(self, namespace: str, workload: str) -> SiblingCounts | None:
        kept = self._cache.total(Replica, namespace, sibling_measure)
        staying = kept.get((workload, "staying"), 0)
        return SiblingCounts(staying, kept.get((workload, "serving"), 0)) if staying else None

    def counts_as_serving(self, claim: str) -> bool:
        namespace, _, name = claim.partition("/")
        replica = self._cache.get(Replica, name.rpartition(".")[0], namespace)
        if replica is None or replica.status.placement.binding != name:
            return True
        return bool(charged_workload(replica))
