"""Columns of interned values: one small integer per node, so that a test runs once per distinct value, not per node.

`ids` has one entry per slot. Values are only appended, so a frozen column shares the list with its builder; compaction
starts a new list.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=Hashable)


class InternedColumn(Generic[T]):
    """Frozen: one value per slot, held as an index into `values`."""

    __slots__ = ("ids", "values")

    def __init__(self, values: list[T], ids: NDArray[np.int32]) -> None:
        self.values = values
        self.ids = ids

    def at(self, slot: int) -> T:
        return self.values[int(self.ids[slot])]

    def where(self, test: Callable[[T], bool]) -> NDArray[np.bool_]:
        """Slots whose value passes; `test` is called once per distinct value."""
        return np.array([test(value) for value in self.values], dtype=np.bool_)[self.ids]

    def numbers(self, measure: Callable[[T], int]) -> NDArray[np.int64]:
        """The measure of every slot's value; `measure` is called once per distinct value."""
        return np.array([measure(value) for value in self.values], dtype=np.int64)[self.ids]


class GrowingColumn(Generic[T]):
    """The mutable column of the builder. Slots without a node hold the value `empty`."""

    __slots__ = ("_empty", "_index", "_values", "ids")

    def __init__(self, empty: T, slots: int) -> None:
        self._empty = empty
        self._values: list[T] = [empty]
        self._index: dict[T, int] = {empty: 0}
        self.ids: NDArray[np.int32] = np.zeros(slots, dtype=np.int32)

    def put(self, slot: int, value: T) -> bool:
        """Whether the slot's value changed."""
        index = self._index.get(value)
        if index is None:
            index = self._index[value] = len(self._values)
            self._values.append(value)
        if self.ids[slot] == index:
            return False
        self.ids[slot] = index
        return True

    def clear(self, slot: int) -> None:
        self.ids[slot] = 0

    def grow(self, slots: int) -> None:
        self.ids = np.concatenate([self.ids, np.zeros(slots - len(self.ids), dtype=np.int32)])

    def freeze(self, slots: int) -> InternedColumn[T]:
        """A copy of the first slots. Unused values are dropped once they outnumber the slots."""
        if len(self._values) > 2 * len(self.ids) + 16:
            self._compact()
        return InternedColumn(self._values, self.ids[:slots].copy())

    def _compact(self) -> None:
        old = self._values
        self._values, self._index = [self._empty], {self._empty: 0}
        for slot, index in enumerate(self.ids.tolist()):
            self.put(slot, old[index])
