"""Retry delays: exponential, jittered, bounded. Randomness comes from the ports."""

from __future__ import annotations

import random

from holdfast.model import limits

_MAX_DOUBLINGS = 32


def delay_s(
    failures: int,
    chance: random.Random,
    *,
    first_s: float = limits.BACKOFF_FIRST_S,
    max_s: float = limits.BACKOFF_MAX_S,
) -> float:
    """Delay after this many consecutive failures: 50 to 100 % of first_s * 2^(failures - 1), at most max_s."""
    whole = min(max_s, first_s * 2.0 ** min(max(failures, 1) - 1, _MAX_DOUBLINGS))
    return whole * (0.5 + 0.5 * chance.random())


def jittered_s(period_s: float, chance: random.Random) -> float:
    """The period with 25 % jitter either way, so that processes do not act in step."""
    return period_s * (0.75 + 0.5 * chance.random())


class Backoff:
    """Counts consecutive failures of one operation."""

    def __init__(
        self, chance: random.Random, *, first_s: float = limits.BACKOFF_FIRST_S, max_s: float = limits.BACKOFF_MAX_S
    ) -> None:
        self._chance = chance
        self._first_s = first_s
        self._max_s = max_s
        self.failures = 0

    def next_s(self) -> float:
        """Counts one more failure and returns the delay."""
        self.failures += 1
        return delay_s(self.failures, self._chance, first_s=self._first_s, max_s=self._max_s)

    def reset(self) -> None:
        self.failures = 0
