"""Cancellation of asyncio tasks without losing their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog


async def cancel_and_wait(*tasks: asyncio.Task[None] | None) -> None:
    """Cancels the tasks and waits until all have ended. Exceptions they raise are logged."""
    live = [task for task in tasks if task is not None]
    for task in live:
        task.cancel()
    for task in live:
        try:
            await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
        except Exception:
            structlog.get_logger().exception("task_failed", task=task.get_name())


async def cancel_quietly(*futures: asyncio.Future[Any]) -> None:
    """Cancels and waits until all have ended. Their failures are lost: the caller has reported the one that matters."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


async def run_until_first_ends(*work: Coroutine[Any, Any, None]) -> None:
    """Runs all until one ends, cancels the others, and raises the exception of the one that ended.

    Unlike `asyncio.TaskGroup`, which in Python 3.11 and 3.12 leaves the caller marked as cancelled after a failure.
    """
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*(task for task in tasks if not task.done()))
    for task in tasks:
        if task in done:
            task.result()
