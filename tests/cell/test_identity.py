"""A cell starts only on its own store: missing, emptied, older, swapped and foreign stores are refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.expected import present

from holdfast.cell import storage
from holdfast.cell.identity import IdentityRecorder, check_file, establish_identity
from holdfast.cell.storage import StoreLocation
from holdfast.foundation.ports import SystemPorts
from holdfast.identity.cell_record import IdentityFile, initialize
from holdfast.model.cell_identity import CellIdentity, identity_of_term, identity_term, next_incarnation
from holdfast.model.errors import Expired, StoreFailed
from holdfast.store.backup_record import LastBackup, read_backup_record
from holdfast.store.contract import Put, Txn
from holdfast.store.mark import mark_path
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

CELL = "us-east"


class Site:
    """The state directory of one cell, started and stopped as `holdfast serve` does it."""

    def __init__(self, state: Path, cell: str = CELL) -> None:
        state.mkdir(exist_ok=True)
        self.place = StoreLocation(cell=cell, state=state)
        self.record = IdentityFile(state)

    async def start(self) -> SqliteStore:
        check_file(self.place.cell, self.record, self.place.file)
        store = SqliteStore(self.place.file)
        try:
            self.own = await establish_identity(store, self.place.cell, self.record, SystemPorts())
        except BaseException:
            await store.close()
            raise
        self._recorder = IdentityRecorder(self.record, self.own, store, SystemPorts())
        return store

    async def stop(self, store: SqliteStore) -> None:
        await self._recorder.stop()
        await store.close()

    def lose(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.place.file.with_name(self.place.file.name + suffix).unlink(missing_ok=True)

    def replace(self, folder: Path) -> None:
        """Puts a copy made by `copy` in place of the store."""
        self.lose()
        for each in folder.iterdir():
            shutil.copy(each, self.place.state)

    def copy(self, folder: Path) -> Path:
        folder.mkdir()
        for each in self.place.state.glob("store.sqlite*"):
            shutil.copy(each, folder)
        return folder

    async def run(self, *keys: str) -> int:
        """Starts the cell, writes these keys and stops it. Returns the last revision."""
        store = await self.start()
        for key in keys:
            await store.commit(Txn(writes=(Put(f"/somethings/{key}", b"{}"),)))
        head = store.head
        await self.stop(store)
        return head


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "cell")
    initialize(made.record, CELL)
    return made


async def test_first_start_without_init_is_refused(tmp_path: Path) -> None:
    bare = Site(tmp_path / "cell")
    with pytest.raises(StoreFailed, match=r"store\.sqlite is missing, and .*cell\.json does not exist.*init-cell"):
        await bare.start()
    assert not bare.place.file.exists()
    declared = initialize(bare.record, CELL)
    await bare.run("a")
    assert (bare.own.identity, bare.own.era) == (declared.identity, declared.era)
    with pytest.raises(StoreFailed, match="not new"):
        initialize(bare.record, CELL)
    await bare.run("b")


@pytest.mark.parametrize("how", ["deleted", "truncated", "replaced by an empty store"])
async def test_lost_store_is_refused_and_not_recreated(site: Site, how: str, tmp_path: Path) -> None:
    await site.run("a", "b")
    site.lose()
    if how == "truncated":
        site.place.file.touch()
    elif how == "replaced by an empty store":
        mark_path(site.place.file).unlink()
        await SqliteStore(site.place.file).close()
    for _ in range(2):
        with pytest.raises(StoreFailed, match=r"(missing|empty) \(.*cell\.json expects identity .*restore --replace"):
            await site.start()
    lost = site.own
    site.lose()
    with pytest.raises(StoreFailed, match="not new"):
        storage.declare_cell(site.place, new_identity=False)
    storage.declare_cell(site.place, new_identity=True)
    await site.run("a")
    assert site.own.identity != lost.identity


async def test_old_copy_of_store_is_refused(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    old = site.copy(tmp_path / "old")
    await site.run("b")
    site.replace(old)
    with pytest.raises(StoreFailed, match=r"old \(.*expects revision \d+ or later, found \d+\)|older"):
        await site.start()


async def test_old_copy_can_become_a_restore(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    old = site.copy(tmp_path / "old")
    last = await site.run("b")
    site.replace(old)
    before = site.own
    await storage.back_up(site.place, tmp_path / "saved")
    await storage.restore(site.place, tmp_path / "saved", replace=True)
    store = await site.start()
    assert site.own.identity == before.identity and site.own.era != before.era
    assert site.own.incarnation > before.incarnation and store.compacted > last
    await site.stop(store)


async def test_backup_and_restore_are_recorded_beside_the_store(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    assert read_backup_record(site.place.state) == LastBackup()
    await storage.back_up(site.place, tmp_path / "saved")
    made = read_backup_record(site.place.state)
    assert made.made_at and made.path == str(tmp_path / "saved") and made.objects and not made.restored_at
    await storage.restore(site.place, tmp_path / "saved", replace=True)
    restored = read_backup_record(site.place.state)
    assert restored.made_at == made.made_at and restored.restored_at and restored.restored_from == made.path


async def test_backup_succeeds_if_its_record_cannot_be_written(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    (site.place.state / "backups.json").mkdir()
    objects, _ = await storage.back_up(site.place, tmp_path / "saved")
    assert objects and (tmp_path / "saved").is_file()
    assert read_backup_record(site.place.state) == LastBackup()


async def test_store_of_another_cell_is_refused(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    other = Site(tmp_path / "other", "eu-west")
    initialize(other.record, "eu-west")
    await other.run("a")
    site.replace(other.copy(tmp_path / "copy"))
    with pytest.raises(StoreFailed, match=r"belongs to another cell .expected us-east, found eu-west"):
        await site.start()


async def test_store_of_another_cell_with_the_same_name_is_refused(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    other = Site(tmp_path / "other")
    initialize(other.record, CELL)
    await other.run("a", "b", "c", "d")
    await storage.back_up(other.place, tmp_path / "saved")
    site.replace(other.copy(tmp_path / "copy"))
    with pytest.raises(StoreFailed, match="another cell of that name"):
        await site.start()
    with pytest.raises(StoreFailed, match="--other-identity"):
        await storage.restore(site.place, tmp_path / "saved", replace=True)
    await storage.restore(site.place, tmp_path / "saved", replace=True, other_identity=True)
    await site.run("e")
    assert site.own.identity == other.own.identity


async def test_store_without_record_is_refused_until_accepted(site: Site) -> None:
    await site.run("a")
    site.record.path.unlink()
    with pytest.raises(StoreFailed, match=r"cell\.json is missing, .*--accept-store"):
        await site.start()
    assert storage.accept_store(site.place).identity == site.own.identity
    await site.run("b")


async def test_new_identity_does_not_take_an_old_store(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    old = site.copy(tmp_path / "old")
    with pytest.raises(StoreFailed, match="exists; next: start the cell, or move the file away"):
        storage.declare_cell(site.place, new_identity=True)
    site.lose()
    storage.declare_cell(site.place, new_identity=True)
    site.replace(old)
    with pytest.raises(StoreFailed, match=r"declares a new cell, but the store has identity"):
        await site.start()


async def test_store_of_earlier_release_is_accepted_once(tmp_path: Path) -> None:
    site = Site(tmp_path / "cell")
    store = SqliteStore(site.place.file)
    await store.commit(Txn(writes=(Put("/somethings/a", b"{}"),)))
    await store.close()
    old = site.copy(tmp_path / "old")
    await site.run("b")
    site.replace(old)
    with pytest.raises(StoreFailed, match="earlier release"):
        await site.start()


async def test_restores_of_one_backup_never_share_era_or_revision(site: Site, tmp_path: Path) -> None:
    """Restored three times from one backup, once with everything else lost. Revisions rise with each era."""
    last = await site.run("a", "b")
    await storage.back_up(site.place, tmp_path / "saved")
    eras, incarnation = {site.own.era}, site.own.incarnation
    for lost in (False, False, True):
        if lost:
            # Without any record the clock orders the eras, in seconds.
            await asyncio.sleep(2.5)
            shutil.rmtree(site.place.state)
            site.place.state.mkdir()
        await storage.restore(site.place, tmp_path / "saved", replace=True)
        store = await site.start()
        with pytest.raises(Expired):
            await asyncio.wait_for(anext(store.watch("/somethings/", after=last)), 5)
        assert site.own.era not in eras and site.own.incarnation > incarnation
        eras.add(site.own.era)
        incarnation = site.own.incarnation
        for n in range(100):
            committed = await store.commit(Txn(writes=(Put(f"/somethings/{n}", b"{}"),)))
            assert committed.revision > last
        last = store.head
        await site.stop(store)


def test_incarnation_of_restore_is_above_known_ones_and_the_clock() -> None:
    assert next_incarnation(7, 0.0) == 8
    assert next_incarnation(7, 1_800_000_000.5) == 1_800_000_000 - 1_767_225_600
    assert next_incarnation(10**9, 1_800_000_000.5) == 10**9 + 1


def test_identity_survives_its_term() -> None:
    made = CellIdentity(CELL, "one", "two", 3)
    assert identity_of_term(identity_term(made, 0.0)) == made
    assert identity_of_term(None) is None


def test_serve_with_lost_store_exits_and_says_why(tmp_path: Path) -> None:
    site = Site(tmp_path / "cell")
    file = str(tmp_path / "none")
    options = [part for name in ("tls-cert", "tls-key", "client-ca", "tokens") for part in (f"--{name}", file)]
    argv = [sys.executable, "-m", "holdfast.cli", "serve", "--cell", "global", "--state", str(site.place.state)]
    ended = subprocess.run(
        [*argv, "--port", "7999", *options], capture_output=True, text=True, timeout=60, env={**os.environ}
    )
    assert ended.returncode != 0
    assert "store.sqlite is missing" in ended.stderr and "next: for a new cell, holdfast init-cell" in ended.stderr


async def test_second_server_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On etcd each server has its own record; here both use one store in memory."""
    monkeypatch.setattr("holdfast.cell.identity.IDENTITY_WAIT_STEP_S", 0.05)
    store, ports = MemoryStore(), SystemPorts()
    first, second = Site(tmp_path / "first"), Site(tmp_path / "second")
    initialize(first.record, CELL)
    waiting = asyncio.create_task(establish_identity(store, CELL, second.record, ports, shared=True))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    made = await establish_identity(store, CELL, first.record, ports, shared=True)
    assert await asyncio.wait_for(waiting, 5) == made == present(second.record.read()).identity
    monkeypatch.setattr("holdfast.cell.identity.IDENTITY_WAIT_S", 0.2)
    third = Site(tmp_path / "third")
    with pytest.raises(StoreFailed, match="init-cell"):
        await establish_identity(MemoryStore(), CELL, third.record, ports, shared=True)
