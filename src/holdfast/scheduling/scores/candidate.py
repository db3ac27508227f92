"""State of candidate nodes with the replica placed on them: the input of every score.

A candidate is a node (its slot in the snapshot) and a level: the number of identical replicas that the plan already
placed there. The same code scores all nodes at once and the next placements on one node, with equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.scheduling.filters.spread import Skew
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Counts
from holdfast.scheduling.snapshot.frozen import percent

T = TypeVar("T")


class CandidateState:
    """`slots` None means all slots. `known` caches values that do not change while identical replicas are placed."""

    def __init__(
        self,
        scratch: Scratch,
        requirements: ReplicaRequirements,
        skew: Skew,
        known: dict[str, Counts],
        *,
        slots: NDArray[np.intp] | None = None,
        level: Counts | int = 0,
    ) -> None:
        self.scratch = scratch
        self.requirements = requirements
        self._skew = skew
        self._known = known
        self._slots = slots
        self._level = level
        self._used_percent: Counts | None = None

    def cached_while_nodes_unchanged(self, name: str, key: Hashable, compute: Callable[[], Counts]) -> Counts:
        """A score that depends only on static node facts and `key`; cached for all slots until a node changes."""
        snapshot = self.scratch.snapshot
        found = snapshot.static.memo.get((name, key))
        if found is None:
            found = snapshot.memoize((name, key), compute())
        return self.select(found)

    def cached_for_request(self, name: str, compute: Callable[[CandidateState], Counts]) -> Counts:
        """A score that depends only on the slot; computed for all slots once per request."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = compute(self)
        return self.select(found)

    @property
    def covers_all_slots(self) -> bool:
        """Whether the candidates are all slots at level 0."""
        return self._slots is None and not isinstance(self._level, np.ndarray) and not self._level

    def for_slots(self, slots: NDArray[np.intp]) -> CandidateState:
        """The same state, restricted to some slots."""
        return CandidateState(self.scratch, self.requirements, self._skew, self._known, slots=slots)

    def select(self, per_slot: Counts) -> Counts:
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
            self._used_percent = percent(with_it, capacity, scratch.snapshot.static.largest_capacity)
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
        return self.select(scratch.free_for_reclaimable[row]) - self.requirements.amounts.get(resource, 0) * self._level

    def by_sibling_count(self, points: Callable[[Counts], Counts]) -> Counts:
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
        return self.scratch.free_for_reclaimable.shape[1] if self._slots is None else len(self._slots)

    def _rows(self) -> tuple[list[int] | slice, Counts]:
        """CPU and memory are rows 0 and 1; a slice of only those avoids a copy."""
        amount_by_row = dict(self.scratch.rows(self.requirements))
        rows = sorted({0, 1} | amount_by_row.keys())
        amounts: Counts = np.array([amount_by_row.get(row, 0) for row in rows], dtype=np.int64)
        return (slice(0, 2) if len(rows) == 2 else rows), amounts
