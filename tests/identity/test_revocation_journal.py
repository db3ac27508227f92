"""The revocation journal beside a store: no recorded revocation is lost, whatever is torn or restored."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.cell import storage
from holdfast.cell.storage import StoreLocation
from holdfast.identity import revocation_journal
from holdfast.identity.restored_nodes import identities_in_backup, restore_identities
from holdfast.identity.revocation_journal import RevocationJournal, fully_revoked
from holdfast.model import codec
from holdfast.model.errors import StoreFailed
from holdfast.model.join import JoinToken, JoinTokenSpec, NodeIdentity, NodeIdentitySpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.store import backup
from holdfast.store.contract import Put, Txn
from holdfast.store.sqlite import SqliteStore


def node(name: str, generation: int, revoked: int = 0) -> NodeIdentity:
    spec = NodeIdentitySpec(generation=generation, key="k", revoked_generation=revoked)
    return NodeIdentity(metadata=ObjectMeta(name=name, uid=f"u-{name}"), spec=spec)


def put(item: Object) -> Put:
    return Put(kind_of(item).store_key("", item.metadata.name), codec.encode(item))


def facts(known: dict[str, NodeIdentity] | None) -> dict[str, tuple[int, int]]:
    return {n: (i.spec.generation, i.spec.revoked_generation) for n, i in (known or {}).items()}


@pytest.fixture
def journal(tmp_path: Path) -> RevocationJournal:
    made = RevocationJournal(tmp_path / revocation_journal.JOURNAL_FILE)
    assert made.read() is None
    made.rewrite({"a": node("a", 5), "b": node("b", 7)})
    return made


def test_journal_records_joins_and_revocations_but_no_renewals(journal: RevocationJournal) -> None:
    size = journal.path.stat().st_size
    renewed = msgspec.structs.replace(node("a", 5), spec=msgspec.structs.replace(node("a", 5).spec, serial="FF"))
    journal.record([(renewed, node("a", 5))])
    assert journal.path.stat().st_size == size
    journal.record([(node("a", 5, 5), node("a", 5)), (node("c", 12), None)])
    journal.record([(None, node("b", 7))])
    journal.record([(node("b", 20), None)])
    assert facts(RevocationJournal(journal.path).read()) == {"a": (5, 5), "b": (20, 7), "c": (12, 0)}
    assert journal.path.stat().st_mode & 0o077 == 0


def test_journal_with_torn_last_line_is_repaired(journal: RevocationJournal) -> None:
    journal.record([(node("a", 5, 5), node("a", 5))])
    whole = journal.path.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1]) + 1):
        journal.path.write_bytes(whole[:-cut])
        assert facts(RevocationJournal(journal.path).read()) == {"a": (5, 0), "b": (7, 0)}
    again = RevocationJournal(journal.path)
    assert again.rewrite({"a": node("a", 5, 5), "b": node("b", 7)}) == []
    assert facts(again.read()) == {"a": (5, 5), "b": (7, 0)}


def test_node_journal_with_invalid_line_raises_store_failed_naming_line(journal: RevocationJournal) -> None:
    journal.path.write_bytes(b"something else\n" + journal.path.read_bytes())
    with pytest.raises(StoreFailed, match=r"nodes.journal: line 1 is damaged"):
        journal.read()


def test_journal_reports_nodes_that_store_forgot(journal: RevocationJournal) -> None:
    journal.record([(node("a", 5, 5), node("a", 5))])
    assert RevocationJournal(journal.path).rewrite({"a": node("a", 5)}) == ["a"]
    assert facts(RevocationJournal(journal.path).read()) == {"a": (5, 5), "b": (7, 7)}


def test_journal_size_is_bounded(journal: RevocationJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.identity.revocation_journal.NODE_JOURNAL_EXTRA_LINES_MAX", 3)
    for generation in range(6, 60):
        journal.record([(node("a", generation, generation - 1), None)])
    assert len(journal.path.read_bytes().splitlines()) <= 2 * 2 + 3
    assert facts(journal.read())["a"] == (59, 58)


def test_journal_rewrites_after_failed_append(journal: RevocationJournal) -> None:
    here, away = journal.path, journal.path.with_name("away")
    here.rename(away)
    here.mkdir()
    with pytest.raises(IsADirectoryError):
        journal.record([(node("a", 5, 5), node("a", 5))])
    here.rmdir()
    away.rename(here)
    journal.record([(node("a", 5, 5), node("a", 5))])
    assert facts(journal.read()) == {"a": (5, 5), "b": (7, 0)}


TOKEN = JoinToken(metadata=ObjectMeta(name="rack"), spec=JoinTokenSpec(sha256="0" * 64))
SAVED = [put(node("a", 5)), put(node("b", 7)), put(TOKEN)]


def test_restored_identities_keep_revocations_and_later_joins() -> None:
    since = [{"a": node("a", 5, 5)}, {"b": node("b", 9), "c": node("c", 12)}]
    kept = restore_identities(SAVED, since, None)
    assert facts(identities_in_backup(kept)) == {"a": (5, 5), "b": (9, 0), "c": (12, 0)}
    assert len(kept) == 3, "join tokens are dropped: they may have been used or revoked since"
    assert facts(identities_in_backup(restore_identities(SAVED, [{"b": fully_revoked(node("b", 7))}], None)))["b"] == (
        7,
        7,
    )


def test_restore_without_journal_requires_operator_choice() -> None:
    no_journals: tuple[list[dict[str, NodeIdentity]], ...] = ([], [{}])
    for nothing in no_journals:
        with pytest.raises(StoreFailed, match=r"contains 2 nodes.*--node-journal.*--distrust-nodes.*--trust-nodes"):
            restore_identities(SAVED, nothing, None)
    assert facts(identities_in_backup(restore_identities(SAVED, [], trusted=True))) == {"a": (5, 0), "b": (7, 0)}
    assert facts(identities_in_backup(restore_identities(SAVED, [], trusted=False))) == {"a": (5, 5), "b": (7, 7)}
    assert restore_identities([], [], None) == [], "a cell without nodes has nothing to decide"


async def test_restore_merges_replaced_store_and_journals(tmp_path: Path) -> None:
    here = StoreLocation(cell="us-east", state=tmp_path / "here")
    here.state.mkdir()
    store = SqliteStore(here.file)
    await store.commit(Txn(writes=tuple(SAVED)))
    await store.close()
    await storage.back_up(here, tmp_path / "saved")
    store = SqliteStore(here.file)
    await store.commit(Txn(writes=(put(node("a", 5, 5)),)))
    await store.close()
    RevocationJournal(here.journal).rewrite({"a": node("a", 5), "b": node("b", 9)})

    await storage.restore(here, tmp_path / "saved", replace=True)
    assert facts(held(here)) == {"a": (5, 5), "b": (9, 0)}, "one from the replaced store, one from the journal"

    new = StoreLocation(cell="us-east", state=tmp_path / "new")
    with pytest.raises(StoreFailed, match="no revocation journal covers"):
        await storage.restore(new, tmp_path / "saved", replace=False)
    assert not new.file.exists(), "nothing is changed before the operator decides"
    await storage.restore(new, tmp_path / "saved", replace=False, journals=[here.journal])
    assert facts(held(new)) == {"a": (5, 0), "b": (9, 0)}
    distrusting = StoreLocation(cell="us-east", state=tmp_path / "third")
    await storage.restore(distrusting, tmp_path / "saved", replace=False, trust_nodes=False)
    assert facts(held(distrusting)) == {"a": (5, 5), "b": (7, 7)}


def held(place: StoreLocation) -> dict[str, NodeIdentity]:
    entries = backup.read_sqlite(place.cell, place.file).entries
    assert not [entry for entry in entries if entry.key.startswith("/jointokens/")]
    return identities_in_backup(entries)
