"""The nodes on which the replicas of one request may preempt, in the order in which they are examined. Pure.

- A nomination changes only its own node, so the ranking is computed once per request, and one entry moves after each
  nomination. The order always equals that of a ranking computed anew.
- A victim set that was found on a node stays the cheapest there until the node changes: the budgets of one request only
  shrink, so no cheaper set becomes allowed. The set itself must be checked again before it is used.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from holdfast.scheduling.plan.victim_selection import Victim
from holdfast.scheduling.snapshot import Bools, Counts


class VictimCost(NamedTuple):
    """Cost of a victim set, in the order of comparison."""

    victims: int
    highest: int
    total: int
    hurt: int
    names: tuple[str, ...]


class KnownSet(NamedTuple):
    """The cheapest victim set of a node, its cost, and the steps that its search took."""

    victims: tuple[Victim, ...]
    cost: VictimCost
    steps: int


class RankedNode(NamedTuple):
    """Lower bounds of victim count and highest priority, the tie-break, and the slot."""

    victims: int
    priority: int
    tie: int
    slot: int


class NodeRanking:
    """The ranking of one request for the candidates `eligible` on the slots `allowed`. What `before` found on a node,
    a ranking of the same request for other slots, holds here too."""

    def __init__(self, eligible: Bools, allowed: Bools, ties: Counts, before: NodeRanking | None = None) -> None:
        self.eligible, self.allowed = eligible, allowed
        self.nodes: list[RankedNode] = []
        self.known_sets: dict[int, KnownSet] = before.known_sets if before is not None else {}
        self.hopeless: dict[int, None] = before.hopeless if before is not None else {}
        """Nodes where no victims suffice, until a nomination changes them."""
        self._ties = ties
        self._by_slot: dict[int, RankedNode] = {}

    def fill(self, slots: Counts, victims: Counts, priorities: Counts) -> None:
        ties = self._ties[slots]
        order = np.lexsort((slots, ties, priorities, victims))
        columns = (victims[order].tolist(), priorities[order].tolist(), ties[order].tolist(), slots[order].tolist())
        self.nodes = [RankedNode(*row) for row in zip(*columns, strict=True)]
        self._by_slot = {node.slot: node for node in self.nodes}

    def change(self, slot: int, found: Sequence[tuple[int, int]]) -> None:
        """The node changed: `found` has its new bounds of victim count and priority, and is empty if it does not fit
        even without all candidates."""
        old = self._by_slot.pop(slot, None)
        if old is not None:
            del self.nodes[bisect_left(self.nodes, old)]
        self.known_sets.pop(slot, None)
        self.hopeless.pop(slot, None)
        for victims, priority in found:
            node = self._by_slot[slot] = RankedNode(victims, priority, int(self._ties[slot]), slot)
            insort(self.nodes, node)
