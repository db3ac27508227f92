from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.authority.cell import Cell


@pytest_asyncio.fixture
async def cell() -> AsyncIterator[Cell]:
    """One node, a generous grant, and an authority that has started."""
    made = await Cell.open()
    await made.node()
    await made.grant()
    await made.lead()
    yield made
    await made.close()
