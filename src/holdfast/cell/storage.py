"""Backup, restore and copy of a cell's store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.authority import restore_records
from holdfast.identity.restored_nodes import identities_in_backup, restore_identities
from holdfast.identity.revocation_journal import JOURNAL_FILE, RevocationJournal
from holdfast.model.errors import StoreFailed
from holdfast.model.times import seconds_text
from holdfast.store import backup
from holdfast.store.contract import Put, Remove, Store, Txn
from holdfast.store.etcd.target import EtcdTarget

__all__ = ["EtcdTarget", "StoreLocation", "back_up", "copy_store", "restore"]


class StoreLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Location of a cell's store: its state directory, and the etcd cluster if that holds the data."""

    cell: str
    state: Path
    etcd: EtcdTarget | None = None

    @property
    def file(self) -> Path:
        return self.state / "store.sqlite"

    @property
    def journal(self) -> Path:
        return self.state / JOURNAL_FILE


async def back_up(place: StoreLocation, path: Path) -> tuple[int, int]:
    """Writes a backup while the cell runs. Returns the numbers of objects and log records."""
    content = await _content(place)
    backup.write(content, path, seconds_text(time.time()))
    return len(content.entries), len(content.records)


async def restore(
    place: StoreLocation, path: Path, *, replace: bool, journals: Sequence[Path] = (), trust_nodes: bool | None = None
) -> int:
    """Fills the store from a backup as a new incarnation of the cell, and returns its number. The cell must be stopped.

    Node identities newer than the backup come from the replaced data, from the cell's revocation journal, and from
    copies of it (`journals`). See identity/restored_nodes.py for `trust_nodes`.
    """
    content = backup.read(path)
    if content.cell != place.cell:
        raise StoreFailed(f"{path}: backup of another cell (expected {place.cell}, found {content.cell})")
    held = await _replaced_entries(place) if replace else None
    key = restore_records.incarnation_key()
    known = (
        restore_records.incarnation_of(next((put.value for put in held if put.key == key), None))
        if held is not None
        else 1
    )
    since = [identities_in_backup(held)] if held is not None else []
    since += [
        read for read in (RevocationJournal(each).read() for each in (place.journal, *journals)) if read is not None
    ]
    nodes = restore_identities(content.entries, since, trust_nodes)
    entries, incarnation = restore_records.restored_entries(place.cell, nodes, time.time(), str(uuid.uuid4()), known)
    await _fill(place, msgspec.structs.replace(content, entries=tuple(entries)), replace=replace)
    return incarnation


async def copy_store(source: StoreLocation, target: StoreLocation) -> int:
    """Copies the store of a stopped cell to another store. Returns the number of objects."""
    if source.etcd is None:
        from holdfast.store.sqlite import SqliteStore

        # Opening takes the lock, which proves that the cell is stopped and keeps it so.
        store = SqliteStore(source.file)
        try:
            content = await backup.read_store(source.cell, store)
            await _fill(target, content, replace=False)
        finally:
            await store.close()
    else:
        content = await _content(source)
        await _fill(target, content, replace=False)
    return len(content.entries)


async def _replaced_entries(place: StoreLocation) -> tuple[Put, ...] | None:
    """The data to be replaced, if it is readable: its incarnation must not be reused, and its revocations must stay."""
    try:
        return (await _content(place)).entries
    except StoreFailed:
        return None


async def _content(place: StoreLocation) -> backup.BackupContent:
    if place.etcd is None:
        return backup.read_sqlite(place.cell, place.file)
    from holdfast.store.etcd.store import open_store

    store = await open_store(place.cell, place.etcd)
    try:
        return await backup.read_store(place.cell, store)
    finally:
        await store.close()


async def _fill(place: StoreLocation, content: backup.BackupContent, *, replace: bool) -> None:
    place.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.etcd is None:
        await _fill_sqlite(place, content, replace=replace)
        return
    from holdfast.store.etcd.identity import DataMarkFile
    from holdfast.store.etcd.store import erase, open_store

    if replace:
        await erase(place.cell, place.etcd)
    DataMarkFile(place.state).forget()
    store = await open_store(place.cell, place.etcd, place.state)
    try:
        await backup.restore_into(store, content)
        await _finish(store)
    finally:
        await store.close()


async def _fill_sqlite(place: StoreLocation, content: backup.BackupContent, *, replace: bool) -> None:
    """Fills a new file, and replaces the old one only when the new one is complete."""
    from holdfast.store import schema
    from holdfast.store.sqlite import SqliteStore

    lock = schema.FileLock(place.file)
    try:
        if place.file.exists() and not replace:
            raise StoreFailed(f"{place.file}: already exists; next: add --replace, or choose another directory")
        new = place.state / "restoring" / place.file.name
        new.parent.mkdir(exist_ok=True)
        for old in new.parent.iterdir():
            old.unlink()
        store = SqliteStore(new)
        try:
            await store.advance(content.revision)
            await backup.restore_into(store, content)
            await _finish(store)
        finally:
            await store.close()
        # Move the write-ahead log into the file, because only the file is renamed.
        connection = schema.open_writer(new)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        for suffix in ("-wal", "-shm"):
            place.file.with_name(place.file.name + suffix).unlink(missing_ok=True)
        new.replace(place.file)
    finally:
        lock.release()


async def _finish(store: Store) -> None:
    await store.commit(Txn(writes=(Remove(backup.RESTORE_MARKER),)))
