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

    async def work(name: str, count: int, until: asyncio.Event | None = None) -> None:
        async with semaphore.acquire(count):
            if until is not None:
                await until.wait()
            done.append(name)

    small_done = asyncio.Event()
    first = asyncio.create_task(work("first", 1, small_done))
    await asyncio.sleep(0)
    large = asyncio.create_task(work("large", 2))
    small = asyncio.create_task(work("small", 1))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.wait_for(small, 60.0)
    small_done.set()
    await asyncio.gather(first, large, return_exceptions=True)
    assert done == ["small", "first"]
    await asyncio.wait_for(work("all", 2), 60.0)
