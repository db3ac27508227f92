"""How fast recovery replicas may be started in each region: a bounded rate with a short burst, kept in durable state.

A lane remembers only the moment its backlog of starts would be worked off; so a restart neither forgets what was just
started nor lets a storm through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.model import limits
from holdfast.model.recovery import Lane
from holdfast.model.times import micro_text, parse_time


class Pace:
    def __init__(self, next_s: dict[str, float], rates: Mapping[str, float], now: float) -> None:
        self._next_s = next_s
        self._rates = rates
        self._now = now
        self._full: set[str] = set()

    @classmethod
    def of(cls, lanes: Sequence[Lane], rates: Mapping[str, float], now: float) -> Pace:
        return cls({lane.region: parse_time(lane.next_at) for lane in lanes}, rates, now)

    def may_start(self, region: str, count: int) -> bool:
        """Whether it is this region's turn. Once one had to wait, those behind it wait too: order is by rank."""
        ahead_s = self._next_s.get(region, 0.0) - self._now
        if region in self._full or ahead_s >= limits.RECOVERY_BURST_S:
            self._full.add(region)
            return False
        return True

    def started(self, region: str, count: int) -> None:
        rate = self._rates.get(region, limits.RECOVERY_STARTS_PER_S)
        self._next_s[region] = max(self._now, self._next_s.get(region, 0.0)) + count / rate

    def lanes(self) -> tuple[Lane, ...]:
        """Only those that still hold someone up."""
        return tuple(
            Lane(region=region, next_at=micro_text(at_s))
            for region, at_s in sorted(self._next_s.items())
            if at_s > self._now
        )
