"""Writes to a store and prints every acknowledgement, until it is killed.

Usage: writing_child.py PATH SEED [FILE_LIMIT_BYTES]. With a limit, files cannot grow beyond it until every writer was
refused; then the limit is lifted and all of them write again. Prints one line per acknowledged commit: `ack KEY VALUE
REVISION`, and `seen KEY REVISION` for each change delivered to a watcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import signal
import sys

from holdfast.model.errors import Unavailable
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


async def fill_up(store: SqliteStore, chance: random.Random) -> None:
    """Writers run into the limit; reads are answered meanwhile; without the limit the same store continues."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), unlimited[1]))
    for _ in range(2):
        results = await asyncio.gather(*(write(store, chance, writer) for writer in range(4)), return_exceptions=True)
        output("refused", all(isinstance(result, Unavailable) for result in results))
    await store.get("/x")
    await store.read_log("audit")
    output("answered", len((await store.range("")).entries))
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    while True:
        try:
            await store.commit(Txn(writes=(Put("/x", b"1"),)))
            break
        except Unavailable:
            await asyncio.sleep(0.1)
    output("resumed", store.head)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.gather(*(write(store, chance, writer) for writer in range(4)))


async def main() -> None:
    path, seed = sys.argv[1], sys.argv[2]
    store = SqliteStore(path)
    output("open", store.head)
    chance = random.Random(seed)
    watching = asyncio.create_task(watch(store))
    if len(sys.argv) > 3:
        await fill_up(store, chance)
    else:
        await asyncio.gather(*(write(store, chance, writer) for writer in range(4)))
    watching.cancel()
    await store.close()
    output("closed")


if __name__ == "__main__":
    asyncio.run(main())
