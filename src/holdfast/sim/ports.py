"""Time, randomness and ids of a simulated process, all from the seed.

Every component has its own named random stream, so that a change of one component leaves the others unchanged. This
makes shrinking possible.
"""

from __future__ import annotations

import asyncio
import random

from holdfast.foundation.ports import Clock, Ids
from holdfast.sim.loop import VirtualLoop

EPOCH_S = 1_800_000_000.0
"""Start of the wall clock of every simulation."""


def random_stream(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}/{name}")


class SimClock:
    """The clocks of one machine. The wall clock can be stepped; both clocks can run fast or slow.

    Sleeps follow the machine's clock, so that a machine with a slow clock sleeps longer.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._rate = 1.0
        self._base_s = 0.0
        self._since_s = 0.0
        self.step_s = 0.0

    def drift(self, rate: float) -> None:
        """Sets the rate of the clocks from now on."""
        now_s = self._loop.now_s
        self._base_s += (now_s - self._since_s) * self._rate
        self._since_s, self._rate = now_s, rate

    def now(self) -> float:
        return EPOCH_S + (self._base_s + (self._loop.now_s - self._since_s) * self._rate) + self.step_s

    def monotonic(self) -> float:
        return self._base_s + (self._loop.now_s - self._since_s) * self._rate

    async def sleep(self, seconds: float) -> None:
        await (self._loop.sleep_future(seconds / self._rate) if seconds > 0 else asyncio.sleep(0))

    def true_s(self, seconds: float) -> float:
        """True duration of `seconds` on this clock."""
        return seconds / self._rate


class SimIds:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uid(self) -> str:
        text = f"{self._rng.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class SimPorts:
    """The ports of one process. After a restart a process has new random streams and the same clock."""

    def __init__(self, clock: Clock, seed: int, name: str) -> None:
        self.clock = clock
        self.random = random_stream(seed, f"{name}/chance")
        self.ids: Ids = SimIds(random_stream(seed, f"{name}/ids"))
