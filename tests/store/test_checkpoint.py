"""The write-ahead log is checkpointed beside the commits and does not grow without bound."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.store.checkpoint import STORE_CHECKPOINT_PAGES
from holdfast.store.contract import Put, Txn
from holdfast.store.sqlite import SqliteStore
from holdfast.store.writer import STORE_CHECKPOINT_PAGES_MAX

PAGE_BYTES = 4096
VALUE = b"x" * 64 * 1024


async def write(store: SqliteStore, begin: int, count: int) -> None:
    for number in range(begin, begin + count):
        await store.commit(Txn((), (Put(f"/k/{number}", VALUE),)))


async def test_wal_is_checkpointed_while_store_is_open(tmp_path: Path) -> None:
    path = tmp_path / "cell.db"
    log = tmp_path / "cell.db-wal"
    store = SqliteStore(path)
    try:
        pages = len(VALUE) // PAGE_BYTES
        await write(store, 0, 2 * STORE_CHECKPOINT_PAGES // pages)
        async with asyncio.timeout(20):
            while path.stat().st_size < STORE_CHECKPOINT_PAGES * PAGE_BYTES:
                await asyncio.sleep(0.02)
        # A completely checkpointed log is overwritten from its beginning.
        await write(store, 1_000, 10 * STORE_CHECKPOINT_PAGES // pages)
        assert log.stat().st_size < 1.5 * STORE_CHECKPOINT_PAGES_MAX * PAGE_BYTES
    finally:
        await store.close()
    again = SqliteStore(path)
    try:
        assert (await again.get("/k/1000")) is not None
    finally:
        await again.close()
