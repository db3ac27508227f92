"""Backup of a cell: one file with every object of one revision and the logs. It can be restored to any kind of store.

The first line is the header, each following line holds one object or log record, the last line holds counts and a
checksum. A truncated or modified file is refused before anything is written.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import msgspec

from holdfast.model import limits
from holdfast.model.errors import StoreFailed
from holdfast.store import schema
from holdfast.store.contract import Append, Compare, LogRecord, Put, Store, StoredEntry, Txn
from holdfast.store.history import HistoryReader

# Log records per page of a backup.
BACKUP_PAGE_RECORDS = 10_000

FORMAT = "holdfast-backup"
VERSION = 1
LOGS = ("audit",)
RESTORE_MARKER = "/restoring"
"""Key that exists while a store is being restored. A cell refuses to start on a store that has it."""


class BackupHeader(msgspec.Struct, frozen=True, rename="camel"):
    format: str
    version: int
    cell: str
    revision: int
    made_at: str


class BackupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object (`key` is set) or a log record (`log` is set)."""

    value: bytes
    key: str = ""
    log: str = ""


class BackupFooter(msgspec.Struct, frozen=True):
    entries: int
    records: int
    digest: str


class BackupContent(msgspec.Struct, frozen=True):
    cell: str
    revision: int
    entries: tuple[Put, ...]
    records: tuple[Append, ...]


async def read_store(cell: str, store: Store) -> BackupContent:
    """Everything a store holds, at one revision."""
    page = await store.range("")
    records = [Append(log, record.value) for log in LOGS async for record in _log(store, log)]
    return BackupContent(cell, page.revision, tuple(Put(e.key, e.value) for e in page.entries), tuple(records))


def read_sqlite(cell: str, path: Path) -> BackupContent:
    """Everything a SQLite file holds, while its cell keeps running."""
    if not path.exists():
        raise StoreFailed(f"store {path}: not found, so there is nothing to back up")
    history = HistoryReader(schema.open_reader(path))
    try:
        with history.snapshot():
            marks = history.meta()
            entries: Iterable[StoredEntry] = sorted(history.newest(), key=lambda entry: entry.key)
            records = [Append(log, r.value) for log in LOGS for r in history.log(log, 0, marks["sequence"], 1 << 62)]
        return BackupContent(cell, marks["revision"], tuple(Put(e.key, e.value) for e in entries), tuple(records))
    finally:
        history.close()


async def _log(store: Store, log: str) -> AsyncIterator[LogRecord]:
    after = 0
    while found := await store.read_log(log, after=after, limit=BACKUP_PAGE_RECORDS):
        for record in found:
            yield record
        after = found[-1].sequence


def write(content: BackupContent, path: Path, made_at: str) -> None:
    """Writes the file atomically."""
    digest = hashlib.sha256()
    new = path.with_name(f".{path.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
            head = BackupHeader(FORMAT, VERSION, content.cell, content.revision, made_at)
            for raw in (msgspec.json.encode(head), *_lines(content)):
                digest.update(raw)
                packed.write(raw + b"\n")
            seal = BackupFooter(len(content.entries), len(content.records), digest.hexdigest())
            packed.write(msgspec.json.encode(seal) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _lines(content: BackupContent) -> Iterator[bytes]:
    for put in content.entries:
        yield msgspec.json.encode(BackupRecord(value=put.value, key=put.key))
    for append in content.records:
        yield msgspec.json.encode(BackupRecord(value=append.value, log=append.log))


def read(path: Path) -> BackupContent:
    """A backup, completely verified."""
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
        head = msgspec.json.decode(lines[0], type=BackupHeader)
        if head.format != FORMAT or head.version != VERSION:
            found_format = f"{head.format} {head.version}"
            raise StoreFailed(f"backup {path}: wrong format (expected {FORMAT} {VERSION}, found {found_format})")
        seal = msgspec.json.decode(lines[-1], type=BackupFooter)
        digest = hashlib.sha256()
        for raw in lines[:-1]:
            digest.update(raw)
        found = [msgspec.json.decode(raw, type=BackupRecord) for raw in lines[1:-1]]
    except (OSError, EOFError, IndexError, msgspec.MsgspecError) as error:
        raise StoreFailed(f"backup {path}: unreadable or truncated ({error}); next: use another backup") from error
    entries = tuple(Put(line.key, line.value) for line in found if line.key)
    records = tuple(Append(line.log, line.value) for line in found if line.log)
    if seal != BackupFooter(len(entries), len(records), digest.hexdigest()):
        raise StoreFailed(f"backup {path}: modified or damaged (wrong checksum); next: use another backup")
    return BackupContent(head.cell, head.revision, entries, records)


async def restore_into(store: Store, content: BackupContent) -> int:
    """Writes everything into an empty store and returns the resulting revision. RESTORE_MARKER reveals an
    interrupted restore.
    """
    if (await store.range("", limit=1)).entries:
        raise StoreFailed("store: not empty; next: choose an empty store, or add --replace")
    await store.commit(Txn((Compare(RESTORE_MARKER, 0),), (Put(RESTORE_MARKER, b"{}"),)))
    size, batch = 0, list[Put]()
    for put in content.entries:
        if batch and (len(batch) >= limits.BATCH_WRITES_MAX or size + len(put.value) > limits.BATCH_BYTES_MAX):
            await store.commit(Txn(tuple(Compare(each.key, 0) for each in batch), tuple(batch)))
            size, batch = 0, []
        size += len(put.value)
        batch.append(put)
    if batch:
        await store.commit(Txn(tuple(Compare(each.key, 0) for each in batch), tuple(batch)))
    for start in range(0, len(content.records), limits.BATCH_WRITES_MAX):
        await store.commit(Txn(appends=content.records[start : start + limits.BATCH_WRITES_MAX]))
    return store.head
