"""How many replicas fit on the free nodes that a region reports. Pure.

Sums over a region hide that free resources lie on many nodes in parts. Reported shapes are per node, so an estimate
from them does not count parts that fit no replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from holdfast.model.quantity import GPU, WHOLE_GPU_MILLI, Amounts, amounts
from holdfast.model.region import NodeShape

# Replicas without resource requests that a region is assumed to have room for.
UNBOUNDED_FITS = 1_000_000
# Rounds in which replicas of one shape are put on free nodes. A bound on the work: replicas beyond it count only in the
# sum over the region.
PLACE_ROUNDS_MAX = 16


class FreeNodes:
    """Free nodes of a region, on which further replicas can be put. Changes while it is used; never stored."""

    def __init__(self, shapes: Iterable[NodeShape], *, reclaimable: bool = False) -> None:
        """`reclaimable` work may also use capacity of recovery slots."""
        self._groups: list[tuple[NodeShape, int, Amounts]] = []
        for shape in shapes:
            free = amounts(shape.resources)
            if reclaimable:
                for name, amount in amounts(shape.recovery_reserved).items():
                    free[name] = free.get(name, 0) + amount
            self._groups.append((shape, shape.nodes, free))

    def room_for(self, need: Mapping[str, int], usable: Callable[[NodeShape], bool]) -> int:
        """How many replicas fit on the usable nodes."""
        if not need:
            return UNBOUNDED_FITS
        return sum(nodes * node_fits(free, need, s.shared_gpu) for s, nodes, free in self._groups if usable(s))

    def most_on_one(self, need: Mapping[str, int], usable: Callable[[NodeShape], bool]) -> int:
        """How many replicas fit on the usable node with most room."""
        return max((node_fits(free, need, s.shared_gpu) for s, _, free in self._groups if usable(s)), default=0)

    def place(self, need: Mapping[str, int], count: int) -> int:
        """Puts replicas on the emptiest nodes, as regions do by default. Returns how many found room."""
        left = count
        for _ in range(PLACE_ROUNDS_MAX):
            able = [(node_fits(free, need, 0), index) for index, (_, _, free) in enumerate(self._groups)]
            most, index = max(able, default=(0, 0))
            if not left or not most or not need:
                break
            hosts = sum(self._groups[index][1] for fits, index in able if fits)
            shape, nodes, free = self._groups[index]
            each = min(most, max(1, left // hosts))
            used = min(nodes, max(1, left // each))
            after = {name: amount - each * need.get(name, 0) for name, amount in free.items()}
            self._groups[index : index + 1] = [(shape, used, after), *([(shape, nodes - used, free)] * (nodes > used))]
            left -= each * used
        return count - left


def node_fits(free: Mapping[str, int], need: Mapping[str, int], shared_gpu: int) -> int:
    """How many replicas fit on one node. A share of a GPU needs one GPU with that much free."""
    fewest = UNBOUNDED_FITS
    for name, amount in need.items():
        found = free.get(name, 0) // amount
        if name == GPU and amount < WHOLE_GPU_MILLI:
            found = free.get(GPU, 0) // WHOLE_GPU_MILLI * (WHOLE_GPU_MILLI // amount) + shared_gpu // amount
        fewest = min(fewest, found)
        if not fewest:
            break
    return fewest
