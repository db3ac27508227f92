"""Virtual time for tests: an event loop whose clock jumps to the next timer, and ports that follow it."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH_S = 1_700_000_000.0


class _Jumping(selectors.SelectSelector):
    """Never blocks: advances the virtual clock by the timeout instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("no timer and no event left: the test would wait forever")
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine function in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


class VirtualClock:
    def now(self) -> float:
        return EPOCH_S + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Ids:
    def __init__(self) -> None:
        self._next = 0

    def uid(self) -> str:
        self._next += 1
        return f"uid-{self._next}"


class VirtualPorts:
    def __init__(self, seed: int = 1) -> None:
        self.clock = VirtualClock()
        self.ids = _Ids()
        self.random = random.Random(seed)


async def until(fact: Callable[[], object], *, within_s: float = 60.0, step_s: float = 0.01) -> None:
    """Waits until `fact` is true; fails after `within_s` of virtual time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not fact():
        assert loop.time() < deadline, f"did not become true within {within_s} s"
        await asyncio.sleep(step_s)
