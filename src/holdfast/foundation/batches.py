"""Batches of bounded size that are split when they are refused.

Items keep their order, and none is skipped. A refused batch is split down to single items, so that one invalid or stale
item costs the others only a few more calls. This module neither waits nor retries: `send` handles all other faults.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def batches(items: Iterable[T], most: int, size: Callable[[T], int] | None = None) -> Iterator[list[T]]:
    """Cuts items into batches of total size at most `most`. An item has size 1 unless `size` is given; a larger item
    is a batch alone."""
    batch: list[T] = []
    total = 0
    for item in items:
        more = 1 if size is None else size(item)
        if batch and total + more > most:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += more
    if batch:
        yield batch


async def send_divided(
    items: Sequence[T],
    send: Callable[[Sequence[T]], Awaitable[object]],
    refused: Callable[[T, E], None],
    refusals: tuple[type[E], ...],
    *,
    singly: bool = False,
) -> None:
    """Sends all items at once. If that raises one of `refusals`, sends each half alone, the first half first. `refused`
    is called for every single item that is still refused. `singly` splits into single items at once, for items that
    are mostly refused together."""
    waiting = [items] if items else []
    while waiting:
        some = waiting.pop()
        try:
            await send(some)
        except refusals as refusal:
            if len(some) == 1:
                refused(some[0], refusal)
            elif singly:
                waiting += ((item,) for item in reversed(some))
            else:
                half = len(some) // 2
                waiting += (some[half:], some[:half])
