"""Rate limits of a scheduler: evictions per tenant and minute, and Decision records of failed attempts per second.

They are in memory: a restarted scheduler begins with full budgets. They bound load and guarantee nothing.
"""

from __future__ import annotations

# Decisions recorded per second for requests that could not be placed. Beyond that the attempt leaves no Decision.
UNPLACED_DECISIONS_PER_S = 20.0
# Burst of UNPLACED_DECISIONS_PER_S.
UNPLACED_DECISIONS_BURST = 100

_WINDOW_S = 60.0


class EvictionBudget:
    """Counts the preemption victims that each tenant caused in the last minute."""

    def __init__(self) -> None:
        self._caused: dict[str, list[tuple[float, int]]] = {}
        self._now = 0.0

    def remaining(self, tenant: str, per_minute: int, now: float) -> int:
        self._now = now
        recent = [(at, count) for at, count in self._caused.get(tenant, ()) if now - at < _WINDOW_S]
        if recent:
            self._caused[tenant] = recent
        else:
            self._caused.pop(tenant, None)
        return max(0, per_minute - sum(count for _, count in recent))

    def add(self, tenant: str, victims: int) -> None:
        """Counts victims at the time of the last `remaining` call."""
        if victims:
            self._caused.setdefault(tenant, []).append((self._now, victims))


class DecisionRecordBudget:
    """Token bucket for Decisions of failed attempts."""

    def __init__(self) -> None:
        self._left = float(UNPLACED_DECISIONS_BURST)
        self._at = 0.0

    def spend(self, now: float) -> bool:
        gained = max(0.0, now - self._at) * UNPLACED_DECISIONS_PER_S
        self._left = min(float(UNPLACED_DECISIONS_BURST), self._left + gained)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
