"""What waits in a full region moves on to one with room. Pure.

A replica that found no place in its region for a stated time, for a reason that another region may not have, is given
to one whose summary has room and whose rules allow it. Only what has no place moves: nothing that runs is stopped for
it, so nothing need be made before it is broken. A share that moved remembers which region it left, why and until when:
it does not come back to that region before, so that nothing goes to and fro between two that are full.

Never splits what belongs together (gangs, batch work, exclusive work whose ordinals are given to one region), never
uses more regions than `spreadRegions` allows, and goes nowhere that the tenant's quota does not reach.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.fleet.capacity import RegionHeadroom, region_headroom
from holdfast.fleet.grant_demand import demand_by_region, quota_demand
from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.quantity import Amounts, amounts
from holdfast.model.quota import Grant, Quota, grant_name
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region
from holdfast.model.template import requests
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import AvoidedRegion, RegionWait, SpilloverStatus, Workload, WorkloadType
from holdfast.model.writes import Notice, SetStatus, Write

NO_ROOM_REASONS = frozenset(
    {
        Reason.INSUFFICIENT_CPU, Reason.INSUFFICIENT_MEMORY, Reason.INSUFFICIENT_RESOURCE,
        Reason.INSUFFICIENT_DEVICES, Reason.DEVICE_IN_USE, Reason.PORT_IN_USE, Reason.PORTS_EXHAUSTED, Reason.NO_NODES,
        Reason.NODE_UNREACHABLE, Reason.NODE_CORDONED, Reason.NODE_DRAINING, Reason.NODE_TERMINATING,
        Reason.NODE_FENCED, Reason.NODE_QUARANTINED, Reason.NODE_EXCLUDED_BY_OVERRIDE, Reason.NO_VICTIMS,
        Reason.PREEMPTION_BUDGET_SPENT, Reason.GANG_INCOMPLETE,
    }
)  # fmt: skip
"""The region has no room now. Of other reasons a region's summary does not say whether it cures them."""
REGION_CAP_REASONS = frozenset({Reason.QUOTA_EXCEEDED, Reason.NO_GRANT})
"""Another region cures these only where the tenant's cap of this one is what binds."""
AVOIDANCE_RECORD_FACTOR = 8
"""How many times as long as a region is avoided it is remembered that it was left."""
Shares = dict[str, int]


class SpilloverDecision(msgspec.Struct, frozen=True):
    """The shares after whatever moves on; `emptied` has nothing placed and lets go at once; `why` goes on record."""

    shares: Shares
    writes: tuple[Write, ...] = ()
    notices: tuple[Notice, ...] = ()
    emptied: frozenset[str] = frozenset()
    explanations: dict[str, str] = {}
    again_in_s: float | None = None


class _Waiting(msgspec.Struct, frozen=True):
    """`count` of a region's share have no place; `whole` if that is all of it."""

    region: str
    reason: str
    message: str
    count: int
    whole: bool


def assigned_units(assignment: Assignment) -> int:
    """How much of a workload an Assignment is: of batch work completions, else replicas."""
    batch = assignment.spec.batch
    return batch.completions if batch is not None else assignment.spec.replicas


def avoided_regions(workload: Workload, now: float) -> frozenset[str]:
    """The regions that replicas of the workload have left as full, and do not come back to yet."""
    block = workload.status.spillover
    return (
        frozenset(row.region for row in block.avoided_regions if parse_time(row.avoid_until) > now) if block is not None else frozenset()
    )


