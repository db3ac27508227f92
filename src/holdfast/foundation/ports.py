"""Ports for time, randomness and new uids. Production and simulation supply them; pure decisions never use them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Wall-clock time, seconds since the epoch. It may step; never use it to measure a duration."""

    def monotonic(self) -> float:
        """Monotonic seconds, including time in suspend. Leases are measured on it."""

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def uid(self) -> str:
        """A new UUID."""


class Ports(Protocol):
    """The ports of one process."""

    random: random.Random

    @property
    def clock(self) -> Clock: ...

    @property
    def ids(self) -> Ids: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_IDS_AT_ONCE = 64
"""UUIDs per system call. Several are needed per request, and one call for each costs more."""


class SystemIds:
    """Random UUIDs (version 4)."""

    def __init__(self) -> None:
        self._drawn: list[str] = []

    def uid(self) -> str:
        if not self._drawn:
            text = os.urandom(16 * _IDS_AT_ONCE).hex()
            self._drawn = [text[at : at + 32] for at in range(0, len(text), 32)]
        drawn = self._drawn.pop()
        variant = "89ab"[int(drawn[16], 16) & 3]
        return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


class SystemPorts:
    """The ports of a real process."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.ids: Ids = SystemIds()
        self.random = random.Random()
