"""A token bucket that bounds the retries a client adds to its load.

First attempts are free. If the server fails for all callers, the budget is soon empty, and callers see the fault at
once instead of multiplying the load.
"""

from __future__ import annotations

from holdfast.foundation.ports import Clock

# Retries per second that a client may make. Beyond that it fails at once, so that retries do not add to an overload.
RETRY_BUDGET_PER_S = 10.0
# Burst of the retry budget.
RETRY_BUDGET_BURST = 50


class RetryBudget:
    def __init__(self, clock: Clock, *, per_s: float = RETRY_BUDGET_PER_S, burst: float = RETRY_BUDGET_BURST) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at = clock.monotonic()

    def take(self) -> bool:
        """Takes a token; returns whether one was left, so that the retry may be made."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled_at) * self._per_s)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
