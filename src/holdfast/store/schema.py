"""The file of a SQLite store: its tables, and how it is opened, recognised and locked.

`history` has one row per change, ordered by revision. `previous` is the revision of the key's previous change (0:
none), and (key, previous) is unique: the schema itself refuses a second write on top of the same state. `last` is the
last revision of the row's commit, so that readers of history can keep commits whole.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import apsw

from holdfast.model.errors import StoreFailed

# Time to wait for a locked database file. Then the store fails to open.
STORE_BUSY_TIMEOUT_S = 5.0
# Size to which SQLite truncates its write-ahead log after a checkpoint.
STORE_WAL_BYTES_MAX = 64 * 1024 * 1024

APPLICATION_ID = 0x484F4C44
VERSION = 1

CREATE = f"""
CREATE TABLE history(
    revision INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    value BLOB,
    created INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    last INTEGER NOT NULL
);
CREATE UNIQUE INDEX history_swap ON history(key, previous);
CREATE INDEX history_removed ON history(key) WHERE value IS NULL;
CREATE TABLE log(sequence INTEGER PRIMARY KEY, name TEXT NOT NULL, value BLOB NOT NULL);
CREATE INDEX log_name ON log(name, sequence);
CREATE TABLE meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO meta(name, value) VALUES ('compacted', 0), ('swept', 0), ('trimmed', 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""

_READER = apsw.SQLITE_OPEN_READONLY
_WRITER = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


class FileLock:
    """Held while a store is open: one process per file. The kernel releases it when the process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        try:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreFailed(f"store {path}: cannot create the lock file {self._path} ({error.strerror})") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._handle)
            raise StoreFailed(
                f"store {path}: in use by process {holder}; next: stop that process",
                facts={"path": str(path), "pid": holder},
            ) from None
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        os.close(self._handle)


def open_writer(path: Path) -> apsw.Connection:
    """The writing connection, with the schema in place. Refuses files of other programs."""
    connection = None
    try:
        connection = _connect(path, _WRITER)
        _recognise(connection, path)
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {STORE_WAL_BYTES_MAX}").fetchall()
    except apsw.Error as error:
        if connection is not None:
            connection.close()
        raise unreadable(path, error) from error
    except StoreFailed:
        if connection is not None:
            connection.close()
        raise
    return connection


def open_reader(path: Path) -> apsw.Connection:
    """A read-only connection: history, while the writer continues."""
    return _connect(path, _READER)


def unreadable(path: Path, error: Exception) -> StoreFailed:
    """The fault for a file that cannot be used, with the cause."""
    if isinstance(error, apsw.NotADBError):
        return StoreFailed(f"store {path}: not a Holdfast store (not a SQLite database)")
    if isinstance(error, apsw.CorruptError):
        return StoreFailed(f"store {path}: damaged ({error}); next: restore it from a backup")
    return StoreFailed(f"store {path}: cannot open it ({error})")


def _connect(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(int(STORE_BUSY_TIMEOUT_S * 1000))
    return connection


def _recognise(connection: apsw.Connection, path: Path) -> None:
    application = connection.pragma("application_id")
    version = connection.pragma("user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if application == 0 and tables == 0:
        # Tables and ids are created in one transaction: a crash leaves an empty file.
        connection.execute(f"BEGIN IMMEDIATE;{CREATE}COMMIT;")
        return
    if application != APPLICATION_ID:
        raise StoreFailed(f"store {path}: not a Holdfast store (SQLite application id {application:#x})")
    if version != VERSION:
        raise StoreFailed(
            f"store {path}: wrong schema version (expected {VERSION}, found {version}); next: run the release that "
            "wrote it"
        )
