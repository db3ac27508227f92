"""Cancellation of asyncio tasks without losing their failures."""

from __future__ import annotations

import asyncio

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
