"""What the global cell's clock says, as far as a region can know it without trusting its own wall clock.

The region's reports are numbered; `region-health` writes down, by the global cell's clock, when it heard which. A
report was sent before it was heard, so at the sending the global clock was not yet there: a time left that is counted
from the sending is never more than what is truly left. No reading of this region's wall clock goes into it.
"""

from __future__ import annotations

from holdfast.model import limits
from holdfast.model.region import Region
from holdfast.model.times import parse_time


class GlobalClock:
    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._sample: tuple[float, float] | None = None

    def forget(self) -> None:
        """Nothing is known any more: what was heard belongs to another process, or to another life of the cell."""
        self._sent.clear()
        self._sample = None

    def record_sent(self, sequence: int, mono_s: float) -> None:
        """A report of this number is about to be sent."""
        self._sent[sequence] = mono_s
        while len(self._sent) > limits.UNCONFIRMED_REPORTS_MAX:
            del self._sent[next(iter(self._sent))]

    def observe(self, own: Region | None) -> bool:
        """Takes in when the global cell heard this region; whether that said something new."""
        if own is None or not own.status.health.last_contact_at:
            return False
        sent_s = self._sent.get(own.status.health.last_sequence)
        if sent_s is None or (self._sample is not None and self._sample[0] >= sent_s):
            return False
        self._sample = sent_s, parse_time(own.status.health.last_contact_at)
        return True

    def remaining_s(self, until_s: float, mono_s: float) -> float | None:
        """The least that is left until a moment of the global clock; None while nothing is known of that clock."""
        if self._sample is None:
            return None
        sent_s, heard_s = self._sample
        return until_s - heard_s - (mono_s - sent_s) * (1 + limits.CLOCK_DRIFT)
