"""The published objects of a cell as a `View`, for pure decision functions that admission calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.view import Measure
from holdfast.store.objects import ObjectReads

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class PublishedView:
    """Implements `model.view.View` on the cell's objects: always the newest state, without a cache."""

    def __init__(self, objects: ObjectReads) -> None:
        self._objects = objects

    def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        return cast("O | None", self._objects.get(kind_of(kind), namespace, name))

    def list(self, kind: type[O], namespace: str = "") -> Sequence[O]:
        return cast("Sequence[O]", self._objects.list(kind_of(kind), namespace)[0])

    def by(self, kind: type[O], index: str, value: str) -> Sequence[O]:
        return cast("Sequence[O]", self._objects.list(kind_of(kind), "", fields={index: value})[0])

    def total(self, kind: type[O], namespace: str, measure: Measure) -> Mapping[Any, int]:
        found: dict[Any, int] = {}
        for item in self.list(kind, namespace):
            for name, amount in measure(item).items():
                found[name] = found.get(name, 0) + amount
        return {name: amount for name, amount in found.items() if amount}
