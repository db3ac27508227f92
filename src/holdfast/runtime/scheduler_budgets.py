"""What a scheduler may spend: evictions per tenant and minute, and records of tries in vain per second.

Kept in memory: a scheduler that starts anew begins with full budgets, which are bounds on load, not promises.
"""

from __future__ import annotations

from holdfast.model import limits

_WINDOW_S = 60.0


class EvictionBudget:
    """Counts the victims each tenant caused in the last minute."""

    def __init__(self) -> None:
        self._caused: dict[str, list[tuple[float, int]]] = {}
        self._now = 0.0

    def left(self, tenant: str, per_minute: int, now: float) -> int:
        self._now = now
        recent = [(at, count) for at, count in self._caused.get(tenant, ()) if now - at < _WINDOW_S]
        if recent:
            self._caused[tenant] = recent
        else:
            self._caused.pop(tenant, None)
        return max(0, per_minute - sum(count for _, count in recent))

    def add(self, tenant: str, victims: int) -> None:
        """Counts victims as of the last time that was asked about."""
        if victims:
            self._caused.setdefault(tenant, []).append((self._now, victims))


class RecordBudget:
    """A bucket that fills at a steady rate."""

    def __init__(self) -> None:
        self._left = float(limits.UNPLACED_DECISIONS_BURST)
        self._at = 0.0

    def spend(self, now: float) -> bool:
        gained = max(0.0, now - self._at) * limits.UNPLACED_DECISIONS_PER_S
        self._left = min(float(limits.UNPLACED_DECISIONS_BURST), self._left + gained)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
