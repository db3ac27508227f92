"""The stores that the conformance suite checks. A new store is one more line in `SUBJECTS`.

The etcd subjects are real clusters, started on first use and stopped with the session; every opened store is a cell of
its own in them.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from tests import etcd_cluster

from holdfast.store.contract import Store
from holdfast.store.etcd.store import open_store
from holdfast.store.etcd.target import EtcdTarget
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore


@dataclass(frozen=True)
class Subject:
    """How to open a store. A durable store reopened at the same location has the same content."""

    name: str
    open: Callable[[Path], Awaitable[Store]]
    durable: bool
    in_process: bool = True
    """Whether commits on their way at once keep their order, and revisions follow one another without gaps."""


async def _memory(place: Path) -> Store:
    return MemoryStore()


async def _sqlite(place: Path) -> Store:
    return SqliteStore(place / "cell.db")


def _etcd(endpoints: tuple[str, ...], above: int) -> Callable[[Path], Awaitable[Store]]:
    async def open_at(place: Path) -> Store:
        cell = f"cell-{zlib.crc32(str(place).encode()):x}"
        return await open_store(cell, EtcdTarget(endpoints=endpoints), place, above=above)

    return open_at


SUBJECTS = {"memory": Subject("memory", _memory, durable=False), "sqlite": Subject("sqlite", _sqlite, durable=True)}
CLUSTERS = {"etcd": (1, "etcd"), "etcd-restored": (1, "etcd"), "etcd-3": (3, "etcd"), "etcd-3.5": (1, "etcd-3.5")}
"""How many members, and of which program. The last two take their time: they are left out of the fast tests."""
SLOW = ("etcd-3", "etcd-3.5")
RESTORED_ABOVE = 1 << 47
"""Revisions of `etcd-restored` are above this, like those of a cell restored on another cluster."""


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Subject]]:
    started: dict[str, etcd_cluster.Cluster] = {}

    def subject(name: str) -> Subject:
        if name not in started:
            size, program = CLUSTERS[name]
            started[name] = etcd_cluster.Cluster(tmp_path_factory.mktemp(name), size, program=program)
            started[name].start()
        above = RESTORED_ABOVE if name == "etcd-restored" else 0
        return Subject(name, _etcd(started[name].endpoints, above), durable=True, in_process=False)

    yield subject
    for cluster in started.values():
        cluster.end()


@pytest.fixture(
    params=[*SUBJECTS, *(pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CLUSTERS)]
)
def subject(request: pytest.FixtureRequest, clusters: Callable[[str], Subject]) -> Subject:
    return SUBJECTS.get(request.param) or clusters(request.param)


@pytest_asyncio.fixture
async def store(subject: Subject, tmp_path: Path) -> AsyncIterator[Store]:
    opened = await subject.open(tmp_path)
    yield opened
    await opened.close()
