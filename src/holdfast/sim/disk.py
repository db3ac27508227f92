"""Simulated store of a cell: `Disk` survives a crash, `MountedStore` is one process's access to it and injects faults.

When the process crashes, its watches end, while a commit that it has sent may still take effect.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from holdfast.identity.cell_record import RecordedIdentity
from holdfast.model.cell_identity import CellIdentity
from holdfast.model.errors import Ambiguous, Conflict, Fault, StoreFailed, Unavailable
from holdfast.sim import releases
from holdfast.sim.fault_injection import FaultInjector, FaultKind
from holdfast.sim.loop import ENVIRONMENT, VirtualLoop
from holdfast.sim.releases import ReleaseVersion
from holdfast.store.contract import Change, Committed, LogRecord, StoredEntry, StorePage, Txn
from holdfast.store.memory import MemoryStore

CommitObserver = Callable[[Txn, Committed], None]

COMMIT_S = (0.001, 0.006)
SLOW_S = (0.2, 2.0)
LATE_S = (0.1, 5.0)
VERY_LATE_S = (0.6, 25.0)
"""Delay of a commit that was in flight at a crash. It may arrive after the restart."""
PAUSE_S = (1.0, 90.0)
TIMEOUT_S = 1.0
HEARTBEAT_KEYS = ("/leasepages/", "/leases/")


class Disk:
    """The durable store. Observers (the checkers) see every commit when it takes effect."""

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.store = MemoryStore()
        self.record = DiskRecord(cell)
        self.commit_observers: list[CommitObserver] = []
        self.on_commit_attempt: Callable[[str, float], None] = lambda cell, at_s: None
        """Called at every commit attempt."""
        self.unavailable = False
        self.full = False
        self.hung = False
        """Whether commits wait without an answer, as on a disk that does not respond."""
        self.timeout_at_commit = 0
        """Position of the next commit that gets a timeout; negative: the commit is not made. 0: none."""
        self.commit_latency_s = 0.0
        """Latency of the newest commit."""
        self.writer_release = ReleaseVersion.CURRENT
        """Release of the process that made the newest commit."""

    def take_timeout(self) -> int:
        """-1 or 1 if this commit gets the timeout, else 0."""
        if not self.timeout_at_commit:
            return 0
        side = 1 if self.timeout_at_commit > 0 else -1
        self.timeout_at_commit -= side
        return 0 if self.timeout_at_commit else side

    async def commit(self, txn: Txn, way_s: float = 0.0, by: ReleaseVersion = ReleaseVersion.CURRENT) -> Committed:
        committed = await self.store.commit(txn)
        self.commit_latency_s, self.writer_release = way_s, by
        for witness in self.commit_observers:
            witness(txn, committed)
        return committed


class DiskRecord:
    """The record of the cell's identity, beside its store. Survives crashes."""

    def __init__(self, cell: str) -> None:
        self.name = f"record of {cell}"
        self._recorded = RecordedIdentity(CellIdentity(cell, f"{cell}-1", f"{cell}-era-1"), created=False)

    def read(self) -> RecordedIdentity | None:
        return self._recorded

    def write(self, recorded: RecordedIdentity) -> None:
        self._recorded = recorded

    async def note(self, recorded: RecordedIdentity) -> None:
        self._recorded = recorded


