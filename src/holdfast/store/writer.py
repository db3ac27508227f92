"""The writing thread of a SQLite store: all queued commits become one transaction.

A transaction is reported as done only after COMMIT returned, with synchronous=FULL. The first error stops the thread
permanently: everything queued behind it is reported as failed, because it is unknown what reached the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from queue import Empty, SimpleQueue

import apsw

from holdfast.store.checkpoint import Checkpointer
from holdfast.store.head import StagedValue

# Commits made durable with one fsync. The rest waits for the next group.
STORE_GROUP_COMMITS_MAX = 1_024
# Pages of the write-ahead log at which the writer makes the checkpoint itself, because the thread does not keep up.
STORE_CHECKPOINT_PAGES_MAX = 8_000

Job = Callable[[apsw.Connection], object]
"""Other work on the writing connection, in its own transaction (compaction)."""

Done = Callable[[Sequence[StagedValue], float, Exception | None], None]
JobDone = Callable[[object, Exception | None], None]

# Rows per INSERT, largest first. Each statement releases the GIL once, and reacquiring it may take milliseconds while
# the event loop is busy.
_ROWS_PER_STATEMENT = (128, 16, 1)
_HISTORY = ("revision", "key", "value", "created", "previous", "last")
_LOG = ("sequence", "name", "value")


class GroupWriter:
    """`done` and job results are called on the event loop, in the order of `put` and `run`."""

    def __init__(self, connection: apsw.Connection, name: str, done: Done) -> None:
        self._connection = connection
        self._done = done
        self._queue: SimpleQueue[StagedValue | tuple[Job, JobDone] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None
        self._log_pages = 0
        self._checkpointer = Checkpointer(connection.filename, name)
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
                else:
                    self._run(*item)
            self._write(group)
        self._connection.close()

    def _take(self) -> list[StagedValue | tuple[Job, JobDone] | None]:
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
        self._report(self._done, group, time.perf_counter() - started, self._failure)

    def _run(self, job: Job, done: JobDone) -> None:
        result = self._attempt(lambda: job(self._connection))
        self._report(done, result, self._failure)

    def _attempt(self, work: Callable[[], object]) -> object:
        """Runs work as one transaction. Remembers the first error and does nothing after it."""
        if self._failure is not None:
            return None
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            result = work()
            self._connection.execute("COMMIT")
        except Exception as error:
            # Any exception: if the thread died silently, all callers would wait forever.
            self._failure = error
            with contextlib.suppress(apsw.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return None
        if self._log_pages >= STORE_CHECKPOINT_PAGES_MAX:
            with contextlib.suppress(apsw.Error):  # the commit is durable; the next one retries the checkpoint
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return result

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
