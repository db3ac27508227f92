"""Where time, chance and identity come in. Production and simulation supply them; decisions never reach for them."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
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


class SystemIds:
    def uid(self) -> str:
        return str(uuid.uuid4())


class SystemPorts:
    """The real ones."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.ids: Ids = SystemIds()
        self.random = random.Random()
