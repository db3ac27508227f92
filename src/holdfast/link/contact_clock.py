"""When the last answered report was sent, by the region's wall clock, and since when that clock was not stepped back.

Grant leases store that time. A time stored before a step is of unknown age: it may look newer than it is.
"""

from __future__ import annotations

from holdfast.link.global_clock import EXPIRY_CLOCK_ERROR_MAX_S


class ContactClock:
    def __init__(self) -> None:
        self.last_contact_s = 0.0
        """Wall clock time at which the last answered report was sent; 0 before the first."""
        self.steady_since_s = 0.0
        """Contact times before this were stored before the clock was stepped back, or by another process."""
        self._ahead_s = 0.0
        """The most by which the wall clock was ahead of the monotonic clock at a contact since then."""

    def observe(self, sent_s: float, sent_mono_s: float) -> bool:
        """Records an answered report by the times of its sending. Returns whether earlier contacts are of unknown age:
        this is the first one, or the wall clock was stepped back."""
        ahead_s = sent_s - sent_mono_s
        unsteady = not self.last_contact_s or ahead_s < self._ahead_s - EXPIRY_CLOCK_ERROR_MAX_S
        if unsteady:
            self.steady_since_s = sent_s
        self._ahead_s = ahead_s if unsteady else max(ahead_s, self._ahead_s)
        self.last_contact_s = sent_s
        return unsteady
