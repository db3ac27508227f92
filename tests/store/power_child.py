"""Writes to a store on a recorded disk until enough commits are acknowledged, then saves the record.

Usage: power_child.py PATH RECORD SEED COMMITS SYNCHRONOUS.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import sys
from pathlib import Path

from tests.store import power, writing_child

from holdfast.store import checkpoint, writer
from holdfast.store.sqlite import SqliteStore

# Checkpoints run every few commits, both by the checkpointer and by the writer.
checkpoint.STORE_CHECKPOINT_PAGES = 40
writer.STORE_CHECKPOINT_PAGES_MAX = 60


async def main() -> None:
    path, record, seed, commits, synchronous = sys.argv[1:]
    disk = power.Recorder()
    acknowledged = 0
    enough = asyncio.Event()

    def output(*fields: object) -> None:
        nonlocal acknowledged
        disk.output(*fields)
        acknowledged += fields[0] == "ack"
        if acknowledged >= int(commits):
            enough.set()

    writing_child.output = output
    store = SqliteStore(path)
    output("open", store.head)
    store._writer._connection.execute(f"PRAGMA synchronous = {synchronous}")
    chance = random.Random(seed)
    tasks = [asyncio.create_task(writing_child.write(store, chance, writer)) for writer in range(4)]
    tasks.append(asyncio.create_task(writing_child.watch(store)))
    await enough.wait()
    Path(record).write_bytes(pickle.dumps(list(disk.events)))
    # No clean shutdown: closing would make the lost data durable.
    os._exit(0)


asyncio.run(main())
