"""The file of a SQLite store: its tables, and how it is opened, recognised and locked.

`history` has one row per change, ordered by revision. `previous` is the revision of the key's previous change (0:
none), and (key, previous) is unique: the schema itself refuses a second write on top of the same state. `last` is the
last revision of the row's commit, so that readers of history can keep commits whole. `stamp` in `meta` is random and
names this file. Every page has a checksum (page_checksums.py); a file of version 1 has none and is rewritten once.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

import apsw
import structlog

from holdfast.model.errors import StoreFailed
from holdfast.store import page_checksums

# Time to wait for a locked database file. After that, the store fails to open.
STORE_BUSY_TIMEOUT_S = 5.0
# Size to which SQLite truncates its write-ahead log after a checkpoint.
STORE_WAL_BYTES_MAX = 64 * 1024 * 1024

APPLICATION_ID = 0x484F4C44
VERSION = 2
VERSION_WITHOUT_CHECKSUMS = 1
STAMP_BITS = 62

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

_log = structlog.get_logger()

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
        connection = connect(path, _WRITER)
        _recognise(connection, path)
        if not _has_checksums(path):
            # A power loss in a checkpoint may tear the header. The log still has the page, and writes it again.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.close()
            if not _has_checksums(path):
                raise damaged(path, "the header does not announce page checksums")
            connection = connect(path, _WRITER)
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


def _has_checksums(path: Path) -> bool:
    return page_checksums.reserved_bytes(path) in (None, page_checksums.CHECKSUM_BYTES)


def open_reader(path: Path) -> apsw.Connection:
    """A read-only connection: history, while the writer continues."""
    return connect(path, _READER)


def damaged(path: Path, what: str) -> StoreFailed:
    return StoreFailed(f"store {path}: damaged ({what}); next: restore it from a backup (holdfast restore --replace)")


def unreadable(path: Path, error: Exception, reading: str = "") -> StoreFailed:
    """The fault for a file that cannot be used, with the cause and what was read."""
    while_reading = f", reading {reading}" if reading else ""
    if isinstance(error, apsw.NotADBError):
        return StoreFailed(f"store {path}: not a Holdfast store (not a SQLite database)")
    if isinstance(error, apsw.CorruptError):
        return damaged(path, f"{error}{while_reading}")
    if extended_result(error) == apsw.SQLITE_IOERR_DATA:
        return damaged(path, f"a page has a wrong checksum{while_reading}")
    return StoreFailed(f"store {path}: cannot open it ({error})")


def extended_result(error: Exception) -> int:
    """SQLite's extended result code; 0 for other errors."""
    return getattr(error, "extendedresult", 0)  # apsw sets it and does not declare it


def connect(path: Path, flags: int) -> apsw.Connection:
    connection = page_checksums.connect(path, flags)
    connection.set_busy_timeout(int(STORE_BUSY_TIMEOUT_S * 1000))
    return connection


def _recognise(connection: apsw.Connection, path: Path) -> None:
    application = connection.pragma("application_id")
    version = connection.pragma("user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if application == 0 and tables == 0:
        page_checksums.enable(connection)
        # Tables and ids are created in one transaction: a crash leaves an empty file.
        stamp = secrets.randbits(STAMP_BITS)
        connection.execute(f"BEGIN IMMEDIATE;{CREATE}INSERT INTO meta VALUES ('stamp', {stamp});COMMIT;")
        return
    if application != APPLICATION_ID:
        raise StoreFailed(f"store {path}: not a Holdfast store (SQLite application id {application:#x})")
    if version == VERSION_WITHOUT_CHECKSUMS:
        _add_checksums(connection, path)
    elif version != VERSION:
        raise StoreFailed(
            f"store {path}: wrong schema version (expected {VERSION}, found {version}); next: run the release that "
            "wrote it"
        )


def _add_checksums(connection: apsw.Connection, path: Path) -> None:
    """Rewrites a file of version 1 with a checksum in every page. A crash leaves the file as it was."""
    _log.info("store_upgrade_started", path=str(path), version=VERSION)
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    page_checksums.enable(connection)
    connection.execute("VACUUM")
    stamp = secrets.randbits(STAMP_BITS)
    connection.execute(
        f"BEGIN IMMEDIATE;INSERT OR IGNORE INTO meta VALUES ('stamp', {stamp});PRAGMA user_version = {VERSION};COMMIT;"
    )
    _log.info("store_upgraded", path=str(path), version=VERSION)
