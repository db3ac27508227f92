"""Checkpoints the write-ahead log of a SQLite store into its main file, on a thread and connection of its own.

A commit is durable in the log before this begins, and SQLite resets the log only after all of it is in the main file. A
checkpoint never delays a commit: SQLite's automatic checkpoint would run in the writer, and copying a thousand pages
would block the next commit. If this thread cannot keep up, the writer checkpoints (`GroupWriter`).
"""

from __future__ import annotations

import contextlib
import threading

import apsw

# Pages of the write-ahead log at which a background thread starts a checkpoint. SQLite's own default.
STORE_CHECKPOINT_PAGES = 1_000


class Checkpointer:
    """Background thread that checkpoints. The writer calls `wal_grown` after each commit, `stop` before it ends."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
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
            self._wanted.wait()
            self._wanted.clear()
            if self._stopping:
                break
            # A failure is retried with the next pages; a disk failure surfaces in the writer's commits.
            with contextlib.suppress(apsw.Error):
                if connection is None:
                    connection = apsw.Connection(self._path, flags=apsw.SQLITE_OPEN_READWRITE)
                    connection.wal_autocheckpoint(0)
                # Executed as a statement: `wal_checkpoint()` does nothing on a connection that has not read yet.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if connection is not None:
            connection.close()
