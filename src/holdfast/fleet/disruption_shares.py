"""Divides a workload's disruption budget (`maxUnavailable`) among its regions. Pure.

- The shares that regions may be acting on never exceed the budget. A share covers ordinary and recovery replicas.
- A lowered share is reassigned only after the region has acknowledged the lower value and has no more replicas
  unavailable than that. Until then `disruptionSharePeak` counts.
- A lost region keeps its share. The other regions divide the rest evenly.
- The remainder goes only to regions with pending evictions, blocked regions first, and is withdrawn afterwards. So a
  region lost while idle takes at most an even share with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.workload import Workload, WorkloadType

DisruptionShares = dict[str, int | None]
_ByRegion = Mapping[str, Sequence[Assignment]]


def disruption_shares(workload: Workload, regions: Iterable[str], stored: Sequence[Assignment]) -> DisruptionShares:
    """The share of each region; None if there is only one region or no budget applies.

    `regions` are those that should have replicas. `stored` is every Assignment of the workload, of either purpose.
    """
    names = sorted(regions)
    held: dict[str, list[Assignment]] = {}
    for item in stored:
        held.setdefault(item.spec.region, []).append(item)
    every = sorted({*names, *held})
    if len(every) <= 1 or workload.spec.type is not WorkloadType.SERVICE:
        return dict.fromkeys(every)
    budget = workload.spec.disruption.max_unavailable
    active = {name: max((max_active_share(a) for a in held.get(name, ())), default=0) for name in every}
    free = budget - sum(max(active[name], _unavailable(held.get(name, ()))) for name in every)
    # A lost region cannot acknowledge a lower share, so lowering it would free nothing.
    lost = [name for name in every if any(a.spec.suspended for a in held.get(name, ()))]
    shares: DisruptionShares = {name: min(_region_share(held[name]), budget) if name in lost else 0 for name in every}
    order = _order([name for name in names if name not in lost], held)
    shared = max(0, budget - sum(active[name] for name in lost))
    each, left = divmod(shared, len(order)) if order else (0, 0)
    for at, name in enumerate(order):
        share = min(each + (at < left and _has_pending_evictions(held.get(name, ()))), active[name] + max(0, free))
        free -= max(0, share - active[name])
        shares[name] = share
    return shares


def current_share(assignment: Assignment) -> int:
    """Replicas that may be unavailable in the region by the newest Assignment."""
    return _spec_share(assignment.spec)


def max_active_share(assignment: Assignment) -> int:
    """Replicas that may be unavailable by any Assignment that the region may still act on."""
    share = current_share(assignment)
    return share if _acknowledged(assignment) else max(share, assignment.spec.disruption_share_peak)


def with_share_peak(spec: AssignmentSpec, stored: Assignment) -> AssignmentSpec:
    """The next spec of an Assignment with the peak that counts until the region acknowledges it."""
    active = max_active_share(stored)
    return msgspec.structs.replace(spec, disruption_share_peak=active if active > _spec_share(spec) else 0)


def _spec_share(spec: AssignmentSpec) -> int:
    whole = spec.disruption.max_unavailable
    return whole if spec.disruption_share is None else min(spec.disruption_share, whole)


def _region_share(items: Sequence[Assignment]) -> int:
    """The larger share of the region's Assignments, which applies to all its replicas of the workload."""
    return max((current_share(a) for a in items), default=0)


def _unavailable(items: Sequence[Assignment]) -> int:
    """Replicas that do not serve. Those that wait for quota are not counted: no eviction made them unavailable, and
    waiting brings them back only with more quota."""
    return sum(max(0, a.status.replicas - a.status.serving - a.status.awaiting_quota) for a in items)


def _has_pending_evictions(items: Sequence[Assignment]) -> bool:
    return any(a.status.evictions_blocked or a.status.pending_evictions for a in items)


def _order(names: Sequence[str], held: _ByRegion) -> list[str]:
    """Order for the remainder: blocked regions, regions with pending evictions, then larger present shares."""

    def rank(name: str) -> tuple[bool, bool, int, str]:
        items = held.get(name, ())
        blocked = any(a.status.evictions_blocked for a in items)
        return (not blocked, not _has_pending_evictions(items), -_region_share(items), name)

    return sorted(names, key=rank)


def _acknowledged(assignment: Assignment) -> bool:
    return assignment.status.observed_epoch >= assignment.spec.epoch
