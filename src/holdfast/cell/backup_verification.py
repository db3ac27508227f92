"""Verifies a backup by restoring it: into a temporary SQLite store, which is read back and compared.

The checksum of a backup file proves that the file is as written. Only a restore proves that it can be used. The cell's
own store is not touched. The temporary store needs as much space beside the backup as the cell's store has.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from holdfast.model.errors import StoreFailed
from holdfast.store import backup
from holdfast.store.contract import Remove, Txn


def verification_prefix(cell: str) -> str:
    """How the names of temporary stores of a cell begin. A cell's name has no dot, so no other cell shares them."""
    return f".verifying-{cell}."


async def verify_backup(path: Path, cell: str) -> tuple[int, str]:
    """The number of objects and the digest of the restored content. Raises StoreFailed if anything differs."""
    from holdfast.store.scrubber import check_file
    from holdfast.store.sqlite import SqliteStore

    saved = backup.read(path)
    if saved.cell != cell:
        raise StoreFailed(f"backup {path}: of another cell (expected {cell}, found {saved.cell})")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=verification_prefix(cell)) as folder:
        file = Path(folder) / "store.sqlite"
        store = SqliteStore(file)
        try:
            await backup.restore_into(store, saved)
            await store.commit(Txn(writes=(Remove(backup.RESTORE_MARKER),)))
            restored = await backup.read_store(cell, store)
        finally:
            await store.close()
        check_file(file)
    expected, found = content_digest(saved), content_digest(restored)
    if expected != found:
        counts = f"expected {_counts(saved)}, found {_counts(restored)}"
        raise StoreFailed(f"backup {path}: restores to other content ({counts}); next: make another backup")
    return len(restored.entries), found


def content_digest(content: backup.BackupContent) -> str:
    """The digest of all objects by key and of all log records in order. Revisions are not part of it."""
    digest = hashlib.sha256()
    for put in sorted(content.entries, key=lambda each: each.key):
        for part in (put.key.encode(), put.value):
            digest.update(len(part).to_bytes(8, "big") + part)
    for append in content.records:
        for part in (append.log.encode(), append.value):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _counts(content: backup.BackupContent) -> str:
    return f"{len(content.entries)} objects and {len(content.records)} records"
