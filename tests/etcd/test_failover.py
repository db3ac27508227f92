"""Members killed and paused under load: no acknowledged write is lost or repeated, and watches miss nothing."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path

import pytest
from tests.etcd_cluster import Cluster

from holdfast.model.errors import Ambiguous, Conflict, Fault
from holdfast.store.contract import Compare, Put, Txn
from holdfast.store.etcd.startup import wait_for_store
from holdfast.store.etcd.store import EtcdStore
from holdfast.store.etcd.target import EtcdTarget

WRITERS = 6
# Time for the load to continue after a fault. Failover takes a few seconds; a loaded machine is much slower.
PATIENCE_S = 90
ROUNDS = int(os.environ.get("HOLDFAST_FAILOVER_ROUNDS", "2"))
"""Each with four faults, on a cluster of its own."""


class Load:
    """Writers that each create their own keys in sequence and record the responses."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.acknowledged: dict[str, int] = {}
        self.unknown: set[str] = set()
        self.refused: set[str] = set()
        self.worst_gap_s = 0.0
        self.ended = False

    async def run(self) -> None:
        await asyncio.gather(*map(self._write, range(WRITERS)))

    async def _write(self, writer: int) -> None:
        number, last = 0, time.monotonic()
        while not self.ended:
            key = f"/w/{writer}/{number}"
            number += 1
            try:
                done = await self._store.commit(Txn((Compare(key, 0),), (Put(key, key.encode()), Put(f"{key}/b", b""))))
            except Conflict:
                raise AssertionError(f"{key} was written by someone else: a write was repeated") from None
            except Ambiguous:
                self.unknown.add(key)
            except Fault:
                self.refused.add(key)
                await asyncio.sleep(0.05)
            else:
                self.acknowledged[key] = done.revision
                self.worst_gap_s = max(self.worst_gap_s, time.monotonic() - last)
                last = time.monotonic()
            await asyncio.sleep(0.002)


async def follow(store: EtcdStore, seen: list[tuple[str, int]]) -> None:
    async for changes in store.watch("/w/", after=0):
        assert all(one.revision < other.revision for one, other in itertools.pairwise(changes))
        seen += [(change.key, change.revision) for change in changes]


@pytest.mark.slow
@pytest.mark.parametrize("_", range(ROUNDS))
async def test_member_failures_under_load_lose_no_acknowledged_write(
    own_cluster: Cluster, tmp_path: Path, _: int
) -> None:
    target = EtcdTarget(endpoints=own_cluster.endpoints)
    store, other = await wait_for_store("here", target, tmp_path), await wait_for_store("here", target)
    seen: list[tuple[str, int]] = []
    following = asyncio.create_task(follow(other, seen))
    load = Load(store)
    working = asyncio.create_task(load.run())
    await asyncio.sleep(1)
    for fault in ("kill the leader", "stall the leader", "kill a follower", "stall a follower"):
        leader = await asyncio.to_thread(own_cluster.leader)
        member = leader if "leader" in fault else next(m for m in own_cluster.members if m is not leader)
        if "kill" in fault:
            member.kill()
            await asyncio.sleep(2)
            member.start()
        else:
            member.stop()
            await asyncio.sleep(4)
            member.resume()
        before = len(load.acknowledged)
        async with asyncio.timeout(PATIENCE_S):
            while len(load.acknowledged) < before + 50:
                await asyncio.sleep(0.05)
    load.ended = True
    await working

    page = await store.range("/w/")
    held = {entry.key: entry for entry in page.entries}
    lost = [key for key in load.acknowledged if key not in held]
    assert not lost
    assert not load.refused & held.keys(), "a definitely refused write happened"
    assert all(f"{key}/b" in held for key in held if not key.endswith("/b")), "a commit was torn"
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) < len(held):
            await asyncio.sleep(0.05)
    assert len(seen) == len(set(seen)) == len(held)
    assert [revision for _, revision in seen] == sorted(revision for _, revision in seen)
    happened = sum(key in held for key in load.unknown)
    print(
        f"{len(load.acknowledged)} acknowledged, {len(load.unknown)} unknown of which {happened} happened, "
        f"{len(load.refused)} refused, worst gap {load.worst_gap_s:.1f} s"
    )
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await store.close()
    await other.close()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_hung_member_stops_commits_for_less_than_ten_seconds(own_cluster: Cluster, which: str) -> None:
    """Its connections stay open and nothing is answered, for longer than every timeout of a call."""
    store = await wait_for_store("hung", EtcdTarget(endpoints=own_cluster.endpoints))
    load = Load(store)
    working = asyncio.create_task(load.run())
    await asyncio.sleep(1)
    leader = await asyncio.to_thread(own_cluster.leader)
    member = leader if which == "leader" else next(m for m in own_cluster.members if m is not leader)
    member.stop()
    try:
        await asyncio.sleep(12)
        before = len(load.acknowledged)
        await asyncio.sleep(2)
        assert len(load.acknowledged) > before, "no commit while the member hangs"
    finally:
        member.resume()
    load.ended = True
    await working
    await store.close()
    print(f"hung {which}: worst gap {load.worst_gap_s:.1f} s")
    assert load.worst_gap_s < 10.0 + 2.0, "with two seconds for a busy machine"
