"""How possible victims stand, as this process has seen it: who of a workload serves. Reads the cache, and nothing else.

A replica that is not known counts as serving, and a workload of which none is known as unknown.
"""

from __future__ import annotations

from holdfast.flow.retreat.preempt import Mates, away_and_here, counts_against
from holdfast.model.replica import Replica
from holdfast.runtime.cache import Cache


class CachedStanding:
    """Implements `flow.plan.sparing.Standing`. The counts are kept by the cache: reading them costs nothing."""

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
