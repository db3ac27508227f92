"""Scheduled backups: verified by restoring them, kept in number, failures on record and in the metrics."""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import os
import signal
from pathlib import Path

import pytest
from prometheus_client import Gauge
from tests.cell.test_identity import CELL, Site

from holdfast.cell import storage
from holdfast.cell.backup_schedule import ScheduledBackup, back_up_every, back_up_into
from holdfast.cell.backup_verification import content_digest, verify_backup
from holdfast.cell.disk_gauges import observe_directory
from holdfast.cli.app import run
from holdfast.foundation import metrics
from holdfast.foundation.exit_codes import ExitCode
from holdfast.model.errors import Fault, StoreFailed
from holdfast.store import backup
from holdfast.store.backup_record import read_backup_record
from holdfast.store.contract import Put, Txn


def value_of(gauge: Gauge) -> float:
    return next(sample.value for metric in gauge.collect() for sample in metric.samples)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "state")
    storage.declare_cell(made.place, new_identity=False)
    return made


async def test_backup_verified_by_restoring_is_on_record(site: Site, tmp_path: Path) -> None:
    await site.run("a", "b")
    folder = tmp_path / "kept"
    made = await back_up_into(site.place, folder, keep=3, verify=True)
    record = read_backup_record(site.place.state)
    assert record.made_at and record.verified_at and record.verified_path == record.path == made.path
    assert not record.failed_at
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".us-east.lock")] == [
        Path(made.path).name
    ]
    saved = backup.read(Path(made.path))
    assert await verify_backup(Path(made.path), CELL) == (made.objects, content_digest(saved))
    observe_directory(site.place.state)
    assert value_of(metrics.STORE_BACKUP_VERIFIED) > 0
    assert value_of(metrics.STORE_BACKUP_FAILED) == 0


