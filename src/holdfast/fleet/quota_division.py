"""Divides one class of a quota among regions: whole replicas first, then amounts. Pure.

- `covered_demand` decides which replicas the quota covers. A replica is covered with all its resources or not at all,
  so no region holds quota that no replica can use while a replica in another region would fit into it.
- `whole_demand` is the same for a quota that covers everything, from sums: the usual case, at the cost of the regions
  and not of the replicas.
- `divide_quota` moves the limits there. Raises use only quota that is certainly free (S3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from holdfast.fleet.grant_demand import QuotaUnit, RegionAmounts
from holdfast.model.quantity import Amounts, add

# A region's share of the unneeded quota is divided by this for the growth of its limit.
GROWTH_OF_FREE = 32


class CoveredDemand(msgspec.Struct, frozen=True):
    """`need`: usage plus covered replicas, by region. `lacking`: number of replicas without quota, by unit."""

    need: RegionAmounts
    lacking: Mapping[QuotaUnit, int]


RoomFor = Callable[[QuotaUnit, int], int]
"""How many of so many units find room in their region, beside those asked before."""


def covered_demand(
    total: Amounts,
    caps: RegionAmounts,
    units: Mapping[QuotaUnit, int],
    used: RegionAmounts,
    *,
    unreachable: Collection[str] = (),
    room_for: RoomFor = lambda _, count: count,
) -> CoveredDemand:
    """The replicas that `total` covers: bound ones first, then by priority, ordinary ones before rollout surge. Pending
    replicas for which their region has no room come last: they could not use the quota.

    `used` is certain to stay counted: usage, or the enforced limit of an unreachable region, whose replicas are left
    out. A replica that does not fit is skipped, so that a smaller one behind it gets the quota.
    """
    packing = _Packing(total, caps, used)
    lacking: dict[QuotaUnit, int] = {}
    later: list[tuple[QuotaUnit, int]] = []
    for unit in sorted((u for u in units if u.region not in unreachable), key=_order):
        covered = _cover_with_room(packing, unit, units[unit], room_for)
        later.append((unit, units[unit] - covered))
        if unit.optional:
            single = msgspec.structs.replace(unit, members=1, optional=0)
            wanted = unit.optional * covered
            later.append((single, wanted - _cover_with_room(packing, single, wanted, room_for)))
    for unit, count in later:
        lacking[unit] = lacking.get(unit, 0) + count - packing.cover(unit, count)
    return CoveredDemand(packing.need(), {unit: count for unit, count in lacking.items() if count})


def whole_demand(
    total: Amounts, caps: RegionAmounts, wanted: RegionAmounts, used: RegionAmounts, unreachable: Collection[str] = ()
) -> CoveredDemand | None:
    """What `covered_demand` returns if the quota covers all replicas, which `wanted` sums by region; else None. Their
    order and the room in the regions do not matter then."""
    need: RegionAmounts = {}
    for region in sorted({*used, *wanted}):
        held, here = used.get(region, {}), wanted.get(region, {}) if region not in unreachable else {}
        cap = caps.get(region, {})
        if any(
            name not in total or amount > max(cap.get(name, amount), held.get(name, 0)) for name, amount in here.items()
        ):
            return None
        if region in used or here:
            need[region] = {name: max(held.get(name, 0), here.get(name, 0)) for name in sorted({*held, *here})}
    for name, limit in total.items():
        counted = sum(values.get(name, 0) for values in need.values())
        if counted > max(limit, sum(values.get(name, 0) for values in used.values())):
            return None
    return CoveredDemand(need, {})


def _cover_with_room(packing: _Packing, unit: QuotaUnit, count: int, room_for: RoomFor) -> int:
    """Covers up to `count` units that find room. Room is used only by units that the quota covers."""
    fits = packing.coverable(unit, count)
    return packing.cover(unit, fits if unit.bound or not fits else room_for(unit, fits))


def _order(unit: QuotaUnit) -> tuple[object, ...]:
    rest = (unit.region, unit.members, unit.optional, unit.shape, unit.may_preempt, unit.reclaimable)
    return (not unit.bound, -unit.priority, unit.surge, *rest)


class _Packing:
    """Quota that remains while units are covered one after the other."""

    def __init__(self, total: Amounts, caps: RegionAmounts, used: RegionAmounts) -> None:
        self._caps = caps
        self._used = {region: dict(values) for region, values in used.items()}
        self._covered: RegionAmounts = {}
        self._free = dict(total)
        for values in used.values():
            for name, amount in values.items():
                if name in self._free:
                    self._free[name] -= amount

    def cover(self, unit: QuotaUnit, count: int) -> int:
        """Covers up to `count` units of `unit.members` replicas each. Returns how many fit."""
        fits = self.coverable(unit, count)
        if fits:
            need = {name: amount * unit.members for name, amount in unit.shape}
            before = self._need_of(unit.region)
            add(self._covered.setdefault(unit.region, {}), need, times=fits)
            for name, amount in self._need_of(unit.region).items():
                if name in self._free:
                    self._free[name] -= amount - before.get(name, 0)
        return fits

    def coverable(self, unit: QuotaUnit, count: int) -> int:
        """How many of `count` units the remaining quota covers."""
        times = [self._times_covered(unit.region, name, amount * unit.members) for name, amount in unit.shape]
        return max(0, min([count, *times]))

    def _times_covered(self, region: str, name: str, amount: int) -> int:
        """How many times the amount fits. A resource that the quota does not list has a limit of zero."""
        if name not in self._free:
            return 0
        covered = self._covered.get(region, {}).get(name, 0)
        used = self._used.get(region, {}).get(name, 0)
        unspent = max(0, used - covered)  # usage that no covered replica accounts for yet
        room = [unspent + max(0, self._free[name])]
        cap = self._caps.get(region, {}).get(name)
        if cap is not None:
            room.append(max(cap, used) - covered)
        return max(0, min(room)) // amount

    def _need_of(self, region: str) -> Amounts:
        used, covered = self._used.get(region, {}), self._covered.get(region, {})
        return {name: max(used.get(name, 0), covered.get(name, 0)) for name in sorted({*used, *covered})}

    def need(self) -> RegionAmounts:
        return {region: self._need_of(region) for region in sorted({*self._used, *self._covered})}


def divide_quota(
    hard: Amounts,
    caps: RegionAmounts,
    wanted: RegionAmounts,
    current: RegionAmounts,
    enforced: RegionAmounts,
    *,
    floors: Sequence[RegionAmounts] = (),
    grows: bool = False,
) -> RegionAmounts:
    """New limits per region. Raises use only quota that is certainly free. A limit shrinks only if another region is
    short.

    `floors` are filled from unneeded quota, the first one first. They are withdrawn first for another region. A limit
    that is raised while much is unneeded gets `_growth` on top, so that the next replica needs no new limit.
    """
    new: RegionAmounts = {region: dict(current.get(region, {})) for region in wanted}
    for resource, total in sorted(hard.items()):
        room = _ResourceDivision(resource, total, new, enforced)
        cap = {r: caps.get(r, {}).get(resource, total) for r in sorted(new)}
        need = {r: wanted[r].get(resource, 0) for r in cap}
        short = sum(room.raise_to(r, min(amount, cap[r])) for r, amount in need.items())
        room.withdraw(max(0, -room.free) + short, need)
        for floor in floors:
            if short:
                break
            need = {r: max(need[r], min(floor.get(r, {}).get(resource, 0), cap[r])) for r in cap}
            short = sum(room.raise_to(r, min(amount, cap[r])) for r, amount in need.items())
            room.withdraw(short, need)
        for region in cap if grows and not short else ():
            limit = new[region].get(resource, 0)
            growth = _growth(limit, current.get(region, {}).get(resource, 0), room.free // len(cap))
            room.raise_to(region, min(limit + growth, cap[region]))
    for region in new:
        new[region] = {name: amount for name, amount in new[region].items() if amount and name in hard}
    return new


def _growth(limit: int, before: int, free_share: int) -> int:
    """What a limit that was raised gets beyond the need: at most as much again, and a small part of the region's share
    of the unneeded quota, because a region that is out of contact keeps it. Nothing if that covers no second raise."""
    most = free_share // GROWTH_OF_FREE
    return min(limit, most) if 0 < limit - before <= most else 0


class _ResourceDivision:
    """Division of one resource: the free amount, and the amount counted for each region."""

    def __init__(self, resource: str, total: int, new: RegionAmounts, enforced: RegionAmounts) -> None:
        self._resource = resource
        self._new = new
        self._counted = {r: max(new[r].get(resource, 0), enforced.get(r, {}).get(resource, 0)) for r in new}
        self.free = total - sum(self._counted.values())

    def raise_to(self, region: str, want: int) -> int:
        """Raises a region's limit as far as possible. Returns the amount still lacking."""
        limit = self._new[region].get(self._resource, 0)
        lacking = want - limit
        if lacking <= 0:
            return 0
        # An amount that the region still enforces from before a shrink can be granted again without using `free`, but
        # not while more is counted than exists: the excess may be this amount.
        owned = self._counted[region] - limit
        granted = min(lacking, max(0, owned + self.free))
        self.free -= max(0, granted - owned)
        if granted > 0:
            self._new[region][self._resource] = limit + granted
            self._counted[region] = max(self._counted[region], limit + granted)
        return lacking - granted

    def withdraw(self, excess: int, needed: Amounts) -> None:
        """Lowers limits above their region's need until the excess is covered."""
        for region in sorted(self._new, reverse=True):
            spare = self._new[region].get(self._resource, 0) - needed[region]
            if excess > 0 and spare > 0:
                reclaimed = min(spare, excess)
                self._new[region][self._resource] -= reclaimed
                excess -= reclaimed
