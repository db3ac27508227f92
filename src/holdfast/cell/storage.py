"""Backup, restore and copy of a cell's store."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.authority import restore_records
from holdfast.cell.identity import identity_in, identity_put
from holdfast.gate.scope import GLOBAL_CELL
from holdfast.identity.cell_record import IdentityFile, RecordedIdentity, draw_identity, initialize
from holdfast.identity.restored_nodes import identities_in_backup, restore_identities
from holdfast.identity.revocation_journal import JOURNAL_FILE, RevocationJournal
from holdfast.identity.secret_keys import KEYS_FILE, KeyFile, check_secrets, create_keys
from holdfast.model import codec
from holdfast.model.cell_identity import CellIdentity, next_incarnation
from holdfast.model.errors import Fault, StoreFailed
from holdfast.model.kinds import kind_of
from holdfast.model.secret import Secret
from holdfast.model.times import seconds_text
from holdfast.store import backup
from holdfast.store.backup_record import read_backup_record, write_backup_record
from holdfast.store.contract import Remove, Store, Txn
from holdfast.store.etcd.target import EtcdTarget
from holdfast.store.mark import mark_path

__all__ = [
    "EtcdTarget",
    "StoreLocation",
    "accept_store",
    "back_up",
    "check_store",
    "copy_store",
    "declare_cell",
    "restore",
]

STORE_FILE = "store.sqlite"
# Revisions skipped above the newest known one by a restore or a copy, and lowest revision of a restored cell per
# incarnation, which counts seconds. A cell commits fewer revisions in a second, so no revision of an earlier era is
# used again, even if no record of that era is left.
REVISIONS_PER_INCARNATION = 1 << 22


class StoreLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Location of a cell's store: its state directory, and the etcd cluster if that holds the data."""

    cell: str
    state: Path
    etcd: EtcdTarget | None = None

    @property
    def file(self) -> Path:
        return self.state / STORE_FILE

    @property
    def journal(self) -> Path:
        return self.state / JOURNAL_FILE


def record_failure(place: StoreLocation, fault: Fault) -> None:
    """Notes that a backup failed. The last one that succeeded stays on record."""
    before, at = read_backup_record(place.state), seconds_text(time.time())
    write_backup_record(place.state, msgspec.structs.replace(before, failed_at=at, failure=fault.message))


async def back_up(place: StoreLocation, path: Path, *, verify: bool = False) -> tuple[int, int]:
    """Writes a backup while the cell runs. Returns the numbers of objects and log records.

    With `verify` the backup is restored into a temporary store and compared. A backup that fails it is renamed to
    `*.failed` and does not count as the cell's last backup.
    """
    from holdfast.cell.backup_verification import verify_backup

    made_at = seconds_text(time.time())
    before = read_backup_record(place.state)
    try:
        content = await _content(place)
        # An earlier backup at the same path is replaced only by one that is as good.
        new = path.with_name(f".{path.name}.unverified") if verify else path
        _write(content, new, made_at)
        if verify:
            await _verified(verify_backup(new, place.cell), new, path)
    except Fault as fault:
        record_failure(place, fault)
        raise
    record = msgspec.structs.replace(
        before, made_at=made_at, path=str(path), objects=len(content.entries), failed_at="", failure=""
    )
    if verify:
        record = msgspec.structs.replace(record, verified_at=seconds_text(time.time()), verified_path=str(path))
    write_backup_record(place.state, record)
    return len(content.entries), len(content.records)


def _write(content: backup.BackupContent, path: Path, made_at: str) -> None:
    try:
        backup.write(content, path, made_at)
    except OSError as error:
        path.with_name(f".{path.name}.new").unlink(missing_ok=True)
        text = f"backup {path}: cannot be written ({error.strerror or error}); next: free space, or choose another path"
        raise StoreFailed(text) from error


async def _verified(verification: Coroutine[Any, Any, object], new: Path, path: Path) -> None:
    """Puts the backup in place if it was verified, else renames it."""
    try:
        await verification
        os.replace(new, path)
    except OSError as error:
        os.unlink(new)
        text = f"backup {path}: not verified ({error.strerror or error}); next: free space for a restored store"
        raise StoreFailed(text) from error
    except Fault as fault:
        os.replace(new, f"{path}.failed")
        raise StoreFailed(f"{path}.failed: not verified by restoring it ({fault.message})") from fault


