"""Carries writes for a set of keys to one cell: merged, in batches, until each has arrived.

A key that is marked is delivered at least once after that; what to write is asked for at the moment of sending, so only
the newest state travels. One refused key never holds up the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

import structlog

from holdfast.client.contract import Client
from holdfast.model import limits
from holdfast.model.errors import Fault
from holdfast.model.writes import Write
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.ports import Ports

K = TypeVar("K", bound=Hashable)


class Courier(Generic[K]):
    """`make` answers the writes that bring one key up to date, or none when it is. `before` is done for each key right
    before that, every time; when it raises a Fault, nothing is made, and the key is tried again later."""

    def __init__(
        self,
        name: str,
        client: Client,
        make: Callable[[K], Iterable[Write]],
        ports: Ports,
        *,
        before: Callable[[K], Awaitable[None]] | None = None,
    ) -> None:
        self._name = name
        self._client = client
        self._make = make
        self._before = before
        self._ports = ports
        self._marked: dict[K, None] = {}
        self._woken = asyncio.Event()
        self._log = structlog.get_logger().bind(link=name, cell=client.cell)

    def mark(self, keys: Iterable[K]) -> None:
        for key in keys:
            self._marked[key] = None
        if self._marked:
            self._woken.set()

    async def run(self) -> None:
        backoff = Backoff(self._ports.random, max_s=limits.RECONNECT_MAX_S)
        while True:
            await self._woken.wait()
            if len(self._marked) < limits.LINK_BATCH:
                # A little more may come, and travels along; a full batch need not wait for it.
                await self._ports.clock.sleep(limits.LINK_FLUSH_EVERY_S)
            batch = list(self._marked)[: limits.LINK_BATCH]
            for key in batch:
                del self._marked[key]
            if not self._marked:
                self._woken.clear()
            failed = await self._deliver(batch)
            if failed:
                self.mark(failed)
                await self._ports.clock.sleep(backoff.next_s())
            else:
                backoff.reset()

    async def _deliver(self, batch: list[K]) -> list[K]:
        """Sends all at once; where that is refused, one by one. Answers the keys to try again."""
        try:
            writes = [write for key in batch for write in await self._made(key)]
            if not writes:
                return []
            await self._client.commit(writes, brief=True)
            return []
        except Fault as fault:
            if len(batch) == 1 or (fault.retryable and fault.code != 409):
                self._log.info("delivery_failed", keys=len(batch), reason=fault.reason, message=fault.message)
                return batch
        failed = []
        for key in batch:
            try:
                if one := await self._made(key):
                    await self._client.commit(one, brief=True)
            except Fault as fault:
                self._log.info("delivery_failed", key=str(key), reason=fault.reason, message=fault.message)
                failed.append(key)
        return failed

    async def _made(self, key: K) -> list[Write]:
        if self._before is not None:
            await self._before(key)
        return list(self._make(key))
