"""Backups into a directory: a new file each time, and only the newest are kept.

- One process at a time backs up a cell into a directory. A second one is refused.
- Old backups are deleted only after a new one succeeded, and only files that have the name of a backup of this cell.
- A failure is recorded beside the store and leaves the earlier backups.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.cell.backup_verification import verification_prefix
from holdfast.cell.storage import StoreLocation, back_up, record_failure
from holdfast.model.errors import Fault, StoreFailed

FAILED_KEPT = 2
"""Backups that could not be verified, kept to be looked at. More would fill the disk while nobody looks."""
EVERY_S_MIN = 10.0
"""Shortest interval of `--every`. Each backup reads the whole store; a shorter one would never rest."""


class ScheduledBackup(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    objects: int
    records: int
    verified: bool
    deleted: tuple[str, ...]


async def back_up_into(place: StoreLocation, folder: Path, *, keep: int, verify: bool) -> ScheduledBackup:
    """Makes one backup in the directory and deletes all but the `keep` newest ones of the cell."""
    try:
        with _only_one(place.cell, folder):
            path = folder / f"{place.cell}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.backup"
            objects, records = await back_up(place, path, verify=verify)
            deleted = _delete_old(place.cell, path, keep)
    except OSError as error:
        fault = StoreFailed(f"directory {folder}: {error.strerror or error}; next: correct --to-dir")
        record_failure(place, fault)
        raise fault from error
    return ScheduledBackup(str(path), objects, records, verify, tuple(old.name for old in deleted))


async def back_up_every(
    place: StoreLocation,
    folder: Path,
    every_s: float,
    *,
    keep: int,
    verify: bool,
    report: Callable[[ScheduledBackup | Fault], None],
) -> bool:
    """Backs up at once and then at each interval, until a signal. A failure is reported and the next turn comes.

    Returns whether the last backup succeeded.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    while True:
        began = time.monotonic()
        try:
            made: ScheduledBackup | Fault = await back_up_into(place, folder, keep=keep, verify=verify)
        except Fault as fault:
            made = fault
        report(made)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, began + every_s - time.monotonic())):
                await stopping.wait()
        if stopping.is_set():
            return isinstance(made, ScheduledBackup)


@contextlib.contextmanager
def _only_one(cell: str, folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / f".{cell}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"directory {folder}: another process backs up cell {cell} into it; next: wait for it, or stop it"
            raise StoreFailed(text) from None
        for left in folder.glob(f"{verification_prefix(cell)}*"):
            shutil.rmtree(left, ignore_errors=True)  # of a process that was killed
        for left in _named(folder, cell, before=r"\.+", after=r"\.\w+(\.new)?"):
            left.unlink()  # likewise: not yet verified, or not completely written
        for failed in _named(folder, cell, after=r"\.failed")[FAILED_KEPT - 1 :]:
            failed.unlink()
        yield
    finally:
        os.close(lock)


def _delete_old(cell: str, made: Path, keep: int) -> list[Path]:
    """The new backup always stays, even if the clock was set back and its name is not the newest."""
    others = [path for path in _named(made.parent, cell) if path != made]
    for old in others[keep - 1 :]:
        old.unlink()
    return others[keep - 1 :]


def _named(folder: Path, cell: str, *, before: str = "", after: str = "") -> list[Path]:
    """The files with the name of a backup of this cell, newest first. `before` and `after` are patterns around it."""
    name = re.compile(before + re.escape(cell) + r"-\d{8}T\d{6}Z\.backup" + after)
    return sorted((path for path in folder.iterdir() if name.fullmatch(path.name)), reverse=True)
