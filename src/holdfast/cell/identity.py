"""Checks at start that the store is the one this cell used, by the record outside of it (identity/cell_record.py).

A cell starts only if its store agrees with the record. A new cell starts only from a record that `holdfast init-cell`
or `holdfast up` wrote. So a missing, emptied, older or foreign store is never taken for a new cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from holdfast.foundation.ports import Ports
from holdfast.identity.cell_record import IdentityRecord, RecordedIdentity, draw_identity
from holdfast.model import codec
from holdfast.model.cell_identity import FIRST_INCARNATION, IDENTITY_TERM, CellIdentity, identity_of_term, identity_term
from holdfast.model.election_term import INCARNATION_TERM, Term
from holdfast.model.errors import StoreFailed
from holdfast.model.kinds import kind_of
from holdfast.store.contract import Compare, Put, Store, Txn

# Interval at which the record notes the store's newest revision. A store that lost later revisions only is not refused
# by this record (the SQLite store has its own mark, see store/mark.py).
IDENTITY_RECORD_EVERY_S = 5.0
# Time for which a server of a cell on etcd waits for another server to create the cell, and the interval of its checks.
IDENTITY_WAIT_S = 60.0
IDENTITY_WAIT_STEP_S = 1.0

_TERM = kind_of(Term)
_AS_RESTORE = (
    "next: put the newest store back, or make this one a restore: holdfast backup --to FILE, then holdfast restore "
    "--from FILE --replace"
)
_log = structlog.get_logger()


def identity_put(identity: CellIdentity, now_s: float) -> Put:
    return Put(_TERM.store_key("", IDENTITY_TERM), codec.encode(identity_term(identity, now_s)))


def identity_in(entries: Iterable[Put]) -> CellIdentity | None:
    """The identity among the entries of a store or backup."""
    key = _TERM.store_key("", IDENTITY_TERM)
    value = next((put.value for put in entries if put.key == key), None)
    found = codec.decode(_TERM, value, 0) if value is not None else None
    return identity_of_term(found) if isinstance(found, Term) else None


async def stored_identity(store: Store) -> CellIdentity | None:
    return identity_of_term(await _term(store, IDENTITY_TERM))


async def establish_identity(
    store: Store, cell: str, record: IdentityRecord, ports: Ports, *, shared: bool = False
) -> CellIdentity:
    """The identity of the cell. Raises StoreFailed unless the store is the one that the record names.

    `shared`: several processes use the store, each with its own record (etcd). A process without a record then believes
    a store that has an identity, and waits for the process that creates it.
    """
    known, found = record.read(), await stored_identity(store)
    if shared and known is None and found is None:
        found = await _await_identity(store, cell, ports)
    head = await store.newest_revision()
    is_new = found is None
    if found is None:
        found, known = await _create(store, cell, record, known, ports), None
    elif found.cell != cell:
        raise StoreFailed(
            f"store of cell {cell}: belongs to another cell (expected {cell}, found {found.cell}); next: correct "
            "--cell or --state, or put the cell's own store back"
        )
    if known is not None and known.created:
        _check(cell, known, found, head, record)
    elif not is_new and not shared and (known is None or known.identity.identity != found.identity):
        expected = f"{record.name} is missing" if known is None else f"{record.name} declares a new cell"
        raise StoreFailed(
            f"store of cell {cell}: {expected}, but the store has {found}, so it may be an old copy; {_AS_RESTORE}; if "
            "nothing newer exists: holdfast init-cell --accept-store"
        )
    record.write(RecordedIdentity(found, revision=head))
    return found


async def _await_identity(store: Store, cell: str, ports: Ports) -> CellIdentity | None:
    """The identity of an empty store, once the process with the record has created it; None if none does in time."""
    deadline_s = ports.clock.monotonic() + IDENTITY_WAIT_S
    while not (await store.range("", limit=1)).entries and ports.clock.monotonic() < deadline_s:
        _log.info("identity_awaited", cell=cell, reason="the store is empty; another server has to create the cell")
        await ports.clock.sleep(IDENTITY_WAIT_STEP_S)
    return await stored_identity(store)


def check_may_be_empty(cell: str, record: IdentityRecord, known: RecordedIdentity | None, found: str) -> None:
    """Raises unless the record declares a new cell. `found` says what is there instead of a store with content."""
    if known is None:
        raise StoreFailed(
            f"store of cell {cell}: {found}, and {record.name} does not exist (expected at least one of them); next: "
            "for a new cell, holdfast init-cell; otherwise put the state directory back, or holdfast restore with a "
            "backup"
        )
    if known.created:
        raise _lost(cell, record, known, found)


def check_file(cell: str, record: IdentityRecord, file: Path) -> None:
    """Raises if the file of a cell that is not new is missing or empty, before an empty store is created in its
    place."""
    if not file.exists() or file.stat().st_size == 0:
        check_may_be_empty(cell, record, record.read(), f"{file} is {'empty' if file.exists() else 'missing'}")


def _lost(cell: str, record: IdentityRecord, known: RecordedIdentity, found: str) -> StoreFailed:
    return StoreFailed(
        f"store of cell {cell}: {found} ({record.name} expects {known.identity}, revision {known.revision} or later); "
        "next: put the store back, or holdfast restore --replace with a backup; to give up its content: holdfast "
        "init-cell --new-identity"
    )


async def _create(
    store: Store, cell: str, record: IdentityRecord, known: RecordedIdentity | None, ports: Ports
) -> CellIdentity:
    """Writes the identity into a store that has none: a new one, or one of an earlier release without a record."""
    is_empty = not (await store.range("", limit=1)).entries
    if is_empty:
        check_may_be_empty(cell, record, known, "empty")
    elif known is not None and known.created:
        raise _lost(cell, record, known, "of an earlier release")
    drawn = known.identity if known is not None else draw_identity(cell, ports.ids.uid)
    if drawn.cell != cell:
        raise StoreFailed(
            f"{record.name}: of another cell (expected {cell}, found {drawn.cell}); next: correct --state"
        )
    term = await _term(store, INCARNATION_TERM)
    made = msgspec.structs.replace(drawn, incarnation=term.spec.term if term is not None else FIRST_INCARNATION)
    put = identity_put(made, ports.clock.now())
    await store.commit(Txn((Compare(put.key, 0),), (put,)))
    _log.info("cell_identity_created", cell=cell, identity=made.identity, era=made.era, upgraded=not is_empty)
    return made


def _check(cell: str, known: RecordedIdentity, found: CellIdentity, head: int, record: IdentityRecord) -> None:
    """Refuses a store of another identity, of an earlier era, or with fewer revisions than the record."""
    expected = known.identity
    if found.identity != expected.identity:
        raise StoreFailed(
            f"store of cell {cell}: another cell of that name ({record.name} expects identity {expected.identity}, "
            f"found {found.identity}); {_AS_RESTORE}"
        )
    if found.incarnation < expected.incarnation or (
        found.incarnation == expected.incarnation and found.era != expected.era
    ):
        raise StoreFailed(
            f"store of cell {cell}: replaced by a restore ({record.name} expects era {expected.era}, incarnation "
            f"{expected.incarnation}; found era {found.era}, incarnation {found.incarnation}); {_AS_RESTORE}"
        )
    if found.era == expected.era and head < known.revision:
        raise StoreFailed(
            f"store of cell {cell}: old ({record.name} expects revision {known.revision} or later, found {head}); "
            f"{_AS_RESTORE}"
        )


async def _term(store: Store, name: str) -> Term | None:
    entry = await store.get(_TERM.store_key("", name))
    found = codec.decode(_TERM, entry.value, entry.revision) if entry is not None else None
    return found if isinstance(found, Term) else None


class IdentityRecorder:
    """Keeps the record's revision near the store's head, as a component of the cell's process."""

    def __init__(self, record: IdentityRecord, identity: CellIdentity, store: Store, ports: Ports) -> None:
        self._record = record
        self._identity = identity
        self._store = store
        self._ports = ports
        self._noted = 0

    async def start(self) -> None:
        await self._note()

    async def run(self) -> None:
        while True:
            await self._ports.clock.sleep(IDENTITY_RECORD_EVERY_S)
            await self._note()

    async def stop(self) -> None:
        await self._note()

    async def _note(self) -> None:
        head = self._store.head
        if head == self._noted:
            return
        try:
            await self._record.note(RecordedIdentity(self._identity, revision=head))
            self._noted = head
        except OSError as error:
            _log.warning("identity_record_write_failed", record=self._record.name, reason=str(error))
