"""Rate limiter of recovery starts per target region: a rate with a short burst, stored in the Recovery status.

Each region stores only the time at which its next start is allowed. A restart therefore neither forgets recent starts
nor allows a burst of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.model.recovery import StartRateLimit
from holdfast.model.times import micro_text, parse_time

# Recovery replicas started per second in a region without a RecoveryBudget. Budgets set `startsPerSecond`.
RECOVERY_STARTS_PER_S = 20.0
# Burst of recovery starts, in seconds of the rate. Further starts wait for their turn.
RECOVERY_START_BURST_S = 1.0


class StartRateLimiter:
    def __init__(self, next_s: dict[str, float], rates: Mapping[str, float], now: float) -> None:
        self._next_s = next_s
        self._rates = rates
        self._now = now
        self._full: set[str] = set()

    @classmethod
    def from_status(cls, lanes: Sequence[StartRateLimit], rates: Mapping[str, float], now: float) -> StartRateLimiter:
        return cls({lane.region: parse_time(lane.next_at) for lane in lanes}, rates, now)

    def can_start(self, region: str, count: int) -> bool:
        """Whether a start is allowed now. After one workload had to wait, later ones wait too: order is by priority."""
        ahead_s = self._next_s.get(region, 0.0) - self._now
        if region in self._full or ahead_s >= RECOVERY_START_BURST_S:
            self._full.add(region)
            return False
        return True

    def record_start(self, region: str, count: int) -> None:
        rate = self._rates.get(region, RECOVERY_STARTS_PER_S)
        self._next_s[region] = max(self._now, self._next_s.get(region, 0.0)) + count / rate

    def rate_limits(self) -> tuple[StartRateLimit, ...]:
        """Limits that still delay a start."""
        return tuple(
            StartRateLimit(region=region, next_at=micro_text(at_s))
            for region, at_s in sorted(self._next_s.items())
            if at_s > self._now
        )
