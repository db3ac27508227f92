"""Work in batches: cut to a bounded size, and divided when a batch is refused.

What always holds: items keep their order, and none is left out. A batch that is refused is divided, down to single
items, so that one wrong or late item costs the others a few more calls and nothing else. Nothing here waits
or retries: `send` deals with every fault that is no item's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def batches(items: Iterable[T], most: int, size: Callable[[T], int] | None = None) -> Iterator[list[T]]:
    """Runs of items of at most `most` in all; every item counts one unless `size` says more. An item that is larger
    than that is a batch of its own."""
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
    """Sends all items at once. If that raises one of `refusals`, sends each half by itself, the first half first.
    `refused` is told of every single item that is still refused. `singly` divides into single items at once, for items
    that are mostly refused together: halving would send most of them several times."""
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
