"""A SQLite store with flipped bytes, a lost or cut write-ahead log, or files replaced under it: never a wrong value."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.expected import present

from holdfast.foundation import metrics
from holdfast.foundation.ports import SystemPorts
from holdfast.model.errors import StoreFailed, Unavailable
from holdfast.store import mark, page_checksums, schema, scrubber
from holdfast.store.contract import Append, Change, Put, Remove, StoredEntry, Txn
from holdfast.store.sqlite import SqliteStore

KEYS = 60
DAMAGED = "damaged"
FLIPS = int(os.environ.get("HOLDFAST_FLIPS", "300"))


async def fill(store: SqliteStore, chance: random.Random, commits: int = 120) -> None:
    """Many revisions per key, some removed, some values longer than a page, and log records."""
    for number in range(commits):
        size = chance.choice((20, 300, 900, 9000))
        value = b"%d " % number + chance.randbytes(size)
        writes: list[Put | Remove] = [Put(f"/k/{chance.randrange(KEYS):02}", value)]
        if number % 9 == 8:
            writes.append(Remove(f"/k/{KEYS + number % 5:02}"))
        else:
            writes.append(Put(f"/k/{KEYS + number % 5:02}", value[:40]))
        await store.commit(Txn(writes=tuple(writes), appends=(Append("audit", b"record %d" % number),)))


async def changes_of(store: SqliteStore) -> list[Change]:
    found: list[Change] = []
    if store.head:
        async for batch in store.watch("", after=0):
            found += batch
            if found[-1].revision >= store.head:
                break
    return found


async def everything(store: SqliteStore, points: Sequence[int]) -> dict[str, object]:
    """Every way to read: newest, past, single keys, changes and logs. A refused read is DAMAGED."""
    found: dict[str, object] = {}

    async def note(name: str, read: Coroutine[Any, Any, Any]) -> None:
        try:
            found[name] = await asyncio.wait_for(read, 10)
        except StoreFailed:
            found[name] = DAMAGED

    await note("newest", store.range(""))
    await note("log", store.read_log("audit"))
    await note("changes", changes_of(store))
    for at in points:
        await note(f"range at {at}", store.range("/k/", at=at))
        await note(f"key at {at}", store.get(f"/k/{at % KEYS:02}", at=at))
    return found


async def check_flips(tmp_path: Path, count: int, seed: int) -> tuple[int, int]:
    """Flips one byte at a time, anywhere in the file. Returns how many were detected and how many were harmless."""
    chance = random.Random(seed)
    path = tmp_path / "cell.db"
    store = SqliteStore(path)
    await fill(store, chance)
    points = [store.head // 3, store.head // 2, store.head - 1]
    await store.close()
    whole = path.read_bytes()
    store = SqliteStore(path)
    expected = await everything(store, points)
    await store.close()
    assert DAMAGED not in expected.values()
    positions = [*range(0, 108, 3), *(chance.randrange(len(whole)) for _ in range(count - 36))]
    detected = harmless = 0
    for position in positions:
        raw = bytearray(whole)
        raw[position] ^= chance.randrange(1, 256)
        for each in tmp_path.glob("cell.db-*"):
            each.unlink()
        path.write_bytes(raw)
        try:
            store = SqliteStore(path)
        except StoreFailed:
            detected += 1
            continue
        found = await everything(store, points)
        await store.close()
        wrong = [name for name, value in found.items() if value is not DAMAGED and value != expected[name]]
        assert not wrong, f"byte {position} of {len(whole)}, page {position // 4096 + 1}: wrong {wrong}"
        if DAMAGED in found.values():
            detected += 1
        else:
            harmless += 1
    return detected, harmless


@pytest.mark.timeout(1800)
async def test_flipped_byte_is_detected_or_harmless(tmp_path: Path) -> None:
    detected, harmless = await check_flips(tmp_path, FLIPS, seed=1)
    print(f"flipped bytes: {detected} detected, {harmless} harmless")
    assert detected > harmless


async def test_damaged_value_is_refused_by_name(tmp_path: Path) -> None:
    """One flipped bit inside an old value: the newest state is served, the old value is refused with its key."""
    path = tmp_path / "cell.db"
    store = SqliteStore(path)
    for value in (b"the old value" * 500, b"the new value"):
        await store.commit(Txn(writes=(Put("/k/a", value),)))
    await store.commit(Txn(writes=(Put("/k/b", b"1"),)))
    await store.close()
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"the old value" * 5)] ^= 1
    path.write_bytes(raw)
    store = SqliteStore(path)
    assert present(await store.get("/k/a")).value == b"the new value"
    with pytest.raises(StoreFailed, match=r"wrong checksum, reading /k/a at revision 1"):
        await store.get("/k/a", at=1)
    assert present(await store.get("/k/b")).value == b"1"
    await store.close()


async def test_scrubber_finds_damage_in_every_used_page(tmp_path: Path) -> None:
    path = tmp_path / "cell.db"
    store = SqliteStore(path)
    await fill(store, random.Random(7), 200)
    assert scrubber.check_file(path) > 400, "while the store runs"
    await store.close()
    whole = path.read_bytes()
    missed = 0
    for page in range(len(whole) // 4096):
        raw = bytearray(whole)
        raw[page * 4096 + 2000] ^= 1
        path.write_bytes(raw)
        try:
            scrub = scrubber.ScrubPass(path)
            while scrub.step(rows=100):
                pass
            missed += 1
            scrub.close()
        except (StoreFailed, apsw.Error):
            continue
    free = apsw.Connection(str(path)).pragma("freelist_count")
    assert missed <= free, f"{missed} of {len(whole) // 4096} pages, {free} of them unused"


async def test_scrubber_reports_damage_and_keeps_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "SCRUB_STEP_EVERY_S", 0.0)
    path = tmp_path / "cell.db"
    store = SqliteStore(path)
    await fill(store, random.Random(8), 60)
    await store.close()
    store = SqliteStore(path)
    for damage in (False, True):
        if damage:
            at = path.read_bytes().rindex(b"record 3") - 1
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"!")
        running = asyncio.create_task(scrubber.Scrubber(path, SystemPorts()).run())
        before = metrics.STORE_SCRUBBED._value.get()
        metrics.STORE_DAMAGED.set(0 if damage else 1)
        async with asyncio.timeout(10):
            while metrics.STORE_DAMAGED._value.get() != damage or (
                not damage and metrics.STORE_SCRUBBED._value.get() == before
            ):
                await asyncio.sleep(0.02)
        running.cancel()
    await store.commit(Txn(writes=(Put("/k/00", b"served"),)))
    assert present(await store.get("/k/00")).value == b"served"
    await store.close()


async def killed(path: Path, folder: Path) -> tuple[Path, dict[str, StoredEntry]]:
    """The files that a killed process leaves, with all commits in the write-ahead log, and what it acknowledged."""
    store = SqliteStore(path)
    await fill(store, random.Random(3), 40)
    acknowledged = {entry.key: entry for entry in (await store.range("")).entries}
    folder.mkdir()
    for each in path.parent.glob(f"{path.name}*"):
        if not each.name.endswith((".lock", "-shm")):
            shutil.copy(each, folder)
    await store.close()
    return folder / path.name, acknowledged


async def test_killed_store_reopens_with_every_commit(tmp_path: Path) -> None:
    path, acknowledged = await killed(tmp_path / "cell.db", tmp_path / "left")
    store = SqliteStore(path)
    assert {entry.key: entry for entry in (await store.range("")).entries} == acknowledged
    await store.close()


@pytest.mark.parametrize("how", ["deleted", "emptied", "cut", "flipped"])
async def test_lost_write_ahead_log_is_refused(tmp_path: Path, how: str) -> None:
    path, _ = await killed(tmp_path / "cell.db", tmp_path / "left")
    log = path.with_name(path.name + "-wal")
    raw = log.read_bytes()
    if how == "deleted":
        log.unlink()
    elif how == "emptied":
        log.write_bytes(b"")
    elif how == "cut":
        log.write_bytes(raw[: len(raw) // 2])
    else:
        log.write_bytes(raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :])
    for _ in range(2):
        with pytest.raises(StoreFailed, match=r"acknowledged commits are missing .expected revision"):
            SqliteStore(path)


async def test_file_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("one.db", "two.db"):
        store = SqliteStore(tmp_path / name)
        await fill(store, random.Random(4), 5)
        await store.close()
    shutil.copy(tmp_path / "two.db", tmp_path / "one.db")
    with pytest.raises(StoreFailed, match="replaced by another file"):
        SqliteStore(tmp_path / "one.db")


@pytest.mark.parametrize("name", ["cell.db-wal", "cell.db"])
async def test_file_deleted_under_running_store_stops_it(tmp_path: Path, name: str) -> None:
    """The log is still open: its commits are moved to the main file, so a deleted log loses nothing."""
    store = SqliteStore(tmp_path / "cell.db")
    await fill(store, random.Random(5), 20)
    acknowledged = (await store.range("")).entries
    (tmp_path / name).unlink()

    async def write() -> None:
        nonlocal acknowledged
        while True:
            await store.commit(Txn(writes=(Put("/k/00", b"later"),)))
            acknowledged = (await store.range("")).entries
            await asyncio.sleep(0.05)

    with pytest.raises(StoreFailed, match="deleted or replaced while the store was open"):
        await asyncio.wait_for(write(), 10)
    await store.close()
    if name == "cell.db-wal":
        store = SqliteStore(tmp_path / "cell.db")
        assert (await store.range("")).entries == acknowledged
        await store.close()
    else:
        with pytest.raises(StoreFailed, match="replaced by another file"):
            SqliteStore(tmp_path / "cell.db")


def torn(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0xFF
    path.write_bytes(raw)


async def test_torn_mark_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "cell.db"
    store = SqliteStore(path)
    await fill(store, random.Random(6), 5)
    await store.close()
    newest = present(mark.read_mark(path))
    torn(mark.mark_path(path), (newest.count % 2) * 64 + 20)
    before = present(mark.read_mark(path))
    assert before.count == newest.count - 1 and before.revision <= newest.revision
    await SqliteStore(path).close()
    mark.mark_path(path).write_bytes(b"")
    await SqliteStore(path).close()


async def test_file_without_checksums_is_upgraded_once(tmp_path: Path) -> None:
    path = tmp_path / "cell.db"
    old = apsw.Connection(str(path), vfs="unix")
    old.execute("PRAGMA journal_mode = WAL").fetchall()
    create = schema.CREATE.replace(f"user_version = {schema.VERSION}", "user_version = 1")
    old.execute(f"BEGIN;{create}COMMIT;")
    old.execute("INSERT INTO history VALUES (1, '/k/a', x'31', 1, 0, 1), (2, '/k/b', x'32', 2, 0, 2)")
    old.close()
    assert path.read_bytes()[20] == 0
    for _ in range(2):
        store = SqliteStore(path)
        assert [(e.key, e.value, e.revision) for e in (await store.range("")).entries] == [
            ("/k/a", b"1", 1),
            ("/k/b", b"2", 2),
        ]
        await store.close()
        assert path.read_bytes()[20] == 8


async def fill_disk(store: SqliteStore, done: list[str]) -> None:
    for _ in range(2000):
        key = f"/k/{store.head}"
        await store.commit(Txn(writes=(Put(key, bytes(20_000)),)))
        done.append(key)


async def until_written(store: SqliteStore) -> None:
    while True:
        try:
            await store.commit(Txn(writes=(Put("/k/after", b"1"),)))
            return
        except Unavailable:
            await asyncio.sleep(0.1)


async def test_full_disk_is_survived_without_restart(tmp_path: Path) -> None:
    """A real file system without space, if this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=12m none {disk} 2>/dev/null") != 0:
        pytest.skip("needs root and a mount")
    try:
        store = SqliteStore(disk / "cell.db")
        ballast = disk / "ballast"
        done: list[str] = []
        for _ in range(2):
            free = os.statvfs(disk)
            ballast.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - (2 << 20))))
            with pytest.raises(Unavailable, match="the disk is full"):
                await fill_disk(store, done)
            head = store.head
            with pytest.raises(Unavailable):
                await store.trim_log("audit", keep=0)
            ballast.unlink()
            await asyncio.wait_for(until_written(store), 15)
            assert store.head == head + 1
            await store.compact(store.head)
            await store.commit(Txn(writes=tuple(Remove(key) for key in done[-50:])))
            del done[-50:]
            await store.compact(store.head)
        await store.close()
        store = SqliteStore(disk / "cell.db")
        assert {entry.key for entry in (await store.range("")).entries} == {*done, "/k/after"}
        await store.close()
    finally:
        os.system(f"umount -l {disk}")


async def test_header_torn_in_a_checkpoint_is_written_again_from_the_log(tmp_path: Path) -> None:
    """A power loss tears the first sector while a checkpoint writes it; the write-ahead log still has the page."""
    (tmp_path / "live").mkdir()
    store = SqliteStore(tmp_path / "live" / "cell.db")
    await fill(store, random.Random(3), commits=30)
    expected = await everything(store, (5, 20))
    torn = tmp_path / "torn"
    shutil.copytree(tmp_path / "live", torn)
    await store.close()
    with (torn / "cell.db").open("r+b") as file:
        file.write(b"SQLite" + random.Random(4).randbytes(506))
    found = SqliteStore(torn / "cell.db")
    try:
        assert await everything(found, (5, 20)) == expected
        assert page_checksums.reserved_bytes(torn / "cell.db") == page_checksums.CHECKSUM_BYTES
    finally:
        await found.close()
