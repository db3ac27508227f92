"""What an operator does with a cell's store from outside: back it up, restore it, move it to another store."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import msgspec

from holdfast.authority import rejoin
from holdfast.model.errors import StoreFailed
from holdfast.model.times import seconds_text
from holdfast.store import backup
from holdfast.store.contract import Remove, Store, Txn
from holdfast.store.etcd.target import Target

__all__ = ["Place", "Target", "copy", "restore", "save"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's store: its own directory, and the etcd cluster where that holds the data."""

    cell: str
    state: Path
    etcd: Target | None = None

    @property
    def file(self) -> Path:
        return self.state / "store.sqlite"


async def save(place: Place, path: Path) -> tuple[int, int]:
    """Writes a backup while the cell goes on; answers how many objects and log records it holds."""
    content = await _content(place)
    backup.write(content, path, seconds_text(time.time()))
    return len(content.entries), len(content.records)


async def restore(place: Place, path: Path, *, replace: bool) -> int:
    """Fills the store from a backup, as a new incarnation of the cell; answers which. The cell must be stopped."""
    content = backup.read(path)
    if content.cell != place.cell:
        raise StoreFailed(f"{path} is a backup of the cell {content.cell}, not of {place.cell}")
    known = await _incarnation(place) if replace else 1
    entries, incarnation = rejoin.restored(place.cell, content.entries, time.time(), str(uuid.uuid4()), known)
    await _fill(place, msgspec.structs.replace(content, entries=tuple(entries)), replace=replace)
    return incarnation


async def copy(source: Place, target: Place) -> int:
    """Moves a stopped cell to another store, as it is; answers how many objects it has."""
    if source.etcd is None:
        from holdfast.store.sqlite import SqliteStore

        # Opened, not only read: the lock proves that the cell is stopped and stays so.
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


async def _incarnation(place: Place) -> int:
    """That of the data which is given up, as far as it can still be read: none may be used twice."""
    try:
        held = await _content(place)
    except StoreFailed:
        return 1
    key = rejoin.incarnation_key()
    return rejoin.incarnation_of(next((put.value for put in held.entries if put.key == key), None))


async def _content(place: Place) -> backup.Content:
    if place.etcd is None:
        return backup.read_sqlite(place.cell, place.file)
    from holdfast.store.etcd.store import open_store

    store = await open_store(place.cell, place.etcd)
    try:
        return await backup.read_store(place.cell, store)
    finally:
        await store.close()


async def _fill(place: Place, content: backup.Content, *, replace: bool) -> None:
    place.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.etcd is None:
        await _fill_sqlite(place, content, replace=replace)
        return
    from holdfast.store.etcd.identity import MarkFile
    from holdfast.store.etcd.store import erase, open_store

    if replace:
        await erase(place.cell, place.etcd)
    MarkFile(place.state).forget()
    store = await open_store(place.cell, place.etcd, place.state)
    try:
        await backup.fill(store, content)
        await _finish(store)
    finally:
        await store.close()


async def _fill_sqlite(place: Place, content: backup.Content, *, replace: bool) -> None:
    """Into a new file beside the old one, which takes its place only when it is whole."""
    from holdfast.store import schema
    from holdfast.store.sqlite import SqliteStore

    lock = schema.FileLock(place.file)
    try:
        if place.file.exists() and not replace:
            raise StoreFailed(f"{place.file} exists already: say --replace, or name another directory")
        new = place.state / "restoring" / place.file.name
        new.parent.mkdir(exist_ok=True)
        for old in new.parent.iterdir():
            old.unlink()
        store = SqliteStore(new)
        try:
            await store.advance(content.revision)
            await backup.fill(store, content)
            await _finish(store)
        finally:
            await store.close()
        # Everything into the one file that is moved: what still stands in its log would be left behind.
        connection = schema.open_writer(new)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        for suffix in ("-wal", "-shm"):
            place.file.with_name(place.file.name + suffix).unlink(missing_ok=True)
        new.replace(place.file)
    finally:
        lock.release()


async def _finish(store: Store) -> None:
    await store.commit(Txn(writes=(Remove(backup.RESTORING),)))
