"""What is derived from objects, and kept until they change: so a fleet at rest costs almost nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

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


class KeptValues:
    """Values that were computed from objects of some version. A value is computed anew when its version changes.

    `most` bounds the values: the one that was used least recently is dropped.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._kept: dict[Hashable, tuple[Hashable, Any]] = {}

    def value(self, name: Hashable, version: Hashable, compute: Callable[[], R]) -> R:
        held = self._kept.pop(name, None)
        if held is None or held[0] != version:
            held = (version, compute())
        self._kept[name] = held
        while len(self._kept) > self._most:
            self._kept.pop(next(iter(self._kept)))
        found: R = held[1]
        return found


def percentile(values: list[float], part: float) -> float:
    """The value below which this part of the sorted values lies; 0 without values."""
    if not values:
        return 0.0
    return values[min(len(values) - 1, int(part * len(values)))]
