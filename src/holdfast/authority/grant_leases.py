"""Age of each grant lease, measured on the monotonic clock.

A GrantCopy stores its renewal in wall-clock time. The wall clock is read once, when the renewal is first observed. From
then on only monotonic time counts, so no wall-clock step lengthens a lease or ends it permanently.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Key
from holdfast.model.times import parse_time


class GrantLeases:
    def __init__(self) -> None:
        self._renewals: dict[Key, tuple[str, float]] = {}
        """By GrantCopy: its renewal time as text, and the same time on the monotonic clock."""

    def observe(self, copies: Iterable[GrantCopy], now: float, monotonic_s: float) -> None:
        """Records renewals. `now` is the wall clock they were written by. Copies not listed are forgotten."""
        observed: dict[Key, tuple[str, float]] = {}
        for copy in copies:
            key, renewed_at = copy.key, copy.spec.last_contact_at
            recorded = self._renewals.get(key)
            if recorded is not None and recorded[0] == renewed_at:
                observed[key] = recorded
            elif renewed_at:
                observed[key] = (renewed_at, monotonic_s - max(0.0, now - parse_time(renewed_at)))
        self._renewals = observed

    def age_s(self, copy: GrantCopy, now: float, monotonic_s: float) -> float:
        """Time since the renewal; by the wall clock if the renewal was not observed yet."""
        renewed_at, renewed_s = self._renewals.get(copy.key, ("", 0.0))
        if copy.spec.last_contact_at and renewed_at == copy.spec.last_contact_at:
            return monotonic_s - renewed_s
        return now - parse_time(copy.spec.last_contact_at)
