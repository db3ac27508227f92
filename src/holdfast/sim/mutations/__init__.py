"""Bugs to plant: mutations of production code, kept outside of it, each switchable.

The simulation is worth as much as the bugs it would find. Each mutation takes one defence away, or makes a mistake that
people make; where two defences stand one behind the other, the mutation takes both, or it would look harmless for the
wrong reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.sim.mutations import handling, lease, placing, sharing, telling

Plant = Callable[["Patch"], None]


class Patch:
    """Replaces attributes and remembers what was there."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._saved.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    def undo(self) -> None:
        for owner, name, value in reversed(self._saved):
            setattr(owner, name, value)
        self._saved.clear()


class Mutation(msgspec.Struct, frozen=True):
    """`says` is the mistake in words; `plant` makes it."""

    name: str
    says: str
    plant: Plant


MUTATIONS: tuple[Mutation, ...] = tuple(
    Mutation(name, says, plant)
    for part in (placing, lease, sharing, telling, handling)
    for name, says, plant in part.TABLE
)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Inside, production code has this bug."""
    mutation = next(m for m in MUTATIONS if m.name == name)
    patch = Patch()
    try:
        mutation.plant(patch)
        yield
    finally:
        patch.undo()