class MountedStore:
    """The store of one process. Its faults are those that the store contract allows.

    `crash` and `pause` act on the process at the next await.
    """

    def __init__(
        self,
        disk: Disk,
        faults: FaultInjector,
        loop: VirtualLoop,
        rng: random.Random,
        *,
        crash: Callable[[], None],
        pause: Callable[[float], None],
        release: ReleaseVersion = ReleaseVersion.CURRENT,
    ) -> None:
        self._disk = disk
        self._faults = faults
        self._loop = loop
        self._rng = rng
        self._crash = crash
        self._pause = pause
        self._release = release
        self._failure: StoreFailed | None = None
        self._ends: list[Callable[[], None]] = []
        self._failed: list[Callable[[Fault], None]] = []

    @property
    def head(self) -> int:
        return self._disk.store.head

    @property
    def compacted(self) -> int:
        return self._disk.store.compacted

    @property
    def max_writes(self) -> int:
        return self._disk.store.max_writes

    async def newest_revision(self) -> int:
        self._check()
        return self._disk.store.head

    def revision_back(self, changes: int) -> int:
        return self._disk.store.revision_back(changes)

    async def get(self, key: str, *, at: int | None = None) -> StoredEntry | None:
        self._check()
        entry = await self._disk.store.get(key, at=at)
        return entry if self._release is ReleaseVersion.CURRENT else releases.entry_read_by(self._release, entry)

    async def range(self, prefix: str, *, at: int | None = None, after: str = "", limit: int = 0) -> StorePage:
        self._check()
        page = await self._disk.store.range(prefix, at=at, after=after, limit=limit)
        return page if self._release is ReleaseVersion.CURRENT else _read_page(self._release, page)

    async def commit(self, txn: Txn) -> Committed:
        disk, faults = self._disk, self._faults
        started_s = self._loop.now_s
        if self._release is not ReleaseVersion.CURRENT:
            txn = releases.stored_by(self._release, txn)
        disk.on_commit_attempt(disk.cell, started_s)
        await self._loop.sleep_future(self._rng.uniform(*COMMIT_S))
        while disk.hung:
            await asyncio.sleep(TIMEOUT_S)
        self._check()
        if disk.full and txn.writes:
            faults.effective_counts[FaultKind.DISK_FULL] += 1
            raise self._fail(StoreFailed("the disk is full (simulated); the store has stopped"))
        trapped = await self._inject_before_commit(txn) if faults.active_kinds or disk.timeout_at_commit else 0
        self._check()
        committed = await disk.commit(txn, self._loop.now_s - started_s, self._release)
        if faults.active_kinds:
            await self._crash_or_pause(FaultKind.CRASH_AFTER, FaultKind.PAUSE_AFTER)
        if faults.draw(FaultKind.TIMEOUT_AFTER, disk.cell) is not None or trapped > 0:
            await asyncio.sleep(TIMEOUT_S)
            raise Ambiguous("the store did not respond (simulated, committed)")
        return committed

    async def _inject_before_commit(self, txn: Txn) -> int:
        """Injects faults before a commit takes effect. Returns 1 if its response is to be lost."""
        strikes, cell = self._faults.draw, self._disk.cell
        if (own := strikes(FaultKind.SLOW, cell)) is not None:
            await asyncio.sleep(own.uniform(*SLOW_S))
        if txn.writes and strikes(FaultKind.CONFLICT, cell) is not None:
            raise Conflict("a concurrent write came first (simulated)")
        trapped = self._disk.take_timeout() if txn.writes else 0
        self._faults.effective_counts[FaultKind.TIMEOUT_AT] += trapped != 0
        if strikes(FaultKind.TIMEOUT_BEFORE, cell) is not None or trapped < 0:
            await asyncio.sleep(TIMEOUT_S)
            raise Ambiguous("the store did not respond (simulated, not committed)")
        if (own := strikes(FaultKind.LATE_COMMIT, cell)) is not None:
            # In flight: the commit takes effect even if the process crashes.
            self._loop.spawn(ENVIRONMENT, self._commit_late(txn, own.uniform(*LATE_S)), name="late commit")
            await asyncio.sleep(TIMEOUT_S)
            raise Ambiguous("the store did not respond (simulated, in flight)")
        crashing = FaultKind.CRASH_LATE in self._faults.active_kinds and _under_term(txn)
        if crashing and (own := strikes(FaultKind.CRASH_LATE, cell)) is not None:
            self._loop.spawn(ENVIRONMENT, self._commit_late(txn, own.uniform(*VERY_LATE_S)), name="late commit")
            self._crash()
            await asyncio.sleep(0)
        await self._crash_or_pause(FaultKind.CRASH_BEFORE, FaultKind.PAUSE_BEFORE)
        return trapped

    async def _crash_or_pause(self, crash: FaultKind, pause: FaultKind) -> None:
        """Crashes or pauses the process at this point."""
        cell = self._disk.cell
        if self._faults.draw(crash, cell) is not None:
            self._crash()
            await asyncio.sleep(0)
        if (own := self._faults.draw(pause, cell)) is not None:
            self._pause(own.uniform(*PAUSE_S))
            await asyncio.sleep(0)

    async def _commit_late(self, txn: Txn, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            await self._disk.commit(txn, after_s, self._release)
        except Conflict:
            return

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._disk.unavailable:
            raise Unavailable("the store is unavailable (simulated)")

    def _fail(self, failure: StoreFailed) -> StoreFailed:
        """Fails the store permanently for this process, because its content is uncertain."""
        if self._failure is None:
            self._failure = failure
            for on_failure in self._failed:
                on_failure(failure)
        return self._failure

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        changes = self._disk.store.watch(prefix, after=after)
        return changes if self._release is ReleaseVersion.CURRENT else _Read(self._release, changes)

    def subscribe(self, on_changes: Any, on_failure: Any, *, after: int) -> Callable[[], None]:
        end = self._disk.store.subscribe(on_changes, on_failure, after=after)
        self._ends.append(end)
        self._failed.append(on_failure)
        return end

    def unmount(self) -> None:
        """Ends all subscriptions of the crashed process."""
        for end in self._ends:
            end()
        self._ends.clear()
        self._failed.clear()

    async def compact(self, revision: int) -> None:
        await self._disk.store.compact(revision)

    @property
    def log_position(self) -> int:
        return self._disk.store.log_position

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]:
        return await self._disk.store.read_log(log, after=after, limit=limit)

    async def trim_log(self, log: str, *, keep: int) -> None:
        await self._disk.store.trim_log(log, keep=keep)

    async def close(self) -> None:
        raise Unavailable("a simulated disk is not closed")


class _Read:
    """A watch as read by a process of another release."""

    def __init__(self, release: ReleaseVersion, changes: AsyncIterator[Sequence[Change]]) -> None:
        self._release = release
        self._changes = changes

    def __aiter__(self) -> _Read:
        return self

    async def __anext__(self) -> Sequence[Change]:
        read, release = releases.entry_read_by, self._release
        return [
            Change(change.key, change.revision, read(release, change.entry), read(release, change.previous))
            for change in await anext(self._changes)
        ]


def _read_page(release: ReleaseVersion, page: StorePage) -> StorePage:
    entries = (releases.entry_read_by(release, entry) for entry in page.entries)
    return StorePage(tuple(entry for entry in entries if entry is not None), page.revision, page.more)


def _under_term(txn: Txn) -> bool:
    """Whether the transaction is written under a leader's term and is not only a heartbeat."""
    decided = any(not write.key.startswith(HEARTBEAT_KEYS) for write in txn.writes)
    return decided and any(compare.key.startswith("/terms/") for compare in txn.compares)
