"""The record of a cell's last backup and last restore, beside its store, for readiness reviews.

The record is advice: it is never read to restore a cell, and a record that cannot be read counts as no backup.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

RECORD_FILE = "backups.json"


class LastBackup(msgspec.Struct, frozen=True, rename="camel"):
    """Times in UTC; empty if it never happened. A restore proves that a backup can be used."""

    made_at: str = ""
    path: str = ""
    objects: int = 0
    restored_at: str = ""
    restored_from: str = ""
    verified_at: str = ""
    """When a backup was last restored into a temporary store and compared."""
    verified_path: str = ""
    failed_at: str = ""
    """When the last attempt failed; empty after a success. The earlier backup stays the last one."""
    failure: str = ""


def read_backup_record(state: Path) -> LastBackup:
    try:
        return msgspec.json.decode((state / RECORD_FILE).read_bytes(), type=LastBackup)
    except (OSError, msgspec.DecodeError):
        return LastBackup()


def write_backup_record(state: Path, record: LastBackup) -> None:
    """Notes the record. A failure does not fail the backup or restore, which is complete; a review then misses it."""
    new = state / f".{RECORD_FILE}.new"
    with contextlib.suppress(OSError):
        new.write_bytes(msgspec.json.encode(record))
        os.replace(new, state / RECORD_FILE)
