from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.authority.cell import Cell


@pytest_asyncio.fixture
async def cell() -> AsyncIterator[Cell]:
    """A cell with one node, a large grant and a started authority."""
    made = await Cell.open()
    await made.node()
    await made.grant()
    await made.lead()
    yield made
    await made.close()
