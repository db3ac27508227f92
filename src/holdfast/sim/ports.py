"""Time, chance and identity of a simulated process: all from the seed, each stream by its own name.

A stream of its own per component keeps the others as they were when one is changed or left out, which is what lets a
failing run be shrunk.
"""

from __future__ import annotations

import asyncio
import random

from holdfast.runtime.ports import Clock, Ids
from holdfast.sim.loop import VirtualLoop

EPOCH_S = 1_800_000_000.0
"""The wall clock of every simulated world starts here."""


def stream(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}/{name}")


class SimClock:
    """One machine's clocks. The wall clock can be stepped; the monotonic one only runs a little fast or slow.

    Sleeping follows the machine's own clock, so that a machine whose clock is slow also sleeps for longer.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._rate = 1.0
        self._base_s = 0.0
        self._since_s = 0.0
        self.step_s = 0.0

    def drift(self, rate: float) -> None:
        """From now on this machine's seconds are `rate` of a true one; what has passed stays passed."""
        now_s = self._loop.now_s
        self._base_s += (now_s - self._since_s) * self._rate
        self._since_s, self._rate = now_s, rate

    def now(self) -> float:
        return EPOCH_S + (self._base_s + (self._loop.now_s - self._since_s) * self._rate) + self.step_s

    def monotonic(self) -> float:
        return self._base_s + (self._loop.now_s - self._since_s) * self._rate

    async def sleep(self, seconds: float) -> None:
        await (self._loop.nap(seconds / self._rate) if seconds > 0 else asyncio.sleep(0))

    def true_s(self, seconds: float) -> float:
        """How long it truly takes until so many seconds have passed on this clock."""
        return seconds / self._rate


class SimIds:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def uid(self) -> str:
        text = f"{self._chance.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class SimPorts:
    """One process's ports. A restarted process gets new streams: chance does not survive a crash, its clock does."""

    def __init__(self, clock: Clock, seed: int, name: str) -> None:
        self.clock = clock
        self.random = stream(seed, f"{name}/chance")
        self.ids: Ids = SimIds(stream(seed, f"{name}/ids"))
