"""One disruption budget over all regions: how many replicas of a workload each region may have away at once. Pure.

What always holds: the parts that regions may be acting on never add up to more than the budget. A part is lowered at
once, and what that frees is given on only after every region has seen its newest part and has no more away than that.
A region that drains nodes and is held back by its part comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.model.assignment import Assignment
from holdfast.model.workload import Workload, WorkloadType

Parts = dict[str, int | None]


def away_shares(workload: Workload, regions: Iterable[str], stored: Sequence[Assignment]) -> Parts:
    """The part of each region; None where all of it is one region's, or no budget applies."""
    names = sorted(regions)
    held = {a.spec.region: part_of(a) for a in stored}
    every = {*names, *held}
    if len(every) <= 1 or workload.spec.type is not WorkloadType.SERVICE:
        return dict.fromkeys(every)
    wanted = {**dict.fromkeys(held, 0), **_wanted(workload.spec.disruption.max_unavailable, names, stored)}
    lowered = {name: min(part, wanted[name]) for name, part in held.items()}
    if lowered == held and all(_settled(a) for a in stored):
        return dict(wanted)
    return {name: lowered.get(name, 0) for name in every}


def part_of(assignment: Assignment) -> int:
    """How many the newest Assignment lets its region have away."""
    whole = assignment.spec.disruption.max_unavailable
    share = assignment.spec.away_share
    return whole if share is None else min(share, whole)


def _wanted(budget: int, names: Sequence[str], stored: Sequence[Assignment]) -> dict[str, int]:
    """Evenly; what is left over goes to who waits for it, then stays with who has it."""
    by_region = {a.spec.region: a for a in stored}

    def place(name: str) -> tuple[bool, int, str]:
        known = by_region.get(name)
        return (known is None or not known.status.held_back, -part_of(known) if known is not None else 0, name)

    each, left = divmod(budget, len(names)) if names else (0, 0)
    return {name: each + (index < left) for index, name in enumerate(sorted(names, key=place))}


def _settled(assignment: Assignment) -> bool:
    said = assignment.status
    return said.observed_epoch >= assignment.spec.epoch and said.replicas - said.serving <= part_of(assignment)
