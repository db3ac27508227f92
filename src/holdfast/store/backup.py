"""A cell's backup: one file with every object of one revision and the logs, for whichever store it is restored to.

The first line says what it is, each following line holds one object or log record, the last line counts and seals them.
A file that is cut short, or was changed, is refused before anything is written.
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
from holdfast.store.contract import Append, Compare, Entry, LogRecord, Put, Store, Txn
from holdfast.store.history import History

FORMAT = "holdfast-backup"
VERSION = 1
LOGS = ("audit",)
RESTORING = "/restoring"
"""Stands in a store while it is being filled: a cell refuses to start on it."""


class Head(msgspec.Struct, frozen=True, rename="camel"):
    format: str
    version: int
    cell: str
    revision: int
    made_at: str


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object (`key`), or a record of a log."""

    value: bytes
    key: str = ""
    log: str = ""


class Seal(msgspec.Struct, frozen=True):
    entries: int
    records: int
    digest: str


class Content(msgspec.Struct, frozen=True):
    cell: str
    revision: int
    entries: tuple[Put, ...]
    records: tuple[Append, ...]


async def read_store(cell: str, store: Store) -> Content:
    """Everything a store holds, at one revision."""
    page = await store.range("")
    records = [Append(log, record.value) for log in LOGS async for record in _log(store, log)]
    return Content(cell, page.revision, tuple(Put(e.key, e.value) for e in page.entries), tuple(records))


def read_sqlite(cell: str, path: Path) -> Content:
    """Everything a SQLite file holds, while the cell that owns it goes on."""
    if not path.exists():
        raise StoreFailed(f"{path} does not exist: there is no cell to back up")
    history = History(schema.open_reader(path))
    try:
        with history.snapshot():
            marks = history.meta()
            entries: Iterable[Entry] = sorted(history.newest(), key=lambda entry: entry.key)
            records = [Append(log, r.value) for log in LOGS for r in history.log(log, 0, marks["sequence"], 1 << 62)]
        return Content(cell, marks["revision"], tuple(Put(e.key, e.value) for e in entries), tuple(records))
    finally:
        history.close()


async def _log(store: Store, log: str) -> AsyncIterator[LogRecord]:
    after = 0
    while found := await store.read_log(log, after=after, limit=limits.BACKUP_PAGE_RECORDS):
        for record in found:
            yield record
        after = found[-1].sequence


def write(content: Content, path: Path, made_at: str) -> None:
    """The whole file or none."""
    digest = hashlib.sha256()
    new = path.with_name(f".{path.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
            head = Head(FORMAT, VERSION, content.cell, content.revision, made_at)
            for raw in (msgspec.json.encode(head), *_lines(content)):
                digest.update(raw)
                packed.write(raw + b"\n")
            seal = Seal(len(content.entries), len(content.records), digest.hexdigest())
            packed.write(msgspec.json.encode(seal) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _lines(content: Content) -> Iterator[bytes]:
    for put in content.entries:
        yield msgspec.json.encode(Line(value=put.value, key=put.key))
    for append in content.records:
        yield msgspec.json.encode(Line(value=append.value, log=append.log))


def read(path: Path) -> Content:
    """A backup, checked whole."""
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
        head = msgspec.json.decode(lines[0], type=Head)
        if head.format != FORMAT or head.version != VERSION:
            raise StoreFailed(f"{path} is a backup of another format ({head.format} {head.version})")
        seal = msgspec.json.decode(lines[-1], type=Seal)
        digest = hashlib.sha256()
        for raw in lines[:-1]:
            digest.update(raw)
        found = [msgspec.json.decode(raw, type=Line) for raw in lines[1:-1]]
    except (OSError, EOFError, IndexError, msgspec.MsgspecError) as error:
        raise StoreFailed(f"{path} is no whole backup ({error}): take another one") from error
    entries = tuple(Put(line.key, line.value) for line in found if line.key)
    records = tuple(Append(line.log, line.value) for line in found if line.log)
    if seal != Seal(len(entries), len(records), digest.hexdigest()):
        raise StoreFailed(f"{path} was changed or damaged: its seal does not fit; take another one")
    return Content(head.cell, head.revision, entries, records)


async def fill(store: Store, content: Content) -> int:
    """Writes everything into an empty store; answers the revision reached. What stops midway is seen at the start."""
    if (await store.range("", limit=1)).entries:
        raise StoreFailed("the store is not empty: name an empty one, or say --replace")
    await store.commit(Txn((Compare(RESTORING, 0),), (Put(RESTORING, b"{}"),)))
    size, batch = 0, list[Put]()
    for put in content.entries:
        if batch and (len(batch) >= limits.WRITES_JOINED or size + len(put.value) > limits.BYTES_JOINED):
            await store.commit(Txn(tuple(Compare(each.key, 0) for each in batch), tuple(batch)))
            size, batch = 0, []
        size += len(put.value)
        batch.append(put)
    if batch:
        await store.commit(Txn(tuple(Compare(each.key, 0) for each in batch), tuple(batch)))
    for start in range(0, len(content.records), limits.WRITES_JOINED):
        await store.commit(Txn(appends=content.records[start : start + limits.WRITES_JOINED]))
    return store.head
