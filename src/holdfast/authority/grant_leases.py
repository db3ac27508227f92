"""How long ago the global cell was last heard for each grant, counted on the clock that only passes.

A limit says by the region's wall clock when it was heard and until when it may be spent. Clocks are put forward and
back; so the wall clock is asked once, when a renewal is first seen, and from then on only time that passed counts. What
always holds: no step of a clock after that makes a lease longer, and none ends one for good: the next renewal counts
from where the clock is by then.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Key
from holdfast.model.times import parse_time


class GrantLeases:
    def __init__(self) -> None:
        self._heard: dict[Key, tuple[str, float]] = {}
        """By copy: when it says it was heard, and when that was on the monotonic clock."""

    def observe(self, copies: Iterable[GrantCopy], now: float, monotonic_s: float) -> None:
        """Takes note of renewals. `now` is the clock they were written by; what is not among the copies is gone."""
        seen: dict[Key, tuple[str, float]] = {}
        for copy in copies:
            key, said = copy.key, copy.spec.last_contact_at
            known = self._heard.get(key)
            if known is not None and known[0] == said:
                seen[key] = known
            elif said:
                seen[key] = (said, monotonic_s - max(0.0, now - parse_time(said)))
        self._heard = seen

    def age_s(self, copy: GrantCopy, now: float, monotonic_s: float) -> float:
        """How long ago it was heard; by the wall clock where the renewal has not been observed yet."""
        said, heard_s = self._heard.get(copy.key, ("", 0.0))
        if copy.spec.last_contact_at and said == copy.spec.last_contact_at:
            return monotonic_s - heard_s
        return now - parse_time(copy.spec.last_contact_at)
