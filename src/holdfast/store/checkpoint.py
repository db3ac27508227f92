"""Checkpoints the write-ahead log of a SQLite store into its main file, on a thread and connection of its own.

A commit is durable in the log before this begins, and SQLite resets the log only after all of it is in the main file. A
checkpoint never delays a commit: SQLite's automatic checkpoint would run in the writer, and copying a thousand pages
would block the next commit. If this thread cannot keep up, the writer checkpoints (`GroupWriter`).

Every second the thread also syncs the mark, and checks that the store's files are still those that SQLite has open.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from holdfast.store import schema
from holdfast.store.mark import StoreMark

# Pages of the write-ahead log at which a background thread starts a checkpoint. SQLite's own default.
STORE_CHECKPOINT_PAGES = 1_000
# Interval at which the mark is synced and the store's files are checked. After a power failure, commits of the last
# interval are durable, but their loss would not be noticed.
STORE_FILES_CHECK_EVERY_S = 1.0


class Checkpointer:
    """Background thread that checkpoints. The writer calls `wal_grown` after each commit, `stop` before it ends."""

    def __init__(self, path: str, name: str, mark: StoreMark, on_lost: Callable[[str], None]) -> None:
        """`on_lost` is called once with the file that was deleted or replaced under the running store."""
        self._path = path
        self._mark = mark
        self._on_lost = on_lost
        self._files = {each: _inode(each) for each in (path, f"{path}-wal")}
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name=f"store-checkpoint {name}", daemon=True)
        self._thread.start()

    def wal_grown(self, pages: int) -> None:
        """Called with the number of pages in the log."""
        if pages >= STORE_CHECKPOINT_PAGES:
            self._wanted.set()

    def stop(self) -> None:
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    def _work(self) -> None:
        connection = None
        while True:
            pages_wanted = self._wanted.wait(STORE_FILES_CHECK_EVERY_S)
            self._wanted.clear()
            if self._stopping:
                break
            self._mark.sync()
            self._check_files()
            if not pages_wanted:
                continue
            # A failure is retried with the next pages; a disk failure surfaces in the writer's commits.
            with contextlib.suppress(apsw.Error):
                if connection is None:
                    connection = schema.connect(Path(self._path), apsw.SQLITE_OPEN_READWRITE)
                    connection.wal_autocheckpoint(0)
                # Executed as a statement: `wal_checkpoint()` does nothing on a connection that has not read yet.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if connection is not None:
            connection.close()

    def _check_files(self) -> None:
        for each, before in list(self._files.items()):
            if before is not None and _inode(each) != before:
                self._files.clear()
                self._on_lost(each)
                return


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
