"""Since when the global cell, or a follower of it, has been hearing regions: one region's silence means nothing before.

A process that was stopped, restarted or cut off finds every region's last report old when it continues. That silence is
its own. Without this, all addresses of all workloads would leave the load balancers until each region reports again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.foundation.ports import Clock
from holdfast.model.endpoint import Endpoint
from holdfast.model.region import HealthState, Region
from holdfast.model.times import parse_time

SILENT_S = 10.0
"""Without a report of any region for this long, this process hears nobody. Regions report every 5 s or more often."""
CHECK_EVERY_S = 1.0


class RegionContact:
    """Uses the stored time of each region's last report, so every server of a cell reaches the same conclusion."""

    def __init__(self, regions: Callable[[], Iterable[Region]], clock: Clock) -> None:
        self._regions = regions
        self._clock = clock
        self._hearing_since = clock.now()
        self._checked_at = clock.monotonic()

    def check(self) -> None:
        """To be called when a region sends a request, before its report changes what is stored."""
        if self._clock.monotonic() - self._checked_at >= CHECK_EVERY_S:
            self._update()

    def has_expired(self, endpoint: Endpoint, region: Region | None) -> bool:
        """Whether the region is lost, or has been silent for the entry's TTL while others were heard."""
        if region is None:
            return False
        lost = region.status.health.state is HealthState.LOST
        return lost or self.silence_s(region) > endpoint.spec.ttl_seconds

    def silence_s(self, region: Region) -> float:
        """For how long this process heard regions, but not this one."""
        self._update()
        last_contact_at = region.status.health.last_contact_at
        if not last_contact_at:
            return 0.0
        return self._clock.now() - max(parse_time(last_contact_at), self._hearing_since)

    def _update(self) -> None:
        self._checked_at = self._clock.monotonic()
        now = self._clock.now()
        contacts = [region.status.health.last_contact_at for region in self._regions()]
        latest = max((parse_time(text) for text in contacts if text), default=0.0)
        if now - latest > SILENT_S:
            self._hearing_since = now