async def restore(
    place: StoreLocation,
    path: Path,
    *,
    replace: bool,
    journals: Sequence[Path] = (),
    trust_nodes: bool | None = None,
    other_identity: bool = False,
    secret_keys: Path | None = None,
    secret_keys_command: str = "",
    without_secrets: bool = False,
) -> int:
    """Fills the store from a backup as a new era of the cell, and returns its incarnation. The cell must be stopped.

    The incarnation and all revisions are above those of every earlier era that the backup, the replaced data or the
    record names, and by the clock above those that none of them names.

    Node identities newer than the backup come from the replaced data, from the cell's revocation journal, and from
    copies of it (`journals`). See identity/restored_nodes.py for `trust_nodes`.

    Secrets are restored only with the keys that open them (`secret_keys`), or left out. A region fetches copies again.
    """
    content = backup.read(path)
    if content.cell != place.cell:
        raise StoreFailed(f"{path}: backup of another cell (expected {place.cell}, found {content.cell})")
    keys = KeyFile(secret_keys or place.state / KEYS_FILE, secret_keys_command)
    content = _with_readable_secrets(place, content, keys, without_secrets=without_secrets)
    record, now_s = IdentityFile(place.state), time.time()
    recorded = record.read()
    held = await _replaced_content(place) if replace else None
    lives = [content, *([held] if held is not None else [])]
    own = _own_identity(place, path, recorded, lives, other_identity=other_identity)
    incarnations = [restore_records.incarnation_in(life.entries) for life in lives]
    known = max(*incarnations, own.incarnation, next_incarnation(0, now_s) - 1)
    since = [identities_in_backup(held.entries)] if held is not None else []
    since += [
        read for read in (RevocationJournal(each).read() for each in (place.journal, *journals)) if read is not None
    ]
    nodes = restore_identities(content.entries, since, trust_nodes)
    entries, incarnation = restore_records.restored_entries(place.cell, nodes, now_s, str(uuid.uuid4()), known)
    restored = CellIdentity(place.cell, own.identity, str(uuid.uuid4()), incarnation)
    above = max(*(life.revision for life in lives), recorded.revision if recorded is not None else 0)
    filled = msgspec.structs.replace(
        content,
        entries=(*entries, identity_put(restored, now_s)),
        revision=max(above + REVISIONS_PER_INCARNATION, incarnation * REVISIONS_PER_INCARNATION),
    )
    revision = await _fill(place, filled, replace=replace)
    # If the process dies before this, the store has a newer era than the record, which a start accepts.
    record.write(RecordedIdentity(restored, revision=revision))
    proof = msgspec.structs.replace(
        read_backup_record(place.state), restored_at=seconds_text(now_s), restored_from=str(path)
    )
    write_backup_record(place.state, proof)
    return incarnation


def _with_readable_secrets(
    place: StoreLocation, content: backup.BackupContent, keys: KeyFile, *, without_secrets: bool
) -> backup.BackupContent:
    kind = kind_of(Secret)
    stored = [codec.decode_value(kind, e.value) for e in content.entries if e.key.startswith(kind.prefix)]
    if place.cell == GLOBAL_CELL and not without_secrets:
        check_secrets(place.cell, stored, keys)
        return content
    kept = tuple(e for e in content.entries if not e.key.startswith(kind.prefix))
    return msgspec.structs.replace(content, entries=kept)


def _own_identity(
    place: StoreLocation,
    path: Path,
    recorded: RecordedIdentity | None,
    lives: Sequence[backup.BackupContent],
    *,
    other_identity: bool,
) -> CellIdentity:
    """The identity that the restored cell keeps, with the highest incarnation recorded for it."""
    saved, *held = (identity_in(life.entries) for life in lives)
    known = [each for each in (recorded.identity if recorded is not None else None, *held) if each is not None]
    own = known[0] if known else saved or draw_identity(place.cell)
    if saved is not None and saved.identity != own.identity:
        if not other_identity:
            raise StoreFailed(
                f"backup {path}: of another cell named {place.cell} (expected identity {own.identity}, found "
                f"{saved.identity}); next: use a backup of this cell, or add --other-identity to become that cell"
            )
        own = saved
    return msgspec.structs.replace(own, incarnation=max(each.incarnation for each in (own, *known)))


