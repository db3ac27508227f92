"""Where time, chance and identity come in. Production and simulation supply them; decisions never reach for them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Wall time, seconds since the epoch. May step; never used to measure how long something took."""

    def monotonic(self) -> float:
        """Seconds that only pass, through suspend too. What leases are counted on."""

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def uid(self) -> str:
        """A new unique identity, never used before."""


class Ports(Protocol):
    """All a part needs from outside; one per process."""

    clock: Clock
    ids: Ids
    random: random.Random


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_IDS_AT_ONCE = 64


class SystemIds:
    """Random UUIDs (version 4). Several are drawn for every request, so chance is fetched for many at once."""

    def __init__(self) -> None:
        self._drawn = ""

    def uid(self) -> str:
        if not self._drawn:
            self._drawn = os.urandom(16 * _IDS_AT_ONCE).hex()
        drawn, self._drawn = self._drawn[:32], self._drawn[32:]
        variant = "89ab"[int(drawn[16], 16) & 3]
        return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


class SystemPorts:
    """The real ones."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.ids: Ids = SystemIds()
        self.random = random.Random()
