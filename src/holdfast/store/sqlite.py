"""Embedded store: one SQLite file per cell, WAL, synchronous=FULL, one process.

`commit` checks compares and assigns revisions on the event loop, against the head in memory, before its first await.
One thread writes whole groups. A commit is published (head, watches, its caller) only after it is on disk. After a
failed write the store stops: the process must be restarted, and then reads what really reached the disk. While the disk
is full the store refuses writes, serves reads, and continues by itself when there is space.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw
import structlog

from holdfast.foundation import metrics
from holdfast.model import limits
from holdfast.model.errors import BadRequest, Conflict, Expired, Overloaded, StoreFailed, Unavailable
from holdfast.store import schema
from holdfast.store.chained_log import CHAINED_LOG
from holdfast.store.contract import Change, Committed, LogRecord, StoredEntry, StorePage, Txn
from holdfast.store.feed import WATCH_RING_EVENTS, BatchCallback, FaultCallback, Feed, Watch
from holdfast.store.head import StagedValue, StoreHead
from holdfast.store.history import HistoryReader
from holdfast.store.mark import StoreMark, check_mark, read_mark
from holdfast.store.writer import DiskFull, GroupWriter

# Commits waiting for the disk. Beyond that a commit is refused with 429.
STORE_QUEUE_COMMITS_MAX = 20_000
# Interval at which the store tries to write again after a full disk.
STORE_FULL_RETRY_S = 1.0
# Rows deleted per transaction of compaction or trimming. Small, so that commits are not delayed.
COMPACT_CHUNK_REVISIONS = 2_000

T = TypeVar("T")

_log = structlog.get_logger()


class SqliteStore:
    """Opening it reads the current state into memory. Used from one event loop only."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = schema.FileLock(self.path)
        try:
            connection = schema.open_writer(self.path)
        except BaseException:
            self._lock.release()
            raise
        self._history = HistoryReader(schema.open_reader(self.path))
        try:
            marks = self._history.meta()
            known = read_mark(self.path)
            check_mark(self.path, known, marks["stamp"], marks["revision"], marks["sequence"])
            entries, removed = self._history.newest(), self._history.removed()
            link = self._history.newest_link(CHAINED_LOG)
            mark = StoreMark(self.path, known, marks["stamp"], marks["revision"], marks["sequence"])
        except (apsw.Error, StoreFailed, OSError) as error:
            self._history.close()
            connection.close()
            self._lock.release()
            raise error if isinstance(error, StoreFailed) else schema.unreadable(self.path, error) from error
        self._head = StoreHead(entries, removed, marks["revision"], marks["sequence"], link)
        self._feed = Feed(self._head.revision, WATCH_RING_EVENTS)
        self._compacted = marks["compacted"]
        self._swept = marks["swept"]
        self._failure: StoreFailed | None = None
        self._full: Unavailable | None = None
        self._probing: asyncio.Task[None] | None = None
        self._closed = False
        # Commits in flight to the disk, oldest first, as futures of their callers.
        self._in_flight: deque[asyncio.Future[Committed]] = deque()
        self._compacting = asyncio.Lock()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"store-reader {self.path.name}")
        self._writer = GroupWriter(connection, self.path.name, mark, self._written)

    @property
    def head(self) -> int:
        return self._head.revision

    @property
    def compacted(self) -> int:
        return self._compacted

    @property
    def max_writes(self) -> int:
        return limits.MAX_WRITES_PER_COMMIT

    async def newest_revision(self) -> int:
        return self.head

    def revision_back(self, changes: int) -> int:
        return max(0, self.head - changes)

    async def get(self, key: str, *, at: int | None = None) -> StoredEntry | None:
        self._check()
        if at is None or at == self.head:
            return self._head.entries.get(key)
        self._check_past(at)
        found = await self._read(lambda: self._history.get(key, at), f"{key} at revision {at}")
        self._check_past(at)
        return found

    async def range(self, prefix: str, *, at: int | None = None, after: str = "", limit: int = 0) -> StorePage:
        self._check()
        if at is None or at == self.head:
            entries, more = self._head.range(prefix, after, limit)
            return StorePage(entries, self.head, more)
        self._check_past(at)
        entries, more = await self._read(
            lambda: self._history.range(prefix, at, after, limit), f"{prefix}… at revision {at}"
        )
        # Compaction announces itself before it deletes, so the result is complete if this check passes.
        self._check_past(at)
        return StorePage(entries, at, more)

    async def commit(self, txn: Txn) -> Committed:
        self._check()
        if self._full is not None:
            raise self._full
        if len(self._in_flight) >= STORE_QUEUE_COMMITS_MAX:
            message = f"store: too many commits in flight (limit {STORE_QUEUE_COMMITS_MAX}); next: retry later"
            raise Overloaded(message, retry_after_s=0.5)
        try:
            staged = self._head.stage(txn)
        except Conflict as conflict:
            metrics.STORE_CONFLICTS.inc()
            if self._in_flight and self._head.is_staged(conflict.facts["key"]):
                # The winning commit is not visible yet: a fresh read right now would still show the old state.
                await asyncio.wait([self._in_flight[-1]])
                self._check()
            raise
        if not self._in_flight and not staged.changes and not staged.appends:
            return staged.committed
        written: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self._in_flight.append(written)
        self._writer.put(staged)
        return await written

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        return Watch(self._feed, prefix, after, lambda: self._compacted, self._past_changes)

    def subscribe(self, on_batch: BatchCallback, on_fault: FaultCallback, *, after: int) -> Callable[[], None]:
        return self._feed.subscribe(on_batch, on_fault, after=after)

    async def compact(self, revision: int) -> None:
        """Refuses the past at once, then deletes it in small transactions, with commits in between."""
        self._check()
        if revision > self.head:
            raise BadRequest(f"revision {revision}: cannot be compacted (newest revision {self.head})")
        async with self._compacting:
            if revision <= self._compacted:
                return
            await self._run_job(partial(_set_mark, name="compacted", value=revision))
            self._compacted = revision
            metrics.STORE_COMPACTED.set(revision)
            self._feed.wake()
            while self._swept < revision:
                low, high = self._swept, min(revision, self._swept + COMPACT_CHUNK_REVISIONS)
                await self._run_job(partial(_sweep, low=low, high=high))
                self._swept = high
                # Only now: while the old rows exist, a recreated key must reference its removal as previous change.
                self._head.forget_removed(high)
        _log.info("history_compacted", path=str(self.path), revision=revision)

    @property
    def log_position(self) -> int:
        return self._head.sequence

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]:
        self._check()
        through = self._head.sequence
        return await self._read(lambda: self._history.log(log, after, through, limit), f"log {log} after {after}")

    async def trim_log(self, log: str, *, keep: int) -> None:
        """Deletes all but the newest `keep` records, in small transactions."""
        self._check()
        while await self._run_job(partial(_trim, log=log, keep=keep)):
            pass

    async def advance(self, revision: int) -> None:
        """Continues above this revision, so that a restored cell never reuses a revision from before the restore."""
        self._check()
        if self.head:
            raise BadRequest(f"store {self.path}: cannot advance, because it is not empty (found revision {self.head})")
        await self._run_job(partial(_set_mark, name="compacted", value=revision))
        await self._run_job(partial(_set_mark, name="swept", value=revision))
        self._compacted = self._swept = revision
        self._head = StoreHead((), {}, revision, self._head.sequence)
        self._feed = Feed(revision, WATCH_RING_EVENTS)

    async def close(self) -> None:
        """Writes commits in flight, then closes the file."""
        if self._closed:
            return
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
        loop = asyncio.get_running_loop()
        # The reader first: the last connection moves the write-ahead log into the main file.
        await loop.run_in_executor(self._reader, self._history.close)
        self._reader.shutdown()
        await loop.run_in_executor(None, self._writer.stop)
        # The writer scheduled its last callbacks before it ended: they run before this continues.
        await asyncio.sleep(0)
        self._lock.release()
        if self._failure is None:
            self._feed.fail(self._closed_fault())

    def _written(self, group: Sequence[StagedValue], seconds: float, error: Exception | None) -> None:
        """Runs on the loop after a group reached the disk: publishes all of it, then wakes the callers."""
        if isinstance(error, DiskFull):
            self._refuse(group, error)
            return
        if error is not None:
            self._fail(error)
            return
        rows = 0
        for staged in group:
            self._head.publish(staged)
            self._feed.append(staged.changes)
            rows += len(staged.changes)
        self._feed.wake()
        for staged in group:
            waiting = self._in_flight.popleft()
            if not waiting.done():
                waiting.set_result(staged.committed)
        metrics.STORE_COMMITS.inc(len(group))
        metrics.STORE_KEY_WRITES.inc(rows)
        metrics.STORE_GROUP.observe(len(group))
        metrics.STORE_COMMIT.observe(seconds)
        metrics.STORE_QUEUE.set(len(self._in_flight))

    def _refuse(self, group: Sequence[StagedValue], error: DiskFull) -> None:
        """The group is not stored, and neither is anything staged after it. Writes are refused until there is space."""
        if self._full is None:
            self._full = Unavailable(
                f"store {self.path}: the disk is full ({error}), so writes are refused; next: free disk space; the "
                "store continues by itself",
                facts={"path": str(self.path)},
            )
            metrics.STORE_FULL.set(1)
            _log.error("store_full", path=str(self.path), error=str(error))
        for _ in group:
            waiting = self._in_flight.popleft()
            if not waiting.done():
                waiting.set_exception(self._full)
        if not self._in_flight and self._probing is None:
            # The queue holds nothing that was staged on top of the refused commits.
            self._head.discard_staged()
            self._probing = asyncio.create_task(self._probe_space(), name=f"store space {self.path.name}")

    async def _probe_space(self) -> None:
        """Tries one small write at a time until the disk has space again."""
        while self._failure is None:
            await asyncio.sleep(STORE_FULL_RETRY_S)
            error = await self._probe_once()
            if error is None:
                self._full = self._probing = None
                metrics.STORE_FULL.set(0)
                _log.info("store_resumed", path=str(self.path), revision=self.head)
                return
            if not isinstance(error, DiskFull):
                self._fail(error)

    async def _probe_once(self) -> Exception | None:
        tried: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def done(_: object, error: Exception | None) -> None:
            if not tried.done():
                tried.set_result(error)

        self._writer.probe(done)
        return await tried

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        fault = self._failure = StoreFailed(
            f"store {self.path}: a write failed, so the store stopped ({error}); next: check the disk, then restart"
        )
        _log.error("store_stopped", path=str(self.path), error=str(error), commits_unknown=len(self._in_flight))
        self._feed.fail(fault)
        while self._in_flight:
            waiting = self._in_flight.popleft()
            if not waiting.done():
                waiting.set_exception(fault)

    async def _past_changes(self, after: int) -> Sequence[Change]:
        through = self.head
        return await self._read(lambda: self._history.changes(after, through), f"changes after revision {after}")

    async def _read(self, work: Callable[[], T], what: str) -> T:
        self._check()
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._reader, work)
        except apsw.Error as error:
            metrics.STORE_DAMAGED_READS.inc()
            fault = schema.unreadable(self.path, error, what)
            _log.error("store_read_failed", path=str(self.path), error=fault.message)
            raise fault from error
        self._check()
        return found

    async def _run_job(self, work: Callable[[apsw.Connection], object]) -> object:
        finished: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(result: object, error: Exception | None) -> None:
            if isinstance(error, DiskFull):
                self._refuse((), error)
                if not finished.done() and self._full is not None:
                    finished.set_exception(self._full)
                return
            if error is not None:
                self._fail(error)
            if not finished.done():
                finished.set_result(result)

        self._check()
        if self._full is not None:
            raise self._full
        self._writer.run(work, done)
        result = await finished
        self._check()
        return result

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise self._closed_fault()

    def _closed_fault(self) -> Unavailable:
        return Unavailable(f"store {self.path}: closed")

    def _check_past(self, at: int) -> None:
        if at < self._compacted:
            raise Expired(f"revision {at}: compacted (oldest available {self._compacted}); next: list again")
        if at > self.head:
            raise BadRequest(f"revision {at}: in the future (newest revision {self.head})")


