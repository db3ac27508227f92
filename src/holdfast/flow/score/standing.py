"""State of candidate nodes with the replica placed on them: the input of every score.

A candidate is a slot and a level, the number of identical replicas placed there before. The same code scores all nodes
at once and the next placements on one node, with equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.flow.ask import Ask
from holdfast.flow.filter.spread import Skew
from holdfast.flow.scratch import Scratch
from holdfast.flow.snapshot import Counts
from holdfast.flow.snapshot.frozen import percent

T = TypeVar("T")


class Standing:
    """`slots` None means all slots. `known` caches values that do not change while identical replicas are placed."""

    def __init__(
        self,
        scratch: Scratch,
        ask: Ask,
        skew: Skew,
        known: dict[str, Counts],
        *,
        slots: NDArray[np.intp] | None = None,
        level: Counts | int = 0,
    ) -> None:
        self.scratch = scratch
        self.ask = ask
        self._skew = skew
        self._known = known
        self._slots = slots
        self._level = level
        self._used_percent: Counts | None = None

    def kept(self, name: str, key: Hashable, compute: Callable[[], Counts]) -> Counts:
        """A score that depends only on static node facts and `key`; cached for all slots until a node changes."""
        snapshot = self.scratch.snapshot
        found = snapshot.static.memo.get((name, key))
        if found is None:
            found = snapshot.remember((name, key), compute())
        return self.pick(found)

    def once(self, name: str, compute: Callable[[Standing], Counts]) -> Counts:
        """A score that depends only on the slot; computed for all slots once per request."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = compute(self)
        return self.pick(found)

    @property
    def everywhere(self) -> bool:
        """Whether the candidates are all slots at level 0."""
        return self._slots is None and not isinstance(self._level, np.ndarray) and not self._level

    def only(self, slots: NDArray[np.intp]) -> Standing:
        """The same state, restricted to some slots."""
        return Standing(self.scratch, self.ask, self._skew, self._known, slots=slots)

    def pick(self, per_slot: Counts) -> Counts:
        return per_slot if self._slots is None else per_slot[..., self._slots]

    @property
    def used_percent(self) -> Counts:
        """[resource, candidate]: percent used with the replica placed, for CPU, memory and requested resources."""
        if self._used_percent is None:
            scratch = self.scratch
            rows, amounts = self._rows()
            if self._slots is None:
                capacity, used = scratch.snapshot.capacity[rows], scratch.used[rows]
            else:
                cells = np.ix_(np.array(rows), self._slots) if isinstance(rows, list) else (rows, self._slots)
                capacity, used = scratch.snapshot.capacity[cells], scratch.used[cells]
            with_it = used + amounts[:, None] * (self._level + 1)
            self._used_percent = percent(with_it, capacity, scratch.snapshot.static.largest)
        return self._used_percent

    @property
    def most_used_percent(self) -> Counts:
        """[candidate]: the highest of these percentages."""
        first, *others = self.used_percent
        most: Counts = first
        for other in others:
            most = np.maximum(most, other)
        return most

    def free(self, resource: str) -> Counts:
        """[candidate]: free amount of a resource before the placement."""
        scratch = self.scratch
        row = scratch.snapshot.resources.get(resource)
        if row is None:
            return np.zeros(self.size, dtype=np.int64)
        return self.pick(scratch.room[row]) - self.ask.amounts.get(resource, 0) * self._level

    def by_own(self, points: Callable[[Counts], Counts]) -> Counts:
        """Points by the number of replicas of the same workload on each candidate before the placement."""
        nodes = self._skew.nodes
        if self._slots is None and not isinstance(self._level, np.ndarray):
            # Few nodes have any replica; all others get the points for zero.
            none: Counts = np.array([self._level], dtype=np.int64)
            found: Counts = np.full(self.size, points(none)[0], dtype=np.int64)
            if nodes:
                found[list(nodes)] = points(np.array(list(nodes.values()), dtype=np.int64) + self._level)
            return found
        slots = range(self.size) if self._slots is None else self._slots.tolist()
        return points(np.array([nodes.get(slot, 0) for slot in slots], dtype=np.int64) + self._level)

    @property
    def size(self) -> int:
        return self.scratch.room.shape[1] if self._slots is None else len(self._slots)

    def _rows(self) -> tuple[list[int] | slice, Counts]:
        """CPU and memory are rows 0 and 1; a slice of only those avoids a copy."""
        wanted = dict(self.scratch.rows(self.ask))
        rows = sorted({0, 1} | wanted.keys())
        amounts: Counts = np.array([wanted.get(row, 0) for row in rows], dtype=np.int64)
        return (slice(0, 2) if len(rows) == 2 else rows), amounts
