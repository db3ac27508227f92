"""Tasks that run together: a failure ends the others and leaves the caller usable."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.foundation.tasks import cancel_and_wait, run_until_first_ends


def test_caller_survives_the_failure_of_one_task() -> None:
    """With a TaskGroup the caller stays marked as cancelled in Python 3.11, and its next wait raises CancelledError."""
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("endless")

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("failed")

    async def main() -> None:
        with pytest.raises(ValueError, match="failed"):
            await run_until_first_ends(endless(), failing(), endless())
        assert ended == ["endless", "endless"]
        current = asyncio.current_task()
        assert current is not None and not current.cancelling()
        await cancel_and_wait(asyncio.create_task(endless()))

    asyncio.run(main())


def test_cancelled_caller_ends_all_tasks() -> None:
    ended: list[int] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(1)

    async def main() -> None:
        running = asyncio.create_task(run_until_first_ends(endless(), endless()))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(ended) == 2

    asyncio.run(main())
