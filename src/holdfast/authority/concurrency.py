"""How many items may be in commits at once. Counted by items, not by calls: a few full batches fill it, and so do very
many calls of one item each, which the store then writes together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ItemSemaphore:
    """Whoever came first is served first: small calls never overtake a large one for ever."""

    def __init__(self, seats: int) -> None:
        self._seats = self._free = seats
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, wanted: int) -> AsyncIterator[None]:
        """Inside, so many are taken; at least one, and never more than there are."""
        count = max(1, min(wanted, self._seats))
        await self._take(count)
        try:
            yield
        finally:
            self._give(count)

    async def _take(self, count: int) -> None:
        if not self._waiting and self._free >= count:
            self._free -= count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(count)  # the turn came in the same moment
            else:
                self._waiting.remove((count, turn))
                self._give(0)  # those behind may fit now
            raise

    def _give(self, count: int) -> None:
        self._free += count
        while self._waiting and self._waiting[0][0] <= self._free:
            taken, turn = self._waiting.popleft()
            self._free -= taken
            turn.set_result(None)
