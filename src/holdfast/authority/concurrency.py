"""FIFO semaphore that bounds the items in flight to the store. It counts items, not calls, so a few large batches and
many single-item calls are limited alike. FIFO order keeps small calls from starving a large one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ItemSemaphore:
    """Waiters are served in order of arrival."""

    def __init__(self, capacity: int) -> None:
        self._capacity = self._free = capacity
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, units: int) -> AsyncIterator[None]:
        """Holds `units` units, at least one and at most all, while the context is open."""
        count = max(1, min(units, self._capacity))
        await self._acquire(count)
        try:
            yield
        finally:
            self._release(count)

    async def _acquire(self, count: int) -> None:
        if not self._waiting and self._free >= count:
            self._free -= count
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release(count)  # acquired in the same moment as the cancellation
            else:
                self._waiting.remove((count, granted))
                self._release(0)  # the next waiters may fit now
            raise

    def _release(self, count: int) -> None:
        self._free += count
        while self._waiting and self._waiting[0][0] <= self._free:
            acquired, granted = self._waiting.popleft()
            self._free -= acquired
            granted.set_result(None)
