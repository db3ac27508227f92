"""Values as a test expects them: each function fails if its value is not so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def present(item: T | None) -> T:
    assert item is not None
    return item


def of_type(item: object, kind: type[T]) -> T:
    assert isinstance(item, kind), f"{item!r} is no {kind.__name__}"
    return item


def only(items: Iterable[object], kind: type[T]) -> T:
    """The only one of the items, which is of this type."""
    (item,) = items
    return of_type(item, kind)
