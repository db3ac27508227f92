"""One disruption budget over all regions: how many replicas of a workload each region may have away at once. Pure.

What always holds: the parts that regions may be acting on never add up to more than the budget, whoever asked for their
replicas: a region has one part for its ordinary and its recovery replicas together. A part is lowered at once, and what
that frees is given on only after the region has acknowledged it and has no more away than that; until then the
Assignment remembers what the region may still act on (`awayPeak`). A region that is lost keeps what it has, and the
others share the rest. What does not divide evenly is given only to regions that have replicas to let go, and is taken
back when they have none, so that a region which is lost at rest takes with it no more than an even share: where the
budget is smaller than the number of regions, nothing. One that is held back by its part comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.workload import Workload, WorkloadType

Parts = dict[str, int | None]
_ByRegion = Mapping[str, Sequence[Assignment]]


def away_shares(workload: Workload, regions: Iterable[str], stored: Sequence[Assignment]) -> Parts:
    """The part of each region; None where all of it is one region's, or no budget applies.

    `regions` are those that should hold replicas, `stored` every Assignment of the workload, of either purpose.
    """
    names = sorted(regions)
    held: dict[str, list[Assignment]] = {}
    for item in stored:
        held.setdefault(item.spec.region, []).append(item)
    every = sorted({*names, *held})
    if len(every) <= 1 or workload.spec.type is not WorkloadType.SERVICE:
        return dict.fromkeys(every)
    budget = workload.spec.disruption.max_unavailable
    reach = {name: max((reach_of(a) for a in held.get(name, ())), default=0) for name in every}
    spare = budget - sum(max(reach[name], _away(held.get(name, ()))) for name in every)
    # Nothing is asked of a region that cannot answer: taking its part away would free nothing for anyone.
    lost = [name for name in every if any(a.spec.suspended for a in held.get(name, ()))]
    parts: Parts = {name: min(_part(held[name]), budget) if name in lost else 0 for name in every}
    order = _order([name for name in names if name not in lost], held)
    shared = max(0, budget - sum(reach[name] for name in lost))
    each, left = divmod(shared, len(order)) if order else (0, 0)
    for at, name in enumerate(order):
        part = min(each + (at < left and _wants(held.get(name, ()))), reach[name] + max(0, spare))
        spare -= max(0, part - reach[name])
        parts[name] = part
    return parts


def part_of(assignment: Assignment) -> int:
    """How many the newest Assignment lets its region have away."""
    return _allowed(assignment.spec)


def reach_of(assignment: Assignment) -> int:
    """How many the region may have away by any Assignment it may still be acting on."""
    part = part_of(assignment)
    return part if _acknowledged(assignment) else max(part, assignment.spec.away_peak)


def with_peak(spec: AssignmentSpec, stored: Assignment) -> AssignmentSpec:
    """The next spec of an Assignment, which remembers what its region may act on until it has acknowledged this one."""
    reach = reach_of(stored)
    return msgspec.structs.replace(spec, away_peak=reach if reach > _allowed(spec) else 0)


def _allowed(spec: AssignmentSpec) -> int:
    whole = spec.disruption.max_unavailable
    return whole if spec.away_share is None else min(spec.away_share, whole)


def _part(items: Sequence[Assignment]) -> int:
    """A region acts on the larger of its Assignments' parts: it counts all its replicas of the workload together."""
    return max((part_of(a) for a in items), default=0)


def _away(items: Sequence[Assignment]) -> int:
    return sum(a.status.replicas - a.status.serving for a in items)


def _wants(items: Sequence[Assignment]) -> bool:
    return any(a.status.held_back or a.status.to_leave for a in items)


def _order(names: Sequence[str], held: _ByRegion) -> list[str]:
    """Who comes first when the budget does not divide evenly: who waits for it, who needs it, then who has it."""

    def place(name: str) -> tuple[bool, bool, int, str]:
        items = held.get(name, ())
        return (not any(a.status.held_back for a in items), not _wants(items), -_part(items), name)

    return sorted(names, key=place)


def _acknowledged(assignment: Assignment) -> bool:
    return assignment.status.observed_epoch >= assignment.spec.epoch
