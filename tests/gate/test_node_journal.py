"""The revocation journal beside a store: no recorded revocation is lost, whatever is torn or restored."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast import cell_storage
from holdfast.cell_storage import Place
from holdfast.gate import node_journal
from holdfast.gate.node_journal import NodeJournal, ended
from holdfast.gate.restored_nodes import identities, restored_nodes
from holdfast.model import codec, limits
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
def journal(tmp_path: Path) -> NodeJournal:
    made = NodeJournal(tmp_path / node_journal.FILE)
    assert made.read() is None
    made.begin({"a": node("a", 5), "b": node("b", 7)})
    return made


def test_journal_records_joins_and_revocations_but_no_renewals(journal: NodeJournal) -> None:
    size = journal.path.stat().st_size
    renewed = msgspec.structs.replace(node("a", 5), spec=msgspec.structs.replace(node("a", 5).spec, serial="FF"))
    journal.note([(renewed, node("a", 5))])
    assert journal.path.stat().st_size == size
    journal.note([(node("a", 5, 5), node("a", 5)), (node("c", 12), None)])
    journal.note([(None, node("b", 7))])
    journal.note([(node("b", 20), None)])
    assert facts(NodeJournal(journal.path).read()) == {"a": (5, 5), "b": (20, 7), "c": (12, 0)}
    assert journal.path.stat().st_mode & 0o077 == 0


def test_journal_with_torn_last_line_is_repaired(journal: NodeJournal) -> None:
    journal.note([(node("a", 5, 5), node("a", 5))])
    whole = journal.path.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1]) + 1):
        journal.path.write_bytes(whole[:-cut])
        assert facts(NodeJournal(journal.path).read()) == {"a": (5, 0), "b": (7, 0)}
    again = NodeJournal(journal.path)
    assert again.begin({"a": node("a", 5, 5), "b": node("b", 7)}) == []
    assert facts(again.read()) == {"a": (5, 5), "b": (7, 0)}


def test_node_journal_with_invalid_line_raises_store_failed_naming_line(journal: NodeJournal) -> None:
    journal.path.write_bytes(b"something else\n" + journal.path.read_bytes())
    with pytest.raises(StoreFailed, match=r"nodes.journal: line 1 is damaged"):
        journal.read()


def test_journal_reports_nodes_that_store_forgot(journal: NodeJournal) -> None:
    journal.note([(node("a", 5, 5), node("a", 5))])
    assert NodeJournal(journal.path).begin({"a": node("a", 5)}) == ["a"]
    assert facts(NodeJournal(journal.path).read()) == {"a": (5, 5), "b": (7, 7)}


def test_journal_size_is_bounded(journal: NodeJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NODE_JOURNAL_SPARE_LINES", 3)
    for generation in range(6, 60):
        journal.note([(node("a", generation, generation - 1), None)])
    assert len(journal.path.read_bytes().splitlines()) <= 2 * 2 + 3
    assert facts(journal.read())["a"] == (59, 58)


def test_journal_rewrites_after_failed_append(journal: NodeJournal) -> None:
    here, away = journal.path, journal.path.with_name("away")
    here.rename(away)
    here.mkdir()
    with pytest.raises(IsADirectoryError):
        journal.note([(node("a", 5, 5), node("a", 5))])
    here.rmdir()
    away.rename(here)
    journal.note([(node("a", 5, 5), node("a", 5))])
    assert facts(journal.read()) == {"a": (5, 5), "b": (7, 0)}


TOKEN = JoinToken(metadata=ObjectMeta(name="rack"), spec=JoinTokenSpec(sha256="0" * 64))
SAVED = [put(node("a", 5)), put(node("b", 7)), put(TOKEN)]


def test_restored_identities_keep_revocations_and_later_joins() -> None:
    since = [{"a": node("a", 5, 5)}, {"b": node("b", 9), "c": node("c", 12)}]
    kept = restored_nodes(SAVED, since, None)
    assert facts(identities(kept)) == {"a": (5, 5), "b": (9, 0), "c": (12, 0)}
    assert len(kept) == 3, "join tokens are dropped: they may have been used or revoked since"
    assert facts(identities(restored_nodes(SAVED, [{"b": ended(node("b", 7))}], None)))["b"] == (7, 7)


def test_restore_without_journal_requires_operator_choice() -> None:
    for nothing in ([], [{}]):
        with pytest.raises(StoreFailed, match=r"contains 2 nodes.*--node-journal.*--distrust-nodes.*--trust-nodes"):
            restored_nodes(SAVED, nothing, None)
    assert facts(identities(restored_nodes(SAVED, [], trusted=True))) == {"a": (5, 0), "b": (7, 0)}
    assert facts(identities(restored_nodes(SAVED, [], trusted=False))) == {"a": (5, 5), "b": (7, 7)}
    assert restored_nodes([], [], None) == [], "a cell without nodes has nothing to decide"


async def test_restore_merges_replaced_store_and_journals(tmp_path: Path) -> None:
    here = Place(cell="us-east", state=tmp_path / "here")
    here.state.mkdir()
    store = SqliteStore(here.file)
    await store.commit(Txn(writes=tuple(SAVED)))
    await store.close()
    await cell_storage.save(here, tmp_path / "saved")
    store = SqliteStore(here.file)
    await store.commit(Txn(writes=(put(node("a", 5, 5)),)))
    await store.close()
    NodeJournal(here.journal).begin({"a": node("a", 5), "b": node("b", 9)})

    await cell_storage.restore(here, tmp_path / "saved", replace=True)
    assert facts(held(here)) == {"a": (5, 5), "b": (9, 0)}, "one from the replaced store, one from the journal"

    new = Place(cell="us-east", state=tmp_path / "new")
    with pytest.raises(StoreFailed, match="no revocation journal covers"):
        await cell_storage.restore(new, tmp_path / "saved", replace=False)
    assert not new.file.exists(), "nothing is changed before the operator decides"
    await cell_storage.restore(new, tmp_path / "saved", replace=False, journals=[here.journal])
    assert facts(held(new)) == {"a": (5, 0), "b": (9, 0)}
    distrusting = Place(cell="us-east", state=tmp_path / "third")
    await cell_storage.restore(distrusting, tmp_path / "saved", replace=False, trust_nodes=False)
    assert facts(held(distrusting)) == {"a": (5, 5), "b": (7, 7)}


def held(place: Place) -> dict[str, NodeIdentity]:
    entries = backup.read_sqlite(place.cell, place.file).entries
    assert not [entry for entry in entries if entry.key.startswith("/jointokens/")]
    return identities(entries)