def _set_mark(connection: apsw.Connection, name: str, value: int) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))


def _sweep(connection: apsw.Connection, low: int, high: int) -> None:
    """Deletes the rows that the changes in (low, high] replaced, and the removals among them."""
    connection.execute(
        "DELETE FROM history WHERE revision IN (SELECT previous FROM history WHERE revision > ? AND revision <= ?)",
        (low, high),
    )
    connection.execute("DELETE FROM history WHERE revision > ? AND revision <= ? AND value IS NULL", (low, high))
    _set_mark(connection, "swept", high)


def _trim(connection: apsw.Connection, log: str, keep: int) -> bool:
    """Deletes some of the oldest records beyond `keep`. Returns whether there may be more."""
    newest = "SELECT sequence FROM log WHERE name = ? ORDER BY sequence DESC LIMIT 1 OFFSET ?"
    through = connection.execute(newest, (log, keep)).get
    if through is None:
        return False
    # The highest sequence ever deleted is stored, so that none is assigned twice.
    connection.execute("UPDATE meta SET value = max(value, ?) WHERE name = 'trimmed'", (through,))
    oldest = "SELECT sequence FROM log WHERE name = ? AND sequence <= ? ORDER BY sequence LIMIT ?"
    connection.execute(f"DELETE FROM log WHERE sequence IN ({oldest})", (log, through, COMPACT_CHUNK_REVISIONS))
    return connection.changes() == COMPACT_CHUNK_REVISIONS
