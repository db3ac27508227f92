"""The stores that the conformance suite holds to the contract. A new store joins by one line in `SUBJECTS`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.store.contract import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore


@dataclass(frozen=True)
class Subject:
    """How to open a store; a durable one opened again at the same place holds what it held."""

    name: str
    open: Callable[[Path], Awaitable[Store]]
    durable: bool
    distinct_revisions: bool
    """Whether two writes of one commit have different revisions."""


async def _memory(place: Path) -> Store:
    return MemoryStore()


async def _sqlite(place: Path) -> Store:
    return SqliteStore(place / "cell.db")


SUBJECTS = [
    Subject("memory", _memory, durable=False, distinct_revisions=True),
    Subject("sqlite", _sqlite, durable=True, distinct_revisions=True),
]


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    return request.param


@pytest_asyncio.fixture
async def store(subject: Subject, tmp_path: Path) -> AsyncIterator[Store]:
    opened = await subject.open(tmp_path)
    yield opened
    await opened.close()