async def test_digest_of_other_content_differs(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    one = backup.read_sqlite(CELL, site.place.file)
    await site.run("b")
    assert content_digest(one) != content_digest(backup.read_sqlite(CELL, site.place.file))


async def test_damaged_backup_is_not_verified(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    made = await back_up_into(site.place, tmp_path, keep=3, verify=False)
    lines = gzip.decompress(Path(made.path).read_bytes()).splitlines(keepends=True)
    Path(made.path).write_bytes(gzip.compress(b"".join(lines[:1] + lines[2:])))
    with pytest.raises(StoreFailed, match="wrong checksum"):
        await verify_backup(Path(made.path), CELL)
    good = await back_up_into(site.place, tmp_path / "good", keep=3, verify=False)
    with pytest.raises(StoreFailed, match="of another cell"):
        await verify_backup(Path(good.path), "eu-west")


async def test_old_backups_are_deleted_after_a_new_one(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    old = [tmp_path / f"{CELL}-2001010{day}T000000Z.backup" for day in range(1, 5)]
    # Made while the clock was wrong: the new backup stays although its name is older.
    future = tmp_path / f"{CELL}-29990101T000000Z.backup"
    foreign = [tmp_path / f"{CELL}-2-20010101T000000Z.backup", tmp_path / "notes.txt", tmp_path / f"{CELL}.backup"]
    for path in (*old, future, *foreign):
        path.write_text("")
    made = await back_up_into(site.place, tmp_path, keep=2, verify=False)
    assert sorted(made.deleted) == [path.name for path in old]
    assert Path(made.path).exists() and future.exists() and all(path.exists() for path in foreign)


async def test_failed_backup_is_on_record_and_the_earlier_one_stays_the_last(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    made = await back_up_into(site.place, tmp_path / "kept", keep=1, verify=True)
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    target = blocked / "x.backup"
    target.mkdir()  # a file cannot replace it
    with pytest.raises(StoreFailed, match=r"cannot be written .*; next: "):
        await storage.back_up(site.place, target)
    assert [path.name for path in blocked.iterdir()] == ["x.backup"]
    record = read_backup_record(site.place.state)
    assert record.path == made.path and record.failed_at and "cannot be written" in record.failure
    observe_directory(site.place.state)
    assert value_of(metrics.STORE_BACKUP_FAILED) == 1
    await back_up_into(site.place, tmp_path / "kept", keep=1, verify=False)
    assert not read_backup_record(site.place.state).failed_at


async def test_lost_store_fails_the_backup_and_deletes_nothing(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    made = await back_up_into(site.place, tmp_path / "kept", keep=1, verify=False)
    site.lose()
    with pytest.raises(StoreFailed, match="not found"):
        await back_up_into(site.place, tmp_path / "kept", keep=1, verify=True)
    assert Path(made.path).exists()
    assert "not found" in read_backup_record(site.place.state).failure


async def test_second_backup_into_a_directory_is_refused_while_one_runs(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    lock = os.open(tmp_path / f".{CELL}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(StoreFailed, match=r"another process backs up .*; next: wait"):
        await back_up_into(site.place, tmp_path, keep=1, verify=False)
    os.close(lock)
    left = f"{CELL}-20010101T000000Z.backup"
    for name in (f".{left}.new", f".{left}.unverified", f"..{left}.unverified.new"):
        (tmp_path / name).write_text("")
    (tmp_path / f".verifying-{CELL}.killed").mkdir()
    # Of another cell, whose process may run.
    other = {f".{CELL}-2-20010101T000000Z.backup.unverified", f".verifying-{CELL}-2.running"}
    for name in other:
        (tmp_path / name).mkdir()
    made = await back_up_into(site.place, tmp_path, keep=1, verify=True)
    assert {path.name for path in tmp_path.iterdir() if path.name != "state"} == {
        Path(made.path).name,
        f".{CELL}.lock",
        *other,
    }


async def test_schedule_continues_after_a_failure_and_ends_with_a_signal(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    reports: list[ScheduledBackup | Fault] = []
    hidden = site.place.file.with_name("hidden")
    site.place.file.rename(hidden)

    def report(made: ScheduledBackup | Fault) -> None:
        reports.append(made)
        if len(reports) == 1:
            hidden.rename(site.place.file)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    work = back_up_every(site.place, tmp_path / "kept", 0.01, keep=2, verify=False, report=report)
    assert await asyncio.wait_for(work, 60)
    assert isinstance(reports[0], Fault) and isinstance(reports[1], ScheduledBackup)


async def test_backup_that_does_not_restore_to_the_same_content_does_not_count(site: Site, tmp_path: Path) -> None:
    await site.run("a")
    good = await back_up_into(site.place, tmp_path / "kept", keep=1, verify=True)
    # A store whose restore was interrupted: its marker is part of the backup, and is in the way of the next restore.
    store = await site.start()
    await store.commit(Txn(writes=(Put(backup.RESTORE_MARKER, b"{}"),)))
    await site.stop(store)
    (tmp_path / "x.backup").write_text("an earlier one")
    with pytest.raises(StoreFailed, match="not verified by restoring it"):
        await storage.back_up(site.place, tmp_path / "x.backup", verify=True)
    assert (tmp_path / "x.backup").read_text() == "an earlier one"
    assert sorted(path.name for path in tmp_path.glob("*x.backup*")) == ["x.backup", "x.backup.failed"]
    record = read_backup_record(site.place.state)
    assert record.path == good.path and record.failure
    for day in range(1, 5):
        (tmp_path / "kept" / f"{CELL}-2001010{day}T000000Z.backup.failed").write_text("")
    with pytest.raises(StoreFailed, match="not verified"):
        await back_up_into(site.place, tmp_path / "kept", keep=1, verify=True)
    failed = sorted(path.name for path in (tmp_path / "kept").glob("*.failed"))
    assert len(failed) == 2 and failed[0] == f"{CELL}-20010104T000000Z.backup.failed"
    assert Path(good.path).exists()


async def test_wrong_backup_options_are_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    cell = ["backup", "--cell", CELL, "--state", str(site.place.state)]
    for options in (
        [],
        ["--to", "a", "--to-dir", "b"],
        ["--to", "a", "--every", "1h"],
        ["--to-dir", "b", "--every", "1s"],
    ):
        assert run([*cell, *options]) == ExitCode.USAGE
        printed = capsys.readouterr().err
        assert printed.startswith("error: ") and "next: " in printed
