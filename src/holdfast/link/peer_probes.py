"""Probes of the other regions, every few seconds. The results are part of the region report.

They are evidence for the global cell about a region that does not report. A region counts as unreachable only after
several failed probes in a row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog

from holdfast.foundation.ports import Ports
from holdfast.model.region import PeerProbeResult, Region
from holdfast.model.times import micro_text

# Time for one probe of another region. After that, it has failed.
PEER_PROBE_TIMEOUT_S = 1.5
# Consecutive failed probes after which a region reports a peer as unreachable. One failure proves nothing.
PEER_PROBE_FAILURES_MAX = 2
# Answered probes of which the shortest round trip is reported. The shortest is nearest to the latency of the network:
# a new connection or a busy peer only adds to it.
LATENCY_PROBES_MAX = 8


class PeerProbe(Protocol):
    """One probe of another region's cell. Production and simulation implement it."""

    async def reachable(self, region: str, endpoint: str) -> bool:
        """Whether the cell responded within `PEER_PROBE_TIMEOUT_S`."""


class PeerProber:
    def __init__(self, own: str, probe: PeerProbe, ports: Ports) -> None:
        self._own = own
        self._probe = probe
        self._ports = ports
        self._failures: dict[str, int] = {}
        self._results: dict[str, PeerProbeResult] = {}
        self._round_trips_ms: dict[str, deque[float]] = {}
        self._log = structlog.get_logger().bind(region=own)

    def results(self) -> tuple[PeerProbeResult, ...]:
        return tuple(self._results[name] for name in sorted(self._results))

    async def probe_all(self, regions: Sequence[Region]) -> None:
        """Probes every other region once, concurrently."""
        others = [r for r in regions if r.metadata.name != self._own and r.spec.endpoint]
        for removed in sorted(self._results.keys() - {r.metadata.name for r in others}):
            del self._results[removed]
            self._round_trips_ms.pop(removed, None)
        reached_all = await asyncio.gather(*(self._probe_one(r) for r in others))
        at = micro_text(self._ports.clock.now())
        for region, reached in zip(others, reached_all, strict=True):
            self._record(region.metadata.name, at, reached=reached)

    async def _probe_one(self, region: Region) -> bool:
        name, began_s = region.metadata.name, self._ports.clock.monotonic()
        try:
            async with asyncio.timeout(PEER_PROBE_TIMEOUT_S):
                reached = await self._probe.reachable(name, region.spec.endpoint)
        except (TimeoutError, OSError):
            return False
        if reached:
            took_ms = 1000.0 * (self._ports.clock.monotonic() - began_s)
            self._round_trips_ms.setdefault(name, deque(maxlen=LATENCY_PROBES_MAX)).append(took_ms)
        return reached

    def _record(self, name: str, at: str, *, reached: bool) -> None:
        failures = self._failures[name] = 0 if reached else self._failures.get(name, 0) + 1
        known = self._results.get(name)
        if not reached and failures < PEER_PROBE_FAILURES_MAX:
            if known is not None:
                self._results[name] = msgspec.structs.replace(known, at=at)
            return
        if known is not None and known.reachable is not reached:
            self._log.info("peer_reachability_changed", peer=name, reachable=reached)
        if not reached:
            self._round_trips_ms.pop(name, None)
        latency_ms = round(min(self._round_trips_ms.get(name, ()), default=0.0), 2)
        self._results[name] = PeerProbeResult(region=name, reachable=reached, at=at, latency_ms=latency_ms)
