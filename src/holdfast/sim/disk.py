"""A cell's disk: a store that outlives the process, reached through one that can time out, lag and conflict.

`Disk` is what survives a crash. `Mounted` is one life's way to it: when the process dies, what it was told stops, while
a commit it had already handed over may still take effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from holdfast.model.errors import Ambiguous, Conflict, Unavailable
from holdfast.sim.chaos import Chaos, Kind
from holdfast.sim.loop import WORLD, VirtualLoop
from holdfast.store.contract import Change, Committed, Entry, LogRecord, Page, Txn
from holdfast.store.memory import MemoryStore

Witness = Callable[[Txn, Committed], None]

COMMIT_S = (0.001, 0.006)
SLOW_S = (0.2, 2.0)
LATE_S = (0.1, 5.0)
TIMEOUT_S = 1.0


class Disk:
    """What is really written. Every commit is shown to the witnesses (the checkers) at the instant it takes effect."""

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.store = MemoryStore()
        self.witnesses: list[Witness] = []

    async def commit(self, txn: Txn) -> Committed:
        committed = await self.store.commit(txn)
        for witness in self.witnesses:
            witness(txn, committed)
        return committed


class Mounted:
    """One process's store. Follows the contract; its faults are those the contract allows."""

    def __init__(self, disk: Disk, chaos: Chaos, loop: VirtualLoop, chance: Any) -> None:
        self._disk = disk
        self._chaos = chaos
        self._loop = loop
        self._chance = chance
        self._ends: list[Callable[[], None]] = []

    @property
    def head(self) -> int:
        return self._disk.store.head

    @property
    def compacted(self) -> int:
        return self._disk.store.compacted

    async def get(self, key: str, *, at: int | None = None) -> Entry | None:
        return await self._disk.store.get(key, at=at)

    async def range(self, prefix: str, *, at: int | None = None, after: str = "", limit: int = 0) -> Page:
        return await self._disk.store.range(prefix, at=at, after=after, limit=limit)

    async def commit(self, txn: Txn) -> Committed:
        await asyncio.sleep(self._chance.uniform(*COMMIT_S))
        if self._chaos.strikes(Kind.SLOW):
            await asyncio.sleep(self._chance.uniform(*SLOW_S))
        if txn.writes and self._chaos.strikes(Kind.CONFLICT):
            raise Conflict("another writer came first (simulated)")
        if self._chaos.strikes(Kind.TIMEOUT_BEFORE):
            await asyncio.sleep(TIMEOUT_S)
            raise Ambiguous("the store did not answer (simulated, not committed)")
        if self._chaos.strikes(Kind.LATE_COMMIT):
            # Handed over and on its way: not even a crash of the process takes it back.
            self._loop.spawn(WORLD, self._arrive_late(txn), name="late commit")
            await asyncio.sleep(TIMEOUT_S)
            raise Ambiguous("the store did not answer (simulated, still on its way)")
        committed = await self._disk.commit(txn)
        if self._chaos.strikes(Kind.TIMEOUT_AFTER):
            await asyncio.sleep(TIMEOUT_S)
            raise Ambiguous("the store did not answer (simulated, committed)")
        return committed

    async def _arrive_late(self, txn: Txn) -> None:
        await asyncio.sleep(self._chance.uniform(*LATE_S))
        try:
            await self._disk.commit(txn)
        except Conflict:
            return

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        return self._disk.store.watch(prefix, after=after)

    def subscribe(self, told: Any, failed: Any, *, after: int) -> Callable[[], None]:
        end = self._disk.store.subscribe(told, failed, after=after)
        self._ends.append(end)
        return end

    def unmount(self) -> None:
        """The process is gone: nothing is told to it any more."""
        for end in self._ends:
            end()
        self._ends.clear()

    async def compact(self, revision: int) -> None:
        await self._disk.store.compact(revision)

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]:
        return await self._disk.store.read_log(log, after=after, limit=limit)

    async def trim_log(self, log: str, *, keep: int) -> None:
        await self._disk.store.trim_log(log, keep=keep)

    async def close(self) -> None:
        raise Unavailable("a simulated disk is not closed")
