"""Finds the smallest sufficient set of victims on one node. Pure; knows only numbers.

- `gives[i]` is what candidate i frees, `needs` what is missing, in the same dimensions. A set that frees less in one
  dimension is never tried. `suffices` decides about the rest: devices, ports, budgets, neighbours.
- Sets are tried by size, then by their highest priority. Within `SearchSteps` the smallest set is found for certain;
  beyond it a set is built greedily, which is sufficient and minimal, but not always the smallest.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

# Steps of the search on one node: partial sets extended, and sets checked (`_CHECK_STEPS` each). At the bound the set
# is built greedily.
VICTIM_SEARCH_STEPS_MAX = 20_000
# Sufficient sets of equal size and highest priority that are compared per node. At the bound the cheapest so far wins.
VICTIM_SETS_MAX = 512

_CHECK_STEPS = 10

Gives = tuple[int, ...]
IndexSet = tuple[int, ...]
NOT_FOUND: IndexSet = ()


class SearchSteps:
    """Steps left for one node and for one replica. The nodes of a replica share `total`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.complete = True
        """Whether the search of the current node has compared every set that it had to."""
        self._left = 0

    def begin_node(self) -> None:
        self._left = min(VICTIM_SEARCH_STEPS_MAX, self.total)
        self.complete = True
        self.spend(_CHECK_STEPS)

    def spend(self, steps: int) -> None:
        self._left -= steps
        self.total -= steps

    @property
    def exhausted(self) -> bool:
        return self._left <= 0


class Candidates(msgspec.Struct, frozen=True):
    """The possible victims of a node, in the order in which they are tried."""

    gives: Sequence[Gives]
    priorities: Sequence[int]
    needs: Gives
    fits: Callable[[IndexSet], bool]
    """Whether the replica fits, apart from `needs`, if these candidates leave, and all of them may leave."""
    allows: Callable[[IndexSet], bool]
    """Whether these candidates may leave together."""
    cost: Callable[[IndexSet], Any]

    def suffices(self, chosen: Sequence[int]) -> bool:
        return _covers(self, chosen) and self.fits(tuple(sorted(chosen)))


def smallest_set(candidates: Candidates, most: int, steps: SearchSteps) -> IndexSet:
    """The cheapest sufficient set of at most `most` candidates; empty if there is none."""
    steps.begin_node()
    everyone = range(len(candidates.gives))
    if not _covers(candidates, everyone):
        return NOT_FOUND
    levels = sorted(set(candidates.priorities))
    for size in range(1, min(len(everyone), most) + 1):
        if not _top_covers(candidates, everyone, size):
            continue
        for level in levels:
            below = [i for i in everyone if candidates.priorities[i] <= level]
            if len(below) < size or not _top_covers(candidates, below, size):
                continue
            found = _SizedSearch(candidates, below, size, steps).run()
            if found:
                return found
            if steps.exhausted:
                return _greedy(candidates, most)
    return NOT_FOUND


class _SizedSearch:
    """All sets of one size, depth first. A branch ends when even the most giving rest would not be enough."""

    def __init__(self, candidates: Candidates, indexes: list[int], size: int, steps: SearchSteps) -> None:
        self._candidates, self._indexes, self._size, self._steps = candidates, indexes, size, steps
        self._best: tuple[Any, IndexSet] | None = None
        self._compared = 0
        self._top = _suffix_tops(candidates, indexes, size)

    def run(self) -> IndexSet:
        self._extend((), 0, self._candidates.needs)
        return self._best[1] if self._best is not None else NOT_FOUND

    @property
    def _done(self) -> bool:
        return self._steps.exhausted or self._compared >= VICTIM_SETS_MAX

    def _extend(self, chosen: IndexSet, start: int, missing: Gives) -> None:
        left = self._size - len(chosen)
        if not left:
            if all(need <= 0 for need in missing):
                self._compare(chosen)
            return
        gives = self._candidates.gives
        for position in range(start, len(self._indexes) - left + 1):
            if self._done:
                self._steps.complete = False
                return
            self._steps.spend(1)
            tops = self._top[position]
            if any(top[left - 1] < need for top, need in zip(tops, missing, strict=True)):
                return  # the candidates from here on are not enough, whichever are chosen
            index = self._indexes[position]
            rest = tuple(need - give for need, give in zip(missing, gives[index], strict=True))
            self._extend((*chosen, index), position + 1, rest)

    def _compare(self, chosen: IndexSet) -> None:
        self._steps.spend(_CHECK_STEPS)
        if not self._candidates.fits(chosen):
            return
        self._compared += 1
        ranked = (self._candidates.cost(chosen), chosen)
        if self._best is None or ranked < self._best:
            self._best = ranked


