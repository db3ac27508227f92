"""Batches are cut to a bounded size, and a refused batch is divided until only the refused items are left out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.virtual import run

from holdfast.foundation.batches import batches, send_divided
from holdfast.model.errors import Conflict, Unavailable


@given(st.lists(st.integers(1, 9)), st.integers(1, 12))
def test_batches_keep_every_item_in_order_within_the_bound(sizes: list[int], most: int) -> None:
    cut = list(batches(sizes, most, lambda size: size))
    assert [size for batch in cut for size in batch] == sizes
    assert all(sum(batch) <= most or len(batch) == 1 for batch in cut)
    assert all(sum(one) + next_[0] > most for one, next_ in itertools.pairwise(cut))


@pytest.mark.parametrize("singly", [False, True])
@given(st.lists(st.booleans(), max_size=40))
def test_send_divided_delivers_all_but_the_refused_items(singly: bool, good: list[bool]) -> None:
    delivered: list[int] = []
    refused: list[int] = []

    async def send(some: Sequence[int]) -> None:
        if not all(good[number] for number in some):
            raise Conflict
        delivered.extend(some)

    async def main() -> None:
        numbers = range(len(good))
        await send_divided(numbers, send, lambda number, _: refused.append(number), (Conflict,), singly=singly)

    run(main)
    assert delivered == [number for number, well in enumerate(good) if well]
    assert refused == [number for number, well in enumerate(good) if not well]


def test_send_divided_passes_other_faults_on() -> None:
    async def send(some: Sequence[int]) -> None:
        raise Unavailable

    async def main() -> None:
        with pytest.raises(Unavailable):
            await send_divided([1, 2], send, lambda *_: None, (Conflict,))

    run(main)
