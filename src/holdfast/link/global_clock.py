"""Estimate of the global cell's clock in a region, without trusting the region's wall clock.

Reports are numbered, and region-health records on the global clock when it saw which report. A report is sent before it
is seen, so a remaining time counted from the sending never exceeds the true one. Only the monotonic clock of the region
is used.
"""

from __future__ import annotations

from holdfast.model import limits
from holdfast.model.region import Region
from holdfast.model.times import parse_time

# Tolerated difference between a stored expiry and the monotonic clock. Beyond that the stored expiry is corrected.
EXPIRY_CLOCK_ERROR_MAX_S = 1.0
# Sent reports remembered until the global cell confirms when they arrived. The oldest is forgotten.
UNCONFIRMED_REPORTS_MAX = 64


class GlobalClock:
    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._sample: tuple[float, float] | None = None

    def forget(self) -> None:
        """Forgets all samples, which belong to another process or incarnation."""
        self._sent.clear()
        self._sample = None

    def record_sent(self, sequence: int, mono_s: float) -> None:
        """Records the time of sending a report."""
        self._sent[sequence] = mono_s
        while len(self._sent) > UNCONFIRMED_REPORTS_MAX:
            del self._sent[next(iter(self._sent))]

    def observe(self, own: Region | None) -> bool:
        """Takes a new sample from the Region status. Returns whether there was one."""
        if own is None or not own.status.health.last_contact_at:
            return False
        sent_s = self._sent.get(own.status.health.last_sequence)
        if sent_s is None or (self._sample is not None and self._sample[0] >= sent_s):
            return False
        self._sample = sent_s, parse_time(own.status.health.last_contact_at)
        return True

    def remaining_s(self, until_s: float, mono_s: float) -> float | None:
        """Lower bound of the time left until a time of the global clock; None without a sample."""
        if self._sample is None:
            return None
        sent_s, seen_s = self._sample
        return until_s - seen_s - (mono_s - sent_s) * (1 + limits.CLOCK_DRIFT)
