"""The SQLite file: refused files, constraints of the schema, and durability before visibility."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest
from tests.expected import present

from holdfast.model.errors import StoreFailed
from holdfast.store.contract import Append, Change, Put, Remove, Txn
from holdfast.store.sqlite import SqliteStore


async def fill(store: SqliteStore, count: int, keys: int = 10) -> None:
    await asyncio.gather(*(store.commit(Txn(writes=(Put(f"/k/{i % keys}", b"%d" % i),))) for i in range(count)))


async def test_second_store_on_file_is_refused_naming_holder(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "cell.db")
    with pytest.raises(StoreFailed, match="in use by process"):
        SqliteStore(tmp_path / "cell.db")
    await store.close()
    await SqliteStore(tmp_path / "cell.db").close()


async def test_foreign_file_is_refused_and_not_modified(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are notes, not a database\n" * 100)
    with pytest.raises(StoreFailed, match="not a Holdfast store"):
        SqliteStore(text)
    assert text.read_text().startswith("these are notes")

    foreign = tmp_path / "other.db"
    connection = apsw.Connection(str(foreign))
    connection.execute("CREATE TABLE bookmarks(url); PRAGMA application_id = 7")
    connection.close()
    before = foreign.read_bytes()
    with pytest.raises(StoreFailed, match="SQLite application id"):
        SqliteStore(foreign)
    assert foreign.read_bytes() == before

    with pytest.raises(StoreFailed, match="cannot create the lock file"):
        SqliteStore(tmp_path / "no" / "such" / "folder.db")
    with pytest.raises(StoreFailed, match="cannot open it"):
        SqliteStore(tmp_path)


async def test_file_of_other_schema_version_is_refused(tmp_path: Path) -> None:
    await SqliteStore(tmp_path / "cell.db").close()
    connection = apsw.Connection(str(tmp_path / "cell.db"))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreFailed, match="expected 2, found 99"):
        SqliteStore(tmp_path / "cell.db")


async def test_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cell.db"
    store = SqliteStore(path)
    await fill(store, 500, keys=500)
    await store.close()
    damaged = bytearray(path.read_bytes())
    for page in range(1, len(damaged) // 4096):
        damaged[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(damaged)
    with pytest.raises(StoreFailed, match="damaged"):
        SqliteStore(path)


async def test_schema_refuses_second_write_on_same_state(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "cell.db")
    await fill(store, 3, keys=1)
    await store.close()
    connection = apsw.Connection(str(tmp_path / "cell.db"))
    with pytest.raises(apsw.ConstraintError):
        connection.execute("INSERT INTO history VALUES (9, '/k/0', x'00', 1, 1, 9)")
    connection.close()


async def test_store_uses_wal_and_full_synchronous(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "cell.db")
    connection = store._writer._connection
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2
    await store.close()


async def test_visible_revision_is_on_disk(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "cell.db")
    disk = apsw.Connection(str(tmp_path / "cell.db"), flags=apsw.SQLITE_OPEN_READONLY)
    writing = [asyncio.create_task(fill(store, 40)) for _ in range(4)]
    head = 0
    while not all(task.done() for task in writing):
        if store.head > head:
            head = store.head
            assert disk.execute("SELECT max(revision) FROM history").get >= head
        await asyncio.sleep(0)
    disk.close()
    await store.close()


async def test_failed_write_stops_store_for_all_callers(tmp_path: Path) -> None:
    """A row inserted behind the store's back violates the schema; it stands for any disk error."""
    store = SqliteStore(tmp_path / "cell.db")
    await fill(store, 3, keys=1)
    watch = store.watch("", after=store.head)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    intruder = apsw.Connection(str(tmp_path / "cell.db"))
    intruder.execute("INSERT INTO history VALUES (4, '/intruder', x'00', 4, 0, 4)")
    intruder.close()
    commits = [store.commit(Txn(writes=(Put(f"/x/{i}", b""),))) for i in range(5)]
    results = await asyncio.gather(*commits, return_exceptions=True)
    assert all(isinstance(result, StoreFailed) for result in results)
    for call in (store.commit(Txn()), store.get("/k/0"), store.range(""), store.compact(1), anext(watch), waiting):
        with pytest.raises(StoreFailed, match="stopped"):
            await call
    await store.close()


async def test_cancelled_caller_does_not_cancel_its_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "cell.db")
    leaving = asyncio.create_task(store.commit(Txn(writes=(Put("/k", b"1"),))))
    await asyncio.sleep(0)
    leaving.cancel()
    await store.commit(Txn(writes=(Put("/l", b"2"),)))
    assert present(await store.get("/k")).value == b"1"
    await store.close()


async def test_compaction_deletes_rows_in_steps_and_survives_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.sqlite.COMPACT_CHUNK_REVISIONS", 50)
    store = SqliteStore(tmp_path / "cell.db")
    await fill(store, 400)
    await store.commit(Txn(writes=tuple(Remove(f"/k/{i}") for i in range(5))))
    compacting = asyncio.create_task(store.compact(store.head))
    while store.compacted == 0:
        await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(compacting, return_exceptions=True)

    store = SqliteStore(tmp_path / "cell.db")
    assert store.compacted == 405
    await store.commit(Txn(writes=(Put("/k/0", b"back"),)))
    await store.compact(store.head)
    await store.commit(Txn(writes=(Remove("/k/0"),)))
    await store.commit(Txn(writes=(Put("/k/0", b"again"),)))
    await store.close()
    connection = apsw.Connection(str(tmp_path / "cell.db"))
    assert connection.execute("SELECT count(*) FROM history WHERE revision <= 406").get == 6
    connection.close()


async def test_log_is_trimmed_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.sqlite.COMPACT_CHUNK_REVISIONS", 7)
    store = SqliteStore(tmp_path / "cell.db")
    await store.commit(Txn(appends=tuple(Append("audit", b"%d" % i) for i in range(50))))
    await store.trim_log("audit", keep=3)
    assert [record.value for record in await store.read_log("audit")] == [b"47", b"48", b"49"]
    await store.close()


async def test_watch_continues_from_disk_to_memory_without_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.sqlite.WATCH_RING_EVENTS", 40)
    monkeypatch.setattr("holdfast.store.feed.WATCH_CHUNK_EVENTS", 16)
    monkeypatch.setattr("holdfast.store.history.WATCH_CHUNK_EVENTS", 16)
    store = SqliteStore(tmp_path / "cell.db")
    watch = store.watch("", after=0)
    seen: list[Change] = []
    for round_ in range(10):
        await fill(store, 30 + round_)
        if round_ % 3 == 0:
            while not seen or seen[-1].revision < store.head:
                seen += await anext(watch)
    assert [change.revision for change in seen] == list(range(1, store.head + 1))
    assert all(change.previous is None or change.previous.revision < change.revision for change in seen)
    await store.close()
