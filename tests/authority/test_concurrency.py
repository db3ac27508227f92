"""The item semaphore: FIFO order, bounded size, and cancelled waiters."""

from __future__ import annotations

import asyncio

from holdfast.authority.concurrency import ItemSemaphore


async def test_semaphore_serves_in_order_within_its_size() -> None:
    semaphore, order = ItemSemaphore(4), []
    in_use = most = 0

    async def work(name: str, count: int) -> None:
        nonlocal in_use, most
        async with semaphore.acquire(count):
            order.append(name)
            in_use += min(count, 4)
            most = max(most, in_use)
            await asyncio.sleep(0)
            in_use -= min(count, 4)

    await asyncio.gather(*(work(name, count) for name, count in (("a", 3), ("b", 4), ("c", 1), ("d", 9), ("e", 0))))
    assert order == ["a", "b", "c", "d", "e"]
    assert most == 4


async def test_semaphore_cancelled_waiter_does_not_block_others() -> None:
    semaphore = ItemSemaphore(2)
    done: list[str] = []

    async def work(name: str, count: int, seconds: float) -> None:
        async with semaphore.acquire(count):
            await asyncio.sleep(seconds)
            done.append(name)

    first = asyncio.create_task(work("first", 1, 0.02))
    await asyncio.sleep(0)
    large = asyncio.create_task(work("large", 2, 0.0))
    small = asyncio.create_task(work("small", 1, 0.0))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.gather(first, large, small, return_exceptions=True)
    assert done == ["small", "first"]
    await asyncio.wait_for(work("all", 2, 0.0), 1.0)
