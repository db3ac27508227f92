"""Time, chance and identity of a simulated process: all from the seed, each stream by its own name.

A stream of its own per component keeps the others as they were when one is changed or left out, which is what lets a
failing run be shrunk.
"""

from __future__ import annotations

import asyncio
import random

from holdfast.runtime.ports import Clock, Ids

EPOCH_S = 1_800_000_000.0
"""The wall clock of every simulated world starts here."""


def stream(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}/{name}")


class SimClock:
    """The world's time plus this machine's skew; the monotonic clock is never skewed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.skew_s = 0.0

    def now(self) -> float:
        return EPOCH_S + self._loop.time() + self.skew_s

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SimIds:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def uid(self) -> str:
        text = f"{self._chance.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class SimPorts:
    """One process's ports. A restarted process gets new streams: chance does not survive a crash."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, name: str) -> None:
        self.clock: Clock = SimClock(loop)
        self.random = stream(seed, f"{name}/chance")
        self.ids: Ids = SimIds(stream(seed, f"{name}/ids"))
