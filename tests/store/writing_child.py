"""Writes to a store and prints every acknowledgement, until it is killed or the disk is full.

Usage: writing_child.py PATH SEED [FILE_LIMIT_BYTES]. Prints one line per acknowledged commit: `ack KEY VALUE REVISION`,
and `seen KEY REVISION` for each change delivered to a watcher.
"""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import sys

from holdfast.model.errors import StoreFailed
from holdfast.store.contract import Append, Put, Remove, Txn
from holdfast.store.sqlite import SqliteStore


def output(*fields: object) -> None:
    # One unbuffered write per line: the parent reads each line even if this process is killed next.
    sys.stdout.write(" ".join(map(str, fields)) + "\n")
    sys.stdout.flush()


async def watch(store: SqliteStore) -> None:
    async for changes in store.watch("", after=store.head):
        for change in changes:
            output("seen", change.key, change.revision)


async def write(store: SqliteStore, chance: random.Random, writer: int) -> None:
    count = 0
    while True:
        count += 1
        keys = [f"/w/{writer}/{chance.randrange(20)}", f"/v/{writer}/{count % 7}"]
        value = f"{writer}-{count}-{chance.randrange(10**9)}"
        payload = value.encode() + b"." * chance.randrange(4000)
        writes = [Put(keys[0], payload), Remove(keys[1]) if chance.random() < 0.3 else Put(keys[1], payload)]
        committed = await store.commit(Txn(writes=tuple(writes), appends=(Append("audit", value.encode()),)))
        output("ack", keys[0], value, committed.revisions[0])
        if chance.random() < 0.01:
            await store.compact(max(0, committed.revision - 50))


async def main() -> None:
    path, seed = sys.argv[1], sys.argv[2]
    store = SqliteStore(path)
    output("open", store.head)
    if len(sys.argv) > 3:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        bytes_ = int(sys.argv[3])
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))
    chance = random.Random(seed)
    tasks = [asyncio.create_task(write(store, chance, writer)) for writer in range(4)]
    tasks.append(asyncio.create_task(watch(store)))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    output("failed", all(isinstance(result, StoreFailed) for result in results))
    for call in (store.get("/x"), store.range(""), store.commit(Txn()), store.read_log("audit")):
        try:
            await call
            output("answered")
        except StoreFailed:
            output("refused")
    await store.close()
    output("closed")


if __name__ == "__main__":
    asyncio.run(main())
