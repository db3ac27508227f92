"""Spillover: moves pending replicas from a full region to a region with room. Pure.

- Only pending replicas move. Running replicas are never stopped.
- Replicas move after SPILLOVER_AFTER_S, if the pending reason may not apply elsewhere and placement rules allow it.
- Gangs, batch workloads and exclusive workloads are never split.
- The global cell does not know the labels, taints and drivers of nodes. Replicas that no node of their region matches
  move only to a region that has placed all its replicas of the same workload.
- `spreadRegions`, quota caps and grants are respected.
- The workload avoids the region it left for a growing time, so replicas do not oscillate between full regions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.fleet.capacity import RegionHeadroom, region_headroom
from holdfast.fleet.grant_demand import demand_by_region, quota_demand
from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose, counts_desired_revision
from holdfast.model.quantity import Amounts, amounts
from holdfast.model.quota import Grant, Quota, grant_name
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region
from holdfast.model.template import requests, template_claims
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import AvoidedRegion, RegionWait, SpilloverStatus, Workload, WorkloadType
from holdfast.model.writes import Notice, SetStatus, Write

# Interval at which a workload with pending replicas checks other regions for room.
SPILLOVER_CHECK_EVERY_S = 30.0
# How long the workload avoids the region it left. Quadruples each further time.
SPILLOVER_AVOID_S = 600.0
# Longest avoidance of a region after spillover.
SPILLOVER_AVOID_MAX_S = 24 * 3600.0
# Avoided regions kept per workload; the oldest is dropped.
SPILLOVER_RECORDS_MAX = 16

NO_ROOM_REASONS = frozenset(
    {
        Reason.INSUFFICIENT_CPU,
        Reason.INSUFFICIENT_MEMORY,
        Reason.INSUFFICIENT_RESOURCE,
        Reason.INSUFFICIENT_DEVICES,
        Reason.DEVICE_IN_USE,
        Reason.PORT_IN_USE,
        Reason.PORTS_EXHAUSTED,
        Reason.NO_NODES,
        Reason.NODE_UNREACHABLE,
        Reason.NODE_CORDONED,
        Reason.NODE_DRAINING,
        Reason.NODE_TERMINATING,
        Reason.NODE_FENCED,
        Reason.NODE_QUARANTINED,
        Reason.NODE_EXCLUDED_BY_OVERRIDE,
        Reason.NO_VICTIMS,
        Reason.VICTIMS_WITHIN_BUDGET,
        Reason.TOO_MANY_VICTIMS,
        Reason.PREEMPTION_BUDGET_SPENT,
        Reason.GANG_INCOMPLETE,
    }
)
"""Reasons that mean that the region has no room. A report does not show whether another region fixes other reasons."""
NO_MATCH_REASONS = frozenset({Reason.LABELS_DO_NOT_MATCH, Reason.TAINT_NOT_TOLERATED, Reason.DRIVER_MISSING})
"""Reasons that another region certainly fixes only if it has placed replicas of the same template."""
REGION_CAP_REASONS = frozenset({Reason.QUOTA_EXCEEDED, Reason.NO_GRANT})
"""Reasons that another region fixes only if the tenant's cap of this region is exhausted."""
AVOIDANCE_RECORD_FACTOR = 8
"""A record is kept this many times longer than the region is avoided, so that repeated spillover is counted."""
Shares = dict[str, int]
"""Size of the Assignment in each region: replicas, or completions of a batch."""


class SpilloverDecision(msgspec.Struct, frozen=True):
    """The new `shares`. `emptied` regions have no bound replicas and lose their share at once."""

    shares: Shares
    writes: tuple[Write, ...] = ()
    notices: tuple[Notice, ...] = ()
    emptied: frozenset[str] = frozenset()
    explanations: dict[str, str] = {}
    requeue_after_s: float | None = None


class _PendingShare(msgspec.Struct, frozen=True):
    """`count` replicas of a region's share are pending; `whole` if that is the whole share. `proven` are the regions
    that may take them, if no node here matches; None: any with room."""

    region: str
    reason: str
    message: str
    count: int
    whole: bool
    proven: frozenset[str] | None = None


