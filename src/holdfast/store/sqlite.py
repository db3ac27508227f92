"""The embedded store: one SQLite file per cell, WAL, synchronous=FULL, one process.

`commit` checks compares and assigns revisions on the loop, against the head in memory, before it first waits; one
thread writes whole groups; a commit is published (head, watches, its caller) only after it is on disk. After a failed
write nothing is served any more: the process must be restarted, and finds what really reached the disk.
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

from holdfast.model import limits
from holdfast.model.errors import BadRequest, Conflict, Expired, Overloaded, StoreFailed, Unavailable
from holdfast.runtime import metrics
from holdfast.store import schema
from holdfast.store.contract import Change, Committed, Entry, LogRecord, Page, Txn
from holdfast.store.feed import Failed, Feed, Told, Watch
from holdfast.store.head import Head, Staged
from holdfast.store.history import History
from holdfast.store.writer import GroupWriter

T = TypeVar("T")

_log = structlog.get_logger()


class SqliteStore:
    """Opening it reads the current state into memory. Used from one loop only."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = schema.FileLock(self.path)
        try:
            connection = schema.open_writer(self.path)
        except BaseException:
            self._lock.release()
            raise
        self._history = History(schema.open_reader(self.path))
        try:
            marks = self._history.meta()
            entries, removed = self._history.newest(), self._history.removed()
        except apsw.Error as error:
            self._history.close()
            connection.close()
            self._lock.release()
            raise schema.unreadable(self.path, error) from error
        self._head = Head(entries, removed, marks["revision"], marks["sequence"])
        self._feed = Feed(self._head.revision, limits.WATCH_RING_EVENTS)
        self._compacted = marks["compacted"]
        self._swept = marks["swept"]
        self._failure: StoreFailed | None = None
        self._closed = False
        # Commits on their way to the disk, oldest first, each with whoever waits for it.
        self._in_flight: deque[asyncio.Future[Committed]] = deque()
        self._compacting = asyncio.Lock()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"store-reader {self.path.name}")
        self._writer = GroupWriter(connection, self.path.name, self._written)

    @property
    def head(self) -> int:
        return self._head.revision

    @property
    def compacted(self) -> int:
        return self._compacted

    @property
    def max_writes(self) -> int:
        return limits.MAX_WRITES_PER_COMMIT

    async def newest(self) -> int:
        return self.head

    def back(self, changes: int) -> int:
        return max(0, self.head - changes)

    async def get(self, key: str, *, at: int | None = None) -> Entry | None:
        self._check()
        if at is None or at == self.head:
            return self._head.entries.get(key)
        self._check_past(at)
        found = await self._read(lambda: self._history.get(key, at))
        self._check_past(at)
        return found

    async def range(self, prefix: str, *, at: int | None = None, after: str = "", limit: int = 0) -> Page:
        self._check()
        if at is None or at == self.head:
            entries, more = self._head.range(prefix, after, limit)
            return Page(entries, self.head, more)
        self._check_past(at)
        entries, more = await self._read(lambda: self._history.range(prefix, at, after, limit))
        # Compaction says so before it deletes: what was read is whole if it had not begun by now.
        self._check_past(at)
        return Page(entries, at, more)

    async def commit(self, txn: Txn) -> Committed:
        self._check()
        if len(self._in_flight) >= limits.STORE_QUEUE_COMMITS:
            raise Overloaded(f"{len(self._in_flight)} commits wait for the disk: come back later", retry_after_s=0.5)
        try:
            staged = self._head.stage(txn)
        except Conflict as conflict:
            metrics.STORE_CONFLICTS.inc()
            if self._in_flight and self._head.is_staged(conflict.facts["key"]):
                # What it lost against is not visible yet: had it answered now, a fresh read would show the old state.
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

    def subscribe(self, told: Told, failed: Failed, *, after: int) -> Callable[[], None]:
        return self._feed.subscribe(told, failed, after=after)

    async def compact(self, revision: int) -> None:
        """Refuses the past at once, then deletes it in small transactions that let commits through in between."""
        self._check()
        if revision > self.head:
            raise BadRequest(f"revision {revision} cannot be compacted: the newest is {self.head}")
        async with self._compacting:
            if revision <= self._compacted:
                return
            await self._job(partial(_set_mark, name="compacted", value=revision))
            self._compacted = revision
            metrics.STORE_COMPACTED.set(revision)
            self._feed.wake()
            while self._swept < revision:
                low, high = self._swept, min(revision, self._swept + limits.COMPACT_CHUNK_REVISIONS)
                await self._job(partial(_sweep, low=low, high=high))
                self._swept = high
                # Only now: until the old rows are gone, a key created again must name its removal as its prior.
                self._head.forget_removed(high)
        _log.info("history_compacted", path=str(self.path), revision=revision)

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]:
        self._check()
        through = self._head.sequence
        return await self._read(lambda: self._history.log(log, after, through, limit))

    async def trim_log(self, log: str, *, keep: int) -> None:
        """Deletes all but the newest `keep` records, in small transactions."""
        self._check()
        while await self._job(partial(_trim, log=log, keep=keep)):
            pass

    async def advance(self, revision: int) -> None:
        """Goes on from at least this revision: a restored cell never gives out one that was seen before the restore."""
        self._check()
        if self.head:
            raise BadRequest(f"only an empty store can be advanced, and {self.path} is at revision {self.head}")
        past = revision + limits.RESTORE_GAP_REVISIONS
        await self._job(partial(_set_mark, name="compacted", value=past))
        await self._job(partial(_set_mark, name="swept", value=past))
        self._compacted = self._swept = past
        self._head = Head((), {}, past, self._head.sequence)
        self._feed = Feed(past, limits.WATCH_RING_EVENTS)

    async def close(self) -> None:
        """Writes what is on its way, then lets go of the file."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.stop)
        # The writer's last reports were put on the loop before it ended: they run before this continues.
        await asyncio.sleep(0)
        await loop.run_in_executor(self._reader, self._history.close)
        self._reader.shutdown()
        self._lock.release()
        if self._failure is None:
            self._feed.fail(self._closed_fault())

    def _written(self, group: Sequence[Staged], seconds: float, error: Exception | None) -> None:
        """On the loop, after a group reached the disk: publish all of it, then wake whoever waits."""
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
        metrics.STORE_ROWS.inc(rows)
        metrics.STORE_GROUP.observe(len(group))
        metrics.STORE_COMMIT.observe(seconds)
        metrics.STORE_QUEUE.set(len(self._in_flight))

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        fault = self._failure = StoreFailed(
            f"the store {self.path} could not write ({error}) and has stopped: make room, then restart"
        )
        _log.error("store_stopped", path=str(self.path), error=str(error), commits_unknown=len(self._in_flight))
        self._feed.fail(fault)
        while self._in_flight:
            waiting = self._in_flight.popleft()
            if not waiting.done():
                waiting.set_exception(fault)

    async def _past_changes(self, after: int) -> Sequence[Change]:
        through = self.head
        return await self._read(lambda: self._history.changes(after, through))

    async def _read(self, work: Callable[[], T]) -> T:
        self._check()
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._reader, work)
        except apsw.Error as error:
            raise schema.unreadable(self.path, error) from error
        self._check()
        return found

    async def _job(self, work: Callable[[apsw.Connection], object]) -> object:
        finished: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(result: object, error: Exception | None) -> None:
            if error is not None:
                self._fail(error)
            if not finished.done():
                finished.set_result(result)

        self._check()
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
        return Unavailable(f"the store {self.path} is closed")

    def _check_past(self, at: int) -> None:
        if at < self._compacted:
            raise Expired(f"revision {at} is compacted up to {self._compacted}: list again")
        if at > self.head:
            raise BadRequest(f"revision {at} is in the future: the newest is {self.head}")


def _set_mark(connection: apsw.Connection, name: str, value: int) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))


def _sweep(connection: apsw.Connection, low: int, high: int) -> None:
    """Deletes what the changes in (low, high] replaced, and the removals among them."""
    connection.execute(
        "DELETE FROM history WHERE revision IN (SELECT previous FROM history WHERE revision > ? AND revision <= ?)",
        (low, high),
    )
    connection.execute("DELETE FROM history WHERE revision > ? AND revision <= ? AND value IS NULL", (low, high))
    _set_mark(connection, "swept", high)


def _trim(connection: apsw.Connection, log: str, keep: int) -> bool:
    """Deletes some of the oldest records beyond `keep`; whether there may be more."""
    newest = "SELECT sequence FROM log WHERE name = ? ORDER BY sequence DESC LIMIT 1 OFFSET ?"
    through = connection.execute(newest, (log, keep)).get
    if through is None:
        return False
    # The highest sequence ever deleted is remembered, so that none is given twice.
    connection.execute("UPDATE meta SET value = max(value, ?) WHERE name = 'trimmed'", (through,))
    oldest = "SELECT sequence FROM log WHERE name = ? AND sequence <= ? ORDER BY sequence LIMIT ?"
    connection.execute(f"DELETE FROM log WHERE sequence IN ({oldest})", (log, through, limits.COMPACT_CHUNK_REVISIONS))
    return connection.changes() == limits.COMPACT_CHUNK_REVISIONS
