"""How long to wait before trying again: exponential, jittered, bounded. Chance comes from the ports."""

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
    """The pause after this many failures in a row: between half and all of first_s * 2^(failures - 1)."""
    whole = min(max_s, first_s * 2.0 ** min(max(failures, 1) - 1, _MAX_DOUBLINGS))
    return whole * (0.5 + 0.5 * chance.random())


def jittered_s(period_s: float, chance: random.Random) -> float:
    """A period spread by a quarter either way, so that many processes do not act at the same instant."""
    return period_s * (0.75 + 0.5 * chance.random())


class Backoff:
    """Counts failures of one thing in a row."""

    def __init__(
        self, chance: random.Random, *, first_s: float = limits.BACKOFF_FIRST_S, max_s: float = limits.BACKOFF_MAX_S
    ) -> None:
        self._chance = chance
        self._first_s = first_s
        self._max_s = max_s
        self.failures = 0

    def next_s(self) -> float:
        """Counts one more failure and says how long to wait."""
        self.failures += 1
        return delay_s(self.failures, self._chance, first_s=self._first_s, max_s=self._max_s)

    def reset(self) -> None:
        self.failures = 0