def assigned_units(assignment: Assignment) -> int:
    """Size of an Assignment: completions of a batch, replicas of a service."""
    batch = assignment.spec.batch
    return batch.completions if batch is not None else assignment.spec.replicas


def avoided_regions(workload: Workload, now: float) -> frozenset[str]:
    """Regions that the workload avoids now, because replicas spilled over from them."""
    block = workload.status.spillover
    return (
        frozenset(row.region for row in block.avoided_regions if parse_time(row.avoid_until) > now)
        if block is not None
        else frozenset()
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
    """Moves replicas that were pending for SPILLOVER_AFTER_S to another region, by changing the shares."""
    left = avoided_regions(workload, now)
    waiting = _pending_shares(workload, stored, shares, view)
    targets = {
        w.region: found
        for w in waiting
        if (found := _target(workload, w, shares, open_to_more, view, left=left)) is not None
    }
    # The pending time continues for a while if the reported reason changes while replicas are still unplaced.
    patience_s = limits.SPILLOVER_AFTER_S + SPILLOVER_CHECK_EVERY_S
    unplaced = {a.spec.region for a in stored if _has_unplaced_replicas(a) and shares.get(a.spec.region, 0)}
    old = workload.status.spillover or SpilloverStatus()
    known = {
        row.region: row for row in old.pending if _pending_s(row, now) >= 0
    }  # after a clock step backwards, the time restarts
    reasons = {
        **{name: row.reason for name, row in known.items()},
        **{a.spec.region: a.status.pending[0].reason for a in stored if a.status.pending},
        **{w.region: w.reason for w in waiting},
    }
    waits = tuple(
        RegionWait(
            region=name,
            reason=reasons[name],
            since=known[name].since if name in known else micro_text(now),
            to=targets[name][0] if name in targets else "",
        )
        for name in sorted(
            {*targets, *(name for name in known if name in unplaced and _pending_s(known[name], now) < patience_s)}
        )
    )
    block = SpilloverStatus(pending=waits, avoided_regions=_current_records(old, now))
    due = next(
        (
            w
            for w in waiting
            if w.region in targets and _pending_s(known.get(w.region), now) >= limits.SPILLOVER_AFTER_S
        ),
        None,
    )
    notices: tuple[Notice, ...] = ()
    emptied: frozenset[str] = frozenset()
    why: dict[str, str] = {}
    if due is not None:
        target, count = targets[due.region]
        shares = {**shares, due.region: shares[due.region] - count, target: shares.get(target, 0) + count}
        row = _record(due, target, count, old, now)
        block = SpilloverStatus(
            pending=tuple(w for w in waits if w.region != due.region),
            avoided_regions=(*(r for r in block.avoided_regions if r.region != due.region), row)[
                -SPILLOVER_RECORDS_MAX:
            ],
        )
        pending_s = f"{limits.SPILLOVER_AFTER_S:g} s pending ({row.reason})"
        said = f"{count} replicas moved from {due.region} to {target} after {pending_s}"
        why = {target: said, due.region: f"{count} replicas moved to {target} ({row.reason})"}
        emptied = frozenset({due.region} if not shares[due.region] else ())
        notices = (
            Notice(
                workload, Reason.SPILLED_OVER, f"spillover: {said}; {due.region} is avoided until {row.avoid_until}"
            ),
        )
    writes: tuple[Write, ...] = ()
    if block != old:
        writes = (SetStatus("Workload", workload.key, workload.uid, blocks={"spillover": block}),)
    return SpilloverDecision(shares, writes, notices, emptied, why, _next_check_s(waiting, waits, now))


def _pending_shares(
    workload: Workload, stored: Sequence[Assignment], shares: Mapping[str, int], view: View
) -> list[_PendingShare]:
    found = []
    for item in sorted(stored, key=lambda a: a.spec.region):
        spec, region = item.spec, view.get(Region, item.spec.region)
        steady = shares.get(spec.region, 0) == assigned_units(item) and item.status.observed_epoch >= spec.epoch
        healthy = region is not None and region.status.health.state is HealthState.HEALTHY
        if not steady or not healthy or spec.suspended or not spec.replicas or item.metadata.terminating:
            continue
        waits = _pending_share(
            item, NO_ROOM_REASONS | REGION_CAP_REASONS if _is_capped(item, view) else NO_ROOM_REASONS
        )
        if waits is None and (proven := _proven_regions(workload, item, stored)):
            waits = _pending_share(item, NO_MATCH_REASONS)
            waits = msgspec.structs.replace(waits, proven=proven) if waits is not None else None
        if waits is not None and (waits.whole or not _must_stay_together(workload)):
            found.append(waits)
    return found


def _proven_regions(workload: Workload, item: Assignment, stored: Sequence[Assignment]) -> frozenset[str]:
    """Other regions that have placed all their replicas of the same template. A region that replicas left is none, for
    as long as its record is kept, so that they do not move back and forth."""
    block = workload.status.spillover
    left = {row.region for row in block.avoided_regions} if block is not None else set()
    return frozenset(
        a.spec.region
        for a in stored
        if a.spec.region not in {item.spec.region, *left}
        and a.spec.revision == item.spec.revision
        and counts_desired_revision(a)
        and a.status.bound >= a.status.replicas == a.status.updated == a.spec.replicas > 0
    )


def _pending_share(item: Assignment, reasons: Collection[str]) -> _PendingShare | None:
    """Replicas of an Assignment that are pending for such reasons. The surge of a rollout does not count."""
    status = item.status
    kept = status.replicas - status.queued
    reported = [p for p in status.pending if p.reason in reasons]
    lacking = min(sum(p.count for p in reported), item.spec.replicas - kept)
    if not reported or lacking <= 0:
        return None
    begun = kept or status.bound or status.succeeded or status.failed
    whole = not begun and lacking >= item.spec.replicas
    return _PendingShare(
        item.spec.region, reported[0].reason, reported[0].message, assigned_units(item) if whole else lacking, whole
    )


def _has_unplaced_replicas(item: Assignment) -> bool:
    return bool(item.status.queued) and item.status.replicas - item.status.queued < item.spec.replicas


def waits_for_room(assignment: Assignment) -> bool:
    """Whether the Assignment has pending replicas that another region might place."""
    return _has_unplaced_replicas(assignment) and any(
        p.reason in NO_ROOM_REASONS or p.reason in REGION_CAP_REASONS or p.reason in NO_MATCH_REASONS
        for p in assignment.status.pending
    )


def _must_stay_together(workload: Workload) -> bool:
    spec = workload.spec
    has_data = bool(template_claims(spec.template))  # volumes do not move to another region
    return has_data or spec.gang is not None or spec.exclusive is not None or spec.type is WorkloadType.BATCH


def _target(
    workload: Workload,
    waits: _PendingShare,
    shares: Mapping[str, int],
    regions: Sequence[Region],
    view: View,
    *,
    left: Collection[str],
) -> tuple[str, int] | None:
    """Target region and number of replicas: fewest replicas first among regions with room, then lowest cost."""
    used = {name for name, share in shares.items() if share and not (name == waits.region and waits.whole)}
    most = max_regions(workload)
    rooms: dict[str, RegionHeadroom] = {}
    for region in regions:
        name = region.metadata.name
        if waits.proven is not None and name not in waits.proven:
            continue
        if name == waits.region or name in left or (most and name not in used and len(used) >= most):
            continue
        room = region_headroom(region, workload, view)
        fits = min(room.fits, _replicas_within_quota(workload, name, view))
        # All or none if the workload must not be split, or if the rest would use one region too many.
        indivisible = _must_stay_together(workload) or (most and len(used | {name, waits.region}) > most)
        if room.fits_when_empty and fits >= (waits.count if indivisible else 1):
            rooms[name] = msgspec.structs.replace(room, fits=fits)
    if not rooms:
        return None
    chosen = min(rooms, key=lambda name: (shares.get(name, 0), rooms[name].cost, name))
    return chosen, min(waits.count, rooms[chosen].fits)


def max_regions(workload: Workload) -> int:
    """Highest number of regions for a workload; 0: any number."""
    limit = workload.spec.placement.spread_regions
    return 1 if not limit and workload.spec.type is WorkloadType.BATCH else limit


class _TenantQuota(msgspec.Struct, frozen=True):
    """A tenant's quota: total, cap per region, and demand per region."""

    hard: Amounts
    caps: Mapping[str, Amounts]
    wanted: Mapping[str, Amounts]

    def covers_all(self, shape: Amounts) -> bool:
        """Whether the quota covers the whole demand. Grants then follow the Assignments to any region."""
        return all(sum(n.get(name, 0) for n in self.wanted.values()) <= self.hard.get(name, 0) for name in shape)

    def is_capped(self, region: str, shape: Amounts) -> bool:
        """Whether the cap of the region is exceeded while the total quota is sufficient."""
        cap, here = self.caps.get(region, {}), self.wanted.get(region, {})
        return any(name in cap and here.get(name, 0) > cap[name] for name in shape) and self.covers_all(shape)


def _tenant_quota(tenant: str, view: View) -> _TenantQuota | None:
    quota = view.get(Quota, "quota", tenant)
    if quota is None:
        return None
    caps = {name: amounts(values) for name, values in quota.spec.region_caps.items()}
    return _TenantQuota(
        amounts(quota.spec.hard), caps, demand_by_region(view.total(Assignment, tenant, quota_demand), Purpose.NORMAL)
    )


def _is_capped(item: Assignment, view: View) -> bool:
    quota_state = _tenant_quota(item.metadata.namespace, view)
    return quota_state is not None and quota_state.is_capped(item.spec.region, requests(item.spec.template))


def _replicas_within_quota(workload: Workload, region: str, view: View) -> int:
    """How many more replicas the quota allows in a region: by its cap and, if the quota does not cover the whole
    demand, by the region's grant."""
    tenant, shape = workload.metadata.namespace, requests(workload.spec.template)
    quota_state = _tenant_quota(tenant, view)
    if quota_state is None:
        return limits.MAX_REPLICAS
    here, bounds = quota_state.wanted.get(region, {}), [quota_state.caps.get(region, {})]
    if not quota_state.covers_all(shape):
        grant = view.get(Grant, grant_name(region), tenant)
        granted = amounts(grant.spec.limit) if grant is not None else {}
        bounds.append({name: granted.get(name, 0) for name in shape})
    left = [(bound[n] - here.get(n, 0)) // amount for bound in bounds for n, amount in shape.items() if n in bound]
    return max(0, min(left, default=limits.MAX_REPLICAS))


def _record(waits: _PendingShare, target: str, count: int, old: SpilloverStatus, now: float) -> AvoidedRegion:
    """The record of a region that is avoided now; each time four times longer."""
    before = next((row.count for row in old.avoided_regions if row.region == waits.region), 0)
    for_s = min(SPILLOVER_AVOID_S * 4**before, SPILLOVER_AVOID_MAX_S)
    return AvoidedRegion(
        region=waits.region,
        to=target,
        replicas=count,
        reason=waits.reason,
        message=waits.message,
        at=micro_text(now),
        avoid_until=micro_text(now + for_s),
        count=min(before + 1, SPILLOVER_RECORDS_MAX),
    )


def _current_records(old: SpilloverStatus, now: float) -> tuple[AvoidedRegion, ...]:
    """Records that are still needed to avoid a region or to count repeated spillover."""

    def ends_s(row: AvoidedRegion) -> float:
        at_s = parse_time(row.at)
        return at_s + AVOIDANCE_RECORD_FACTOR * (parse_time(row.avoid_until) - at_s)

    return tuple(row for row in old.avoided_regions if now < ends_s(row))


def _pending_s(row: RegionWait | None, now: float) -> float:
    return now - parse_time(row.since) if row is not None else 0.0


def _next_check_s(waiting: Sequence[_PendingShare], waits: Sequence[RegionWait], now: float) -> float | None:
    """Delay until the next check. Heartbeats report room elsewhere but do not wake assign."""
    if not waiting and not waits:
        return None
    due = [limits.SPILLOVER_AFTER_S - _pending_s(row, now) for row in waits]
    return max(1.0, min([SPILLOVER_CHECK_EVERY_S, *due]))