def _suffix_tops(candidates: Candidates, indexes: list[int], size: int) -> list[tuple[list[int], ...]]:
    """For each position and dimension: what the 1, 2, … `size` most giving candidates from there on free together."""
    dimensions = range(len(candidates.needs))
    largest: list[list[int]] = [[] for _ in dimensions]
    tops: list[tuple[list[int], ...]] = []
    for index in reversed(indexes):
        row = []
        for dimension in dimensions:
            insort(largest[dimension], -candidates.gives[index][dimension])
            del largest[dimension][size:]
            total, sums = 0, []
            for give in largest[dimension]:
                total -= give
                sums.append(total)
            row.append(sums + sums[-1:] * (size - len(sums)))
        tops.append(tuple(row))
    tops.reverse()
    return tops


def _covers(candidates: Candidates, chosen: Sequence[int]) -> bool:
    return all(
        sum(candidates.gives[i][dimension] for i in chosen) >= need for dimension, need in enumerate(candidates.needs)
    )


def _top_covers(candidates: Candidates, among: Sequence[int], size: int) -> bool:
    for dimension, need in enumerate(candidates.needs):
        gives = sorted((candidates.gives[i][dimension] for i in among), reverse=True)
        if sum(gives[:size]) < need:
            return False
    return True


def exceeds(candidates: Candidates, most: int) -> bool:
    """Whether a set of more than `most` candidates suffices. The largest allowed set is tried, no smaller one."""
    return (
        len(candidates.gives) > most
        and _covers(candidates, range(len(candidates.gives)))
        and (candidates.suffices(_all_allowed(candidates)))
    )


def _greedy(candidates: Candidates, most: int) -> IndexSet:
    """The cheaper of two greedy sets; empty if neither suffices."""
    found = (_reduced(candidates, start) for start in (_most_giving(candidates), _all_allowed(candidates)))
    sufficient = [chosen for chosen in found if chosen and len(chosen) <= most]
    return min(sufficient, key=candidates.cost, default=NOT_FOUND)


def _most_giving(candidates: Candidates) -> list[int]:
    """Takes the candidate that frees the largest part of what is still missing, until nothing is missing."""
    missing = list(candidates.needs)
    chosen: list[int] = []
    left = list(range(len(candidates.gives)))
    while left and not candidates.suffices(chosen):
        best = max(left, key=lambda i: (_part(candidates.gives[i], missing), -candidates.priorities[i], -i))
        left.remove(best)
        if candidates.allows(tuple(sorted((*chosen, best)))):
            chosen.append(best)
            missing = [need - give for need, give in zip(missing, candidates.gives[best], strict=True)]
    return chosen


def _part(gives: Gives, missing: Sequence[int]) -> float:
    return sum(min(give, need) / need for give, need in zip(gives, missing, strict=True) if need > 0)


def _all_allowed(candidates: Candidates) -> list[int]:
    chosen: list[int] = []
    for index in range(len(candidates.gives)):
        if candidates.allows((*chosen, index)):
            chosen.append(index)
    return chosen


def _reduced(candidates: Candidates, chosen: list[int]) -> IndexSet:
    """Drops as many as possible, highest priority first; empty if the set does not suffice."""
    if not candidates.suffices(chosen):
        return NOT_FOUND
    for index in sorted(chosen, key=lambda i: (-candidates.priorities[i], sum(candidates.gives[i]), i)):
        without = tuple(sorted(i for i in chosen if i != index))
        if without and candidates.suffices(without):
            chosen.remove(index)
    return tuple(sorted(chosen))
