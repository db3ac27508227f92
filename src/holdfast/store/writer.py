"""The writing thread of a SQLite store: all queued commits become one transaction.

A transaction is reported as done only after COMMIT returned, with synchronous=FULL. The first error stops the thread
permanently: everything queued behind it is reported as failed, because it is unknown what reached the disk. A full disk
is the exception: SQLite has rolled back, and nothing of the group is stored. Everything queued behind it was staged on
top of it and is refused too, until `probe` finds space again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from queue import Empty, SimpleQueue

import apsw
import msgspec

from holdfast.store import schema
from holdfast.store.checkpoint import Checkpointer
from holdfast.store.head import StagedValue
from holdfast.store.mark import StoreMark

# Commits made durable with one fsync. The rest waits for the next group.
STORE_GROUP_COMMITS_MAX = 1_024
# Pages of the write-ahead log at which the writer makes the checkpoint itself, because the thread does not keep up.
STORE_CHECKPOINT_PAGES_MAX = 8_000

# Free space that a full disk must have again before the store writes.
STORE_FULL_FREE_BYTES = 4 * 1024 * 1024

Job = Callable[[apsw.Connection], object]
"""Other work on the writing connection, in its own transaction (compaction)."""

Done = Callable[[Sequence[StagedValue], float, Exception | None], None]
JobDone = Callable[[object, Exception | None], None]


class LostFile(msgspec.Struct, frozen=True):
    path: str


class SpaceProbe(msgspec.Struct, frozen=True):
    done: JobDone


QueueItem = StagedValue | tuple[Job, JobDone] | LostFile | SpaceProbe | None

# Rows per INSERT, largest first. Each statement releases the GIL once, and reacquiring it may take milliseconds while
# the event loop is busy.
_ROWS_PER_STATEMENT = (128, 16, 1)
_HISTORY = ("revision", "key", "value", "created", "previous", "last")
_LOG = ("sequence", "name", "value")


_FULL_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_RESULTS = frozenset({apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE})


class DiskFull(Exception):
    """A group was not written, because the disk is full. Nothing of it is stored."""


class GroupWriter:
    """`done` and job results are called on the event loop, in the order of `put` and `run`."""

    def __init__(self, connection: apsw.Connection, name: str, mark: StoreMark, done: Done) -> None:
        self._connection = connection
        self._mark = mark
        self._done = done
        self._queue: SimpleQueue[QueueItem] = SimpleQueue()
        self._full: DiskFull | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None
        self._log_pages = 0
        self._checkpointer = Checkpointer(connection.filename, name, mark, self._on_lost_file)
        connection.wal_autocheckpoint(0)
        connection.set_wal_hook(self._wal_grown)
        self._thread = threading.Thread(target=self._run_thread, name=f"store-writer {name}", daemon=True)
        self._thread.start()

    def put(self, staged: StagedValue) -> None:
        self._loop = self._loop or asyncio.get_running_loop()
        self._queue.put(staged)

    def run(self, job: Job, done: JobDone) -> None:
        self._loop = self._loop or asyncio.get_running_loop()
        self._queue.put((job, done))

    def probe(self, done: JobDone) -> None:
        """Tries to write again after a full disk. `done` gets the error while it is still full."""
        self._queue.put(SpaceProbe(done))

    def stop(self) -> None:
        """Writes everything queued, then stops the thread. Blocks until then."""
        self._checkpointer.stop()
        self._queue.put(None)
        self._thread.join()

    def _run_thread(self) -> None:
        stopping = False
        while not stopping:
            group: list[StagedValue] = []
            for item in self._take():
                if isinstance(item, StagedValue):
                    group.append(item)
                    continue
                self._write(group)
                group = []
                if item is None:
                    stopping = True
                elif isinstance(item, LostFile):
                    self._save_from_lost_log(item.path)
                elif isinstance(item, SpaceProbe):
                    self._probe(self._connection)
                    self._report(item.done, None, self._failure or self._full)
                else:
                    self._run(*item)
            self._write(group)
        self._connection.close()
        self._mark.close()

    def _take(self) -> list[QueueItem]:
        """Waits for one item, then takes all others that are queued, in order."""
        taken = [self._queue.get()]
        while len(taken) < STORE_GROUP_COMMITS_MAX:
            try:
                taken.append(self._queue.get_nowait())
            except Empty:
                break
        return taken

    def _write(self, group: list[StagedValue]) -> None:
        if not group:
            return
        started = time.perf_counter()
        self._attempt(lambda: _insert(self._connection, group))
        refused = self._failure or self._full
        if refused is None:
            self._note(group)
        self._report(self._done, group, time.perf_counter() - started, refused)

    def _note(self, group: Sequence[StagedValue]) -> None:
        """Moves the mark before the callers are told: what they were told is always in it."""
        revision = next((staged.changes[-1].revision for staged in reversed(group) if staged.changes), 0)
        sequence = next((staged.appends[-1][0] for staged in reversed(group) if staged.appends), 0)
        self._mark.advance(revision, sequence)

    def _run(self, job: Job, done: JobDone) -> None:
        result = self._attempt(lambda: job(self._connection))
        self._report(done, result, self._failure or self._full)

    def _attempt(self, work: Callable[[], object]) -> object:
        """Runs work as one transaction. Remembers the first error and does nothing after it."""
        if self._failure is not None or self._full is not None:
            return None
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            result = work()
            self._connection.execute("COMMIT")
        except Exception as error:
            # Any exception: if the thread died silently, all callers would wait forever.
            full = self._is_disk_full(error)
            with contextlib.suppress(apsw.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            if full and self._is_unchanged():
                self._full = DiskFull(str(error))
            else:
                self._failure = error
            return None
        if self._log_pages >= STORE_CHECKPOINT_PAGES_MAX:
            with contextlib.suppress(apsw.Error):  # the commit is durable; the next one retries the checkpoint
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return result

    def _is_disk_full(self, error: Exception) -> bool:
        if isinstance(error, apsw.FullError):
            return True
        # A failed sync is no such error: it is unknown what it left on disk.
        return (
            isinstance(error, apsw.IOError)
            and schema.extended_result(error) in _FULL_RESULTS
            and self._connection.system_errno in _FULL_ERRNO
        )

    def _is_unchanged(self) -> bool:
        """Whether the database is rolled back to the last acknowledged commit."""
        newer = "EXISTS (SELECT 1 FROM history WHERE revision > ?) OR EXISTS (SELECT 1 FROM log WHERE sequence > ?)"
        try:
            return (
                not self._connection.in_transaction
                and self._connection.execute(f"SELECT {newer}", (self._mark.revision, self._mark.sequence)).get == 0
            )
        except apsw.Error:
            return False

    def _probe(self, connection: apsw.Connection) -> None:
        """Ends the refusal if the disk has space again and one small commit succeeds."""
        folder = os.statvfs(os.path.dirname(os.path.abspath(connection.filename)))
        if folder.f_bavail * folder.f_frsize < STORE_FULL_FREE_BYTES:
            return
        full, self._full = self._full, None
        self._attempt(lambda: connection.execute("UPDATE meta SET value = value WHERE name = 'swept'"))
        if self._full is None and self._failure is None:
            return
        self._full = self._full or full

    def _on_lost_file(self, path: str) -> None:
        """Called by the checkpoint thread: a file of the store is no longer the one that SQLite has open."""
        self._queue.put(LostFile(path))

    def _save_from_lost_log(self, path: str) -> None:
        """Copies the deleted log, which is still open, into the main file. Then the store stops."""
        if self._failure is None:
            with contextlib.suppress(apsw.Error):
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
            self._failure = RuntimeError(f"{path} was deleted or replaced while the store was open")
        self._report(self._done, (), 0.0, self._failure)

    def _wal_grown(self, connection: apsw.Connection, database: str, pages: int) -> int:
        """SQLite calls this after every commit, with the number of pages in the log."""
        self._log_pages = pages
        self._checkpointer.wal_grown(pages)
        return apsw.SQLITE_OK

    def _report(self, callback: Callable[..., None], *facts: object) -> None:
        # A closed event loop has no caller left.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback, *facts)


def _insert(connection: apsw.Connection, group: Sequence[StagedValue]) -> None:
    values: list[object] = []
    appends: list[object] = []
    for staged in group:
        last = staged.changes[-1].revision if staged.changes else 0
        for change, prior in zip(staged.changes, staged.priors, strict=True):
            entry = change.entry
            if entry is not None:
                values += (change.revision, change.key, entry.value, entry.created, prior, last)
            else:
                values += (change.revision, change.key, None, 0, prior, last)
        for sequence, append in staged.appends:
            appends += (sequence, append.log, append.value)
    _insert_rows(connection, "history", _HISTORY, values)
    _insert_rows(connection, "log", _LOG, appends)


def _insert_rows(connection: apsw.Connection, table: str, columns: tuple[str, ...], values: list[object]) -> None:
    at = 0
    for count in _ROWS_PER_STATEMENT:
        width = count * len(columns)
        while len(values) - at >= width:
            connection.execute(_statement(table, columns, count), tuple(values[at : at + width]))
            at += width


@cache
def _statement(table: str, columns: tuple[str, ...], rows: int) -> str:
    row = f"({','.join('?' * len(columns))})"
    return f"INSERT INTO {table}({', '.join(columns)}) VALUES {','.join([row] * rows)}"
