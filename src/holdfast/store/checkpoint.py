"""Copies what the write-ahead log of a SQLite store has gathered into its file, on a thread and connection of its own.

What always holds: a commit is durable in the log before this begins, and the log is emptied only when all of it is in
the file; SQLite sees to both. It never makes a commit wait: done by the writer, as SQLite does by itself, copying
a thousand pages stands before whoever comes next. Where it cannot keep up, the writer copies (`GroupWriter`).
"""

from __future__ import annotations

import contextlib
import threading

import apsw

from holdfast.model import limits


class Checkpointer:
    """`grown` is called by the writer's thread, `stop` before the writer ends."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name=f"store-checkpoint {name}", daemon=True)
        self._thread.start()

    def grown(self, pages: int) -> None:
        """The log holds so many pages."""
        if pages >= limits.STORE_CHECKPOINT_PAGES:
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
            # What fails here is tried again with the next pages; an ill disk shows itself in the writer's commits.
            with contextlib.suppress(apsw.Error):
                if connection is None:
                    connection = apsw.Connection(self._path, flags=apsw.SQLITE_OPEN_READWRITE)
                    connection.wal_autocheckpoint(0)
                # As a statement: the call of that name does nothing on a connection that has not read yet.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if connection is not None:
            connection.close()
