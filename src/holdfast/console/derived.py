"""Rows derived from objects. An object that did not change keeps its row, so a fleet at rest costs almost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from holdfast.model.meta import Object

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object
R = TypeVar("R")


class DerivedRows(Generic[O, R]):
    """Objects are immutable, so the same object has the same row."""

    def __init__(self, derive: Callable[[O], R]) -> None:
        self._derive = derive
        self._known: dict[str, tuple[O, R]] = {}

    def rows(self, objects: Iterable[O]) -> list[R]:
        known, found = self._known, {}
        for item in objects:
            uid = item.metadata.uid
            held = known.get(uid)
            if held is None or held[0] is not item:
                held = (item, self._derive(item))
            found[uid] = held
        self._known = found
        return [row for _, row in found.values()]


def percentile(values: list[float], part: float) -> float:
    """The value below which this part of the sorted values lies; 0 without values."""
    if not values:
        return 0.0
    return values[min(len(values) - 1, int(part * len(values)))]