def spill_over(
    workload: Workload,
    stored: Sequence[Assignment],
    shares: Shares,
    open_to_more: Sequence[Region],
    view: View,
    *,
    now: float,
) -> SpilloverDecision:
    """The shares, with what has waited long enough in its region given to another."""
    left = avoided_regions(workload, now)
    waiting = _who_waits(workload, stored, shares, view)
    aims = {
        w.region: aim for w in waiting if (aim := _aim(workload, w, shares, open_to_more, view, left=left)) is not None
    }
    reasons = {w.region: w.reason for w in waiting}
    # A wait goes on for a while as long as anything has no place there, whatever is told of it from try to try.
    patience_s = limits.SPILLOVER_AFTER_S + limits.SPILLOVER_CHECK_EVERY_S
    unplaced = {a.spec.region for a in stored if _lacks_a_place(a) and shares.get(a.spec.region, 0)}
    old = workload.status.spillover or SpilloverStatus()
    known = {row.region: row for row in old.pending if _waited_s(row, now) >= 0}  # a clock put back counts anew
    waits = tuple(
        known.get(name) or RegionWait(region=name, reason=reasons[name], since=micro_text(now))
        for name in sorted(
            {*aims, *(name for name in known if name in unplaced and _waited_s(known[name], now) < patience_s)}
        )
    )
    block = SpilloverStatus(pending=waits, avoided_regions=_remembered(old, now))
    due = next(
        (w for w in waiting if w.region in aims and _waited_s(known.get(w.region), now) >= limits.SPILLOVER_AFTER_S), None
    )
    notices: tuple[Notice, ...] = ()
    emptied: frozenset[str] = frozenset()
    why: dict[str, str] = {}
    if due is not None:
        target, count = aims[due.region]
        shares = {**shares, due.region: shares[due.region] - count, target: shares.get(target, 0) + count}
        row = _record(due, target, count, old, now)
        block = SpilloverStatus(
            pending=tuple(w for w in waits if w.region != due.region),
            avoided_regions=(*(r for r in block.avoided_regions if r.region != due.region), row)[-limits.SPILLOVER_RECORDS_MAX :],
        )
        said = f"{count} moved on from {due.region}, after {limits.SPILLOVER_AFTER_S:g} s of waiting there ({row.reason})"
        why = {target: said, due.region: f"{count} moved on to {target}: {row.reason}"}
        emptied = frozenset({due.region} if not shares[due.region] else ())
        notices = (Notice(workload, Reason.SPILLED_OVER, f"{said}, to {target}; not back before {row.avoid_until}"),)
    writes: tuple[Write, ...] = ()
    if block != old:
        writes = (SetStatus("Workload", workload.key, workload.uid, blocks={"moves": block}),)
    return SpilloverDecision(shares, writes, notices, emptied, why, _look_again_s(waiting, waits, now))


def _who_waits(
    workload: Workload, stored: Sequence[Assignment], shares: Mapping[str, int], view: View
) -> list[_Waiting]:
    found = []
    for item in sorted(stored, key=lambda a: a.spec.region):
        spec, region = item.spec, view.get(Region, item.spec.region)
        steady = shares.get(spec.region, 0) == assigned_units(item) and item.status.observed_epoch >= spec.epoch
        heard = region is not None and region.status.health.state is HealthState.HEALTHY
        if not steady or not heard or spec.suspended or not spec.replicas or item.metadata.terminating:
            continue
        waits = _waiting_in(item, view)
        if waits is not None and (waits.whole or not _together(workload)):
            found.append(waits)
    return found


def _waiting_in(item: Assignment, view: View) -> _Waiting | None:
    """What of an assignment has no place because its region is full. Room for a rollout beside it does not count."""
    status = item.status
    kept = status.replicas - status.queued
    reasons = NO_ROOM_REASONS | REGION_CAP_REASONS if _is_capped(item, view) else NO_ROOM_REASONS
    told = [p for p in status.pending if p.reason in reasons]
    lacking = min(sum(p.count for p in told), item.spec.replicas - kept)
    if not told or lacking <= 0:
        return None
    begun = kept or status.bound or status.succeeded or status.failed
    whole = not begun and lacking >= item.spec.replicas
    return _Waiting(item.spec.region, told[0].reason, told[0].message, assigned_units(item) if whole else lacking, whole)


def _lacks_a_place(item: Assignment) -> bool:
    return bool(item.status.queued) and item.status.replicas - item.status.queued < item.spec.replicas


def waits_for_room(assignment: Assignment) -> bool:
    """Whether anything of it waits for what another region may have: what wakes whoever looks for one."""
    return _lacks_a_place(assignment) and any(p.reason in NO_ROOM_REASONS or p.reason in REGION_CAP_REASONS for p in assignment.status.pending)


def _together(workload: Workload) -> bool:
    spec = workload.spec
    return spec.gang is not None or spec.exclusive is not None or spec.type is WorkloadType.BATCH


def _aim(
    workload: Workload,
    waits: _Waiting,
    shares: Mapping[str, int],
    regions: Sequence[Region],
    view: View,
    *,
    left: Collection[str],
) -> tuple[str, int] | None:
    """The region that takes what waits, and how much of it: the emptiest of those with room, then the cheapest."""
    used = {name for name, share in shares.items() if share and not (name == waits.region and waits.whole)}
    most = max_regions(workload)
    rooms: dict[str, RegionHeadroom] = {}
    for region in regions:
        name = region.metadata.name
        if name == waits.region or name in left or (most and name not in used and len(used) >= most):
            continue
        room = region_headroom(region, workload, view)
        fits = min(room.fits, _within_quota(workload, name, view))
        # All or nothing where it belongs together, or where a part that stays would be one region too many.
        all_of_it = _together(workload) or (most and len(used | {name, waits.region}) > most)
        if room.fits_when_empty and fits >= (waits.count if all_of_it else 1):
            rooms[name] = msgspec.structs.replace(room, fits=fits)
    if not rooms:
        return None
    chosen = min(rooms, key=lambda name: (shares.get(name, 0), rooms[name].cost, name))
    return chosen, min(waits.count, rooms[chosen].fits)