def check_store(place: StoreLocation) -> int:
    """Reads and verifies the whole SQLite file, while the cell runs or is stopped. Returns the number of rows."""
    from holdfast.store.scrubber import check_file

    return check_file(place.file)


def declare_cell(place: StoreLocation, *, new_identity: bool) -> CellIdentity:
    """Declares a new cell, whose first start creates the store. Draws the key of its Secrets."""
    place.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.file.exists() and place.file.stat().st_size:
        raise StoreFailed(f"store {place.file}: exists; next: start the cell, or move the file away")
    drawn = initialize(IdentityFile(place.state), place.cell, new_identity=new_identity)
    create_keys(place.state / KEYS_FILE)
    mark_path(place.file).unlink(missing_ok=True)
    return drawn


def accept_store(place: StoreLocation) -> CellIdentity:
    """Writes the missing record of a SQLite store, which the operator declares to be the newest of its cell."""
    record = IdentityFile(place.state)
    recorded = record.read()
    if recorded is not None and recorded.created:
        raise StoreFailed(f"{record.name}: exists, and the store must agree with it; next: start the cell")
    content = backup.read_sqlite(place.cell, place.file)
    found = identity_in(content.entries)
    if found is None or found.cell != place.cell:
        cell = found.cell if found is not None else "no identity"
        raise StoreFailed(f"store {place.file}: expected cell {place.cell}, found {cell}; next: correct --state")
    mark_path(place.file).unlink(missing_ok=True)
    record.write(RecordedIdentity(found, revision=content.revision))
    return found


async def copy_store(source: StoreLocation, target: StoreLocation) -> int:
    """Copies the store of a stopped cell to another store. Returns the number of objects."""
    if source.etcd is None:
        from holdfast.store.sqlite import SqliteStore

        # Opening takes the lock, which proves that the cell is stopped and keeps it so.
        store = SqliteStore(source.file)
        try:
            content = await backup.read_store(source.cell, store)
            await _copy(content, target)
        finally:
            await store.close()
    else:
        content = await _content(source)
        await _copy(content, target)
    return len(content.entries)


async def _copy(content: backup.BackupContent, target: StoreLocation) -> None:
    """Fills the target. The cell keeps its era, and its record counts the target's revisions from now on."""
    above = msgspec.structs.replace(content, revision=content.revision + REVISIONS_PER_INCARNATION)
    revision = await _fill(target, above, replace=False)
    kept = identity_in(content.entries)
    if kept is not None:
        IdentityFile(target.state).write(RecordedIdentity(kept, revision=revision))


async def _replaced_content(place: StoreLocation) -> backup.BackupContent | None:
    """The data to be replaced, if it is readable: its revisions must not be reused, and its revocations must stay."""
    try:
        return await _content(place)
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


async def _fill(place: StoreLocation, content: backup.BackupContent, *, replace: bool) -> int:
    """Fills a store with revisions above `content.revision`. Returns its newest one."""
    place.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.etcd is None:
        return await _fill_sqlite(place, content, replace=replace)
    from holdfast.store.etcd.identity import DataMarkFile
    from holdfast.store.etcd.store import erase, open_store

    if replace:
        await erase(place.cell, place.etcd)
    DataMarkFile(place.state).forget()
    store = await open_store(place.cell, place.etcd, place.state, above=content.revision)
    try:
        await backup.restore_into(store, content)
        revision = await _finish(store)
        await store.refuse_past()
        return revision
    finally:
        await store.close()


async def _fill_sqlite(place: StoreLocation, content: backup.BackupContent, *, replace: bool) -> int:
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
            revision = await _finish(store)
        finally:
            await store.close()
        # Move the write-ahead log into the file, because only the file is renamed.
        connection = schema.open_writer(new)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        for suffix in ("-wal", "-shm"):
            place.file.with_name(place.file.name + suffix).unlink(missing_ok=True)
        # Without a mark a file is accepted, so a crash between these steps does no harm.
        mark_path(place.file).unlink(missing_ok=True)
        new.replace(place.file)
        mark_path(new).replace(mark_path(place.file))
        return revision
    finally:
        lock.release()


async def _finish(store: Store) -> int:
    return (await store.commit(Txn(writes=(Remove(backup.RESTORE_MARKER),)))).revision
