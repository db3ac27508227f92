"""One long random script over every store gives the same results. It certifies the store of the simulation."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.counted_store import CountedStore
from tests.store.conformance.conftest import Subject

from holdfast.model.errors import Fault
from holdfast.store.contract import Append, Change, Compare, Put, Remove, Store, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

OPERATIONS = int(os.environ.get("HOLDFAST_SCRIPT_OPERATIONS", "10000"))
CLUSTER_OPERATIONS = OPERATIONS if os.environ.get("HOLDFAST_PROVE") else OPERATIONS // 10
"""Fewer by default, as each takes a few round trips, one after the other; `make prove` runs them all."""
FAST_OPERATIONS = OPERATIONS if os.environ.get("HOLDFAST_PROVE") else OPERATIONS // 4


async def answers(store: CountedStore, seed: int, operations: int) -> list[Any]:
    """Runs the script; each step depends only on the seed and on earlier results."""
    chance = random.Random(seed)
    found: list[Any] = []
    for step in range(operations):
        key = f"/k/{chance.randrange(60)}"
        at = max(0, store.head + 1 - chance.randrange(80))
        choice = chance.random()
        try:
            if choice < 0.55:
                keys = chance.sample(range(60), chance.randrange(1, 6))
                writes = tuple(
                    Remove(f"/k/{k}") if chance.random() < 0.3 else Put(f"/k/{k}", b"%d" % step) for k in keys
                )
                now = await store.get(key)
                compares = (Compare(key, now.revision if now and chance.random() < 0.8 else 0),)
                appends = (Append("log", b"%d" % step),) if chance.random() < 0.2 else ()
                found.append(await store.commit(Txn(compares if chance.random() < 0.7 else (), writes, appends)))
            elif choice < 0.7:
                found.append(await store.get(key, at=at))
            elif choice < 0.85:
                found.append(await store.range("/k/", at=at, after=key, limit=chance.randrange(5)))
            elif choice < 0.9:
                found.append(await store.read_log("log", after=chance.randrange(100), limit=5))
            elif choice < 0.97:
                found += await _changes(store, min(at, store.head))
            elif choice < 0.98:
                await store.compact(at)
            else:
                await store.trim_log("log", keep=chance.randrange(50))
        except Fault as fault:
            found.append((type(fault), fault.facts.get("key")))
        found.append((store.head, store.compacted))
    found.append(await store.range(""))
    return found


async def _changes(store: CountedStore, after: int) -> list[Change]:
    """Everything after a revision, independent of how the watch batches it."""
    changes: list[Change] = []
    watch = store.watch("/k/", after=after)
    while after < store.head:
        changes += await anext(watch)
        after = changes[-1].revision
    return changes


async def test_memory_and_sqlite_give_same_results(tmp_path: Path) -> None:
    await compare(SqliteStore(tmp_path / "cell.db"), FAST_OPERATIONS)


@pytest.mark.slow
async def test_memory_and_sqlite_give_same_results_in_long_run(tmp_path: Path) -> None:
    await compare(SqliteStore(tmp_path / "cell.db"), OPERATIONS)


@pytest.mark.slow
@pytest.mark.timeout(max(1800, CLUSTER_OPERATIONS // 20))
@pytest.mark.parametrize("subject", ["etcd", "etcd-3", "etcd-3.5"], indirect=True)
async def test_memory_and_etcd_give_same_results(subject: Subject, tmp_path: Path) -> None:
    await compare(await subject.open(tmp_path), CLUSTER_OPERATIONS)


async def compare(store: Store, operations: int) -> None:
    expected = await answers(CountedStore(MemoryStore()), 7, operations)
    found = await answers(CountedStore(store), 7, operations)
    for n, (one, other) in enumerate(zip(expected, found, strict=False)):
        assert one == other, f"answer {n}"
    assert len(found) == len(expected)
    await store.close()
