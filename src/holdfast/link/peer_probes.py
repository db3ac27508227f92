"""What this region sees of the others: each is looked at sideways, every few seconds, and the finding is reported.

The finding is evidence for the global cell, which hears a silent region from nobody else. A single failed look proves
nothing, so a region counts as unreachable only after several in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from holdfast.foundation.ports import Ports
from holdfast.model import limits
from holdfast.model.region import PeerProbeResult, Region
from holdfast.model.times import micro_text


class PeerProbe(Protocol):
    """One look at another region's cell. Where the network comes in: production and simulation supply it."""

    async def reachable(self, region: str, endpoint: str) -> bool:
        """Whether its cell answered at all, within `limits.PEER_PROBE_TIMEOUT_S`."""


class PeerProber:
    def __init__(self, own: str, probe: PeerProbe, ports: Ports) -> None:
        self._own = own
        self._probe = probe
        self._ports = ports
        self._failures: dict[str, int] = {}
        self._seen: dict[str, PeerProbeResult] = {}
        self._log = structlog.get_logger().bind(region=own)

    def results(self) -> tuple[PeerProbeResult, ...]:
        return tuple(self._seen[name] for name in sorted(self._seen))

    async def probe_all(self, regions: Sequence[Region]) -> None:
        """Looks at every other region once, all at the same time."""
        others = [r for r in regions if r.metadata.name != self._own and r.spec.endpoint]
        for gone in sorted(self._seen.keys() - {r.metadata.name for r in others}):
            del self._seen[gone]
        answers = await asyncio.gather(*(self._one(r) for r in others))
        at = micro_text(self._ports.clock.now())
        for region, reached in zip(others, answers, strict=True):
            self._note(region.metadata.name, at, reached=reached)

    async def _one(self, region: Region) -> bool:
        try:
            async with asyncio.timeout(limits.PEER_PROBE_TIMEOUT_S):
                return await self._probe.reachable(region.metadata.name, region.spec.endpoint)
        except (TimeoutError, OSError):
            return False

    def _note(self, name: str, at: str, *, reached: bool) -> None:
        failures = self._failures[name] = 0 if reached else self._failures.get(name, 0) + 1
        known = self._seen.get(name)
        if not reached and failures < limits.PEER_PROBE_FAILURES_MAX:
            if known is not None:
                self._seen[name] = PeerProbeResult(region=name, reachable=known.reachable, at=at)
            return
        if known is not None and known.reachable is not reached:
            self._log.info("peer_reachability_changed", peer=name, reachable=reached)
        self._seen[name] = PeerProbeResult(region=name, reachable=reached, at=at)