def max_regions(workload: Workload) -> int:
    """How many regions a workload may use at most; 0 for any number."""
    limit = workload.spec.placement.spread_regions
    return 1 if not limit and workload.spec.type is WorkloadType.BATCH else limit


class _Purse(msgspec.Struct, frozen=True):
    """A tenant's quota: in all, by region, and what its work needs of it where."""

    hard: Amounts
    caps: Mapping[str, Amounts]
    wanted: Mapping[str, Amounts]

    def covers_all(self, shape: Amounts) -> bool:
        """Whether there is enough for all of its work: then grants follow what is assigned, wherever that is."""
        return all(sum(n.get(name, 0) for n in self.wanted.values()) <= self.hard.get(name, 0) for name in shape)

    def is_capped(self, region: str, shape: Amounts) -> bool:
        """Whether the cap of a region, and not the quota as a whole, is what is used up there."""
        cap, here = self.caps.get(region, {}), self.wanted.get(region, {})
        return any(name in cap and here.get(name, 0) > cap[name] for name in shape) and self.covers_all(shape)


def _purse(tenant: str, view: View) -> _Purse | None:
    quota = view.get(Quota, "quota", tenant)
    if quota is None:
        return None
    caps = {name: amounts(values) for name, values in quota.spec.region_caps.items()}
    return _Purse(amounts(quota.spec.hard), caps, demand_by_region(view.total(Assignment, tenant, quota_demand), Purpose.NORMAL))


def _is_capped(item: Assignment, view: View) -> bool:
    purse = _purse(item.metadata.namespace, view)
    return purse is not None and purse.is_capped(item.spec.region, requests(item.spec.template))


def _within_quota(workload: Workload, region: str, view: View) -> int:
    """How many more the tenant may have in a region: by its cap there, and by what is granted there where its quota
    does not cover everything anyway."""
    tenant, shape = workload.metadata.namespace, requests(workload.spec.template)
    purse = _purse(tenant, view)
    if purse is None:
        return limits.MAX_REPLICAS
    here, bounds = purse.wanted.get(region, {}), [purse.caps.get(region, {})]
    if not purse.covers_all(shape):
        grant = view.get(Grant, grant_name(region), tenant)
        granted = amounts(grant.spec.limit) if grant is not None else {}
        bounds.append({name: granted.get(name, 0) for name in shape})
    left = [(bound[n] - here.get(n, 0)) // amount for bound in bounds for n, amount in shape.items() if n in bound]
    return max(0, min(left, default=limits.MAX_REPLICAS))


def _record(waits: _Waiting, target: str, count: int, old: SpilloverStatus, now: float) -> AvoidedRegion:
    """What is remembered of a region that was left; each time it is, for four times as long."""
    before = next((row.count for row in old.avoided_regions if row.region == waits.region), 0)
    for_s = min(limits.SPILLOVER_AVOID_S * 4**before, limits.SPILLOVER_AVOID_MAX_S)
    return AvoidedRegion(
        region=waits.region, to=target, replicas=count, reason=waits.reason, message=waits.message, at=micro_text(now),
        avoid_until=micro_text(now + for_s), count=min(before + 1, limits.SPILLOVER_RECORDS_MAX),
    )  # fmt: skip


def _remembered(old: SpilloverStatus, now: float) -> tuple[AvoidedRegion, ...]:
    """Those whose time is not long over: how often a region was left is known for much longer than it is avoided."""

    def ends_s(row: AvoidedRegion) -> float:
        at_s = parse_time(row.at)
        return at_s + AVOIDANCE_RECORD_FACTOR * (parse_time(row.avoid_until) - at_s)

    return tuple(row for row in old.avoided_regions if now < ends_s(row))


def _waited_s(row: RegionWait | None, now: float) -> float:
    return now - parse_time(row.since) if row is not None else 0.0


def _look_again_s(waiting: Sequence[_Waiting], waits: Sequence[RegionWait], now: float) -> float | None:
    """Room elsewhere is reported with heartbeats, which wake nobody: whoever waits looks from time to time."""
    if not waiting and not waits:
        return None
    due = [limits.SPILLOVER_AFTER_S - _waited_s(row, now) for row in waits]
    return max(1.0, min([limits.SPILLOVER_CHECK_EVERY_S, *due]))
