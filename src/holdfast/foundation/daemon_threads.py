"""Blocking calls in threads of their own, which do not keep the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


async def run_in_thread(call: Callable[[], T], bounds: Sequence[asyncio.Semaphore] = ()) -> T:
    """Runs the call in a thread of its own and returns its result.

    A caller that is cancelled does not wait for the thread. The thread counts in `bounds` until it ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    taken: list[asyncio.Semaphore] = []
    try:
        for bound in bounds:
            await bound.acquire()
            taken.append(bound)
    except BaseException:
        for bound in taken:
            bound.release()
        raise

    def finish(result: list[T], error: BaseException | None) -> None:
        for bound in bounds:
            bound.release()
        if not done.done():
            done.set_exception(error) if error is not None else done.set_result(result[0])

    def run() -> None:
        error: BaseException | None = None
        result: list[T] = []
        try:
            result.append(call())
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, result, error)

    Thread(target=run, name="blocking", daemon=True).start()
    return await done
