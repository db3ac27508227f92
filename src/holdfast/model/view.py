"""View: the objects that a decision may read, as last seen by its process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.model.meta import Object

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


Measure = Callable[[Any], Mapping[Any, int]]
"""Amounts that one object adds to a total, by name. Must be pure; the function itself identifies the total."""


class Totals:
    """Sums of measures over groups of objects, updated with every change, so that reading a sum is cheap.

    Zero amounts are left out, so that a total depends only on the present objects.
    """

    def __init__(self) -> None:
        self._kept: dict[Measure, dict[Hashable, dict[Any, int]]] = {}
        self._groups: dict[Measure, Callable[[Any], Hashable]] = {}

    def is_tracked(self, measure: Measure) -> bool:
        return measure in self._kept

    def track(self, measure: Measure, group: Callable[[Any], Hashable], items: Sequence[Any] = ()) -> None:
        """Starts a total; `items` are all present objects."""
        self._kept[measure], self._groups[measure] = {}, group
        for item in items:
            self._add(measure, item, 1, measure(item))

    def total(self, measure: Measure, group: Hashable) -> Mapping[Any, int]:
        return self._kept[measure].get(group, {})

    def update(self, old: Any | None, new: Any | None, *, only: Measure | None = None) -> None:
        for measure in self._kept if only is None else (only,):
            if old is not None and new is not None:
                before, after, group = measure(old), measure(new), self._groups[measure]
                if before == after and group(old) == group(new):
                    continue  # most changes concern no total
                self._add(measure, old, -1, before)
                self._add(measure, new, 1, after)
            elif old is not None:
                self._add(measure, old, -1, measure(old))
            elif new is not None:
                self._add(measure, new, 1, measure(new))

    def _add(self, measure: Measure, item: Any, sign: int, amounts: Mapping[Any, int]) -> None:
        sums, group = self._kept[measure], self._groups[measure](item)
        found = sums.setdefault(group, {})
        for name, amount in amounts.items():
            total = found.get(name, 0) + sign * amount
            if total:
                found[name] = total
            else:
                found.pop(name, None)
        if not found:
            del sums[group]


class View(Protocol):
    """Lists are sorted by key, so that decisions are reproducible."""

    def get(self, kind: type[O], name: str, namespace: str = "") -> O | None: ...

    def list(self, kind: type[O], namespace: str = "") -> Sequence[O]: ...

    def by(self, kind: type[O], index: str, value: str) -> Sequence[O]:
        """Objects that have `value` in an index of `model.indexes`."""

    def total(self, kind: type[O], namespace: str, measure: Measure) -> Mapping[Any, int]:
        """The sum of a measure over the objects of a namespace; over all objects for "" or a cluster-scoped kind."""
