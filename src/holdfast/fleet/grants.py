"""grant: divides a tenant's quota among regions. Owns Grant.spec and Quota.status.

- A grant counts as the highest limit that its region may enforce (`max_enforced_limit`). A lower limit frees nothing
  until the region acknowledges it, so the sum never exceeds the quota, even during a partition (S3).
- Each class (normal, recovery, emergency) is a pool of its own.
- Grants follow demand. A grant shrinks only if another region needs the quota.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from holdfast.fleet import post_restore
from holdfast.fleet.grant_demand import (
    DemandKey,
    RegionAmounts,
    demand_by_region,
    provisional_demand,
    quota_demand,
    rollout_surge_demand,
)
from holdfast.fleet.grant_epochs import next_epoch, reclaim_provisional
from holdfast.fleet.post_restore import RESTORE_CHECK_EVERY_S
from holdfast.fleet.protected_shares import protected_shares
from holdfast.fleet.region_health import silence_s
from holdfast.model import limits
from holdfast.model.active_policy import active_policy
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.meta import API_VERSION, Condition, Key, ObjectMeta, OwnerReference, with_condition
from holdfast.model.override import Override, OverrideKind, in_force, is_in_scope
from holdfast.model.quantity import Amounts, add, amounts, amounts_text, shortfall
from holdfast.model.quota import (
    Grant,
    GrantClass,
    GrantSpec,
    Quota,
    QuotaStatus,
    RegionQuotaUsage,
    grant_name,
    max_enforced_limit,
)
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import PartitionMode, PolicyRevision
from holdfast.model.times import parse_time, seconds_text
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Create, Delete, Outcome, SetStatus, Update, Write


class QuotaPool(msgspec.Struct, frozen=True):
    """One class of a tenant's quota: its total and the demand of each region."""

    grant_class: GrantClass
    total: Amounts
    caps: RegionAmounts
    demand: RegionAmounts
    floor: RegionAmounts = {}
    provisional: RegionAmounts = {}
    """Unneeded quota that each region may keep for provisional work during a partition."""
    protected: RegionAmounts = {}
    """Usage of each region that other tenants may not preempt."""
    ends_at: str = ""


def decide(key: Key, view: View, now: float) -> Outcome:
    """The Grants and the Quota status of one tenant; the key names its Quota."""
    quota = view.get(Quota, key.name, key.namespace)
    grants = view.list(Grant, key.namespace)
    if quota is None or quota.metadata.terminating:
        return _withdraw(grants, view)
    reclaimed = [
        found for g in grants if (found := reclaim_provisional(g, view.get(Region, g.spec.region), now)) is not None
    ]
    if reclaimed:
        return Outcome(writes=tuple(Update(grant) for grant in reclaimed))  # committed before another region gets it
    waiting = post_restore.regions_not_restored(view, now)
    adopted = post_restore.adopt_unknown_grants(quota, grants, view.list(Region), lease_s=limits.GRANT_LEASE_S)
    if waiting or adopted:
        return _await_restore(quota, waiting, adopted, now)
    needs = view.total(Assignment, key.namespace, quota_demand)
    regions = [r.metadata.name for r in view.list(Region) if not r.metadata.terminating]
    writes: list[Write] = []
    rows: list[RegionQuotaUsage] = []
    frozen = {g.key for g in grants if is_lease_expired(g, view.get(Region, g.spec.region), now)}
    new_limits: dict[GrantClass, RegionAmounts] = {}
    provisional = _provisional_demand(view, key.namespace, regions, now)
    normal = _normal(quota, needs, regions, provisional)
    recovery = _recovery(quota, needs, view.total(Assignment, key.namespace, rollout_surge_demand))
    for pool in (normal, recovery):
        new_limits[pool.grant_class] = _settle(quota, pool, grants, regions, writes=writes, rows=rows, frozen=frozen)
    emergency = _emergency(view, key.namespace, normal, new_limits[GrantClass.NORMAL], now)
    _settle(quota, emergency, grants, regions, writes=writes, rows=rows, frozen=frozen)
    normal_limits = new_limits[GrantClass.NORMAL]
    status = _status(quota, grants, normal_limits, tuple(rows), emergency=emergency.total, now=now)
    if status is not None:
        writes.append(status)
    ends = [parse_time(o.status.expires_at) - now for o in _emergencies(view, None, key.namespace, now)]
    again_s = max(0.1, min(ends)) if ends else None
    return Outcome(writes=tuple(writes), requeue_after_s=again_s) if writes or ends else NO_CHANGES


def _await_restore(quota: Quota, waiting: Sequence[str], adopted: Sequence[Write], now: float) -> Outcome:
    """After a restore: adopts the limits that regions report, and raises nothing until every region has reported."""
    progress = f"waiting for reports of {', '.join(waiting)}" if waiting else "adopting the reported limits"
    condition = Condition(
        type="Granted",
        status="False",
        reason=Reason.RESTORE_IN_PROGRESS,
        message=f"the global cell was restored from a backup: {progress}; no grant is created or raised until then",
        observed_generation=quota.metadata.generation,
    )
    known = with_condition(quota.status.conditions, condition, seconds_text(now))
    writes = list(adopted)
    if known != quota.status.conditions:
        writes.append(SetStatus("Quota", quota.key, quota.uid, conditions=(condition,)))
    return Outcome(writes=tuple(writes), requeue_after_s=RESTORE_CHECK_EVERY_S)


def _provisional_demand(view: View, tenant: str, regions: Sequence[str], now: float) -> RegionAmounts:
    """Demand for provisional work in regions whose policy allows it: the same replicas once more."""
    spare = demand_by_region(view.total(Assignment, tenant, provisional_demand), Purpose.NORMAL)
    if not spare:
        return {}
    revisions, overrides = view.list(PolicyRevision), view.list(Override)
    modes = {r: active_policy(revisions, overrides, r, now).rules.partition_mode for r in regions if r in spare}
    return {r: spare[r] for r, mode in modes.items() if mode is PartitionMode.PROVISIONAL}


def _normal(
    quota: Quota, needs: Mapping[DemandKey, int], regions: Sequence[str], provisional: RegionAmounts
) -> QuotaPool:
    """While no region needs more, the protected quota is divided evenly, so that a partitioned region can restart its
    replicas."""
    caps = {region: amounts(values) for region, values in quota.spec.region_caps.items()}
    share = {name: amount // max(1, len(regions)) for name, amount in amounts(quota.spec.protected).items()}
    wanted = demand_by_region(needs, Purpose.NORMAL)
    least = {region: dict(share) for region in regions}
    for region, extra in provisional.items():
        for name, amount in extra.items():
            kept = least[region]
            kept[name] = max(kept.get(name, 0), wanted.get(region, {}).get(name, 0) + amount)
    protected = protected_shares(amounts(quota.spec.protected), wanted, regions)
    return QuotaPool(GrantClass.NORMAL, amounts(quota.spec.hard), caps, wanted, least, provisional, protected)


def _recovery(quota: Quota, needs: Mapping[DemandKey, int], turning: Mapping[DemandKey, int]) -> QuotaPool:
    wanted = demand_by_region(needs, Purpose.RECOVERY)
    least = {region: dict(values) for region, values in wanted.items()}
    for region, beside in demand_by_region(turning, Purpose.RECOVERY).items():
        add(least.setdefault(region, {}), beside)
    return QuotaPool(GrantClass.RECOVERY, amounts(quota.spec.recovery_allowance), {}, wanted, least)


def _emergencies(view: View, region: str | None, tenant: str, now: float) -> list[Override]:
    """The active emergency quotas of the tenant: in one region, or in any (None)."""
    found = in_force(view.list(Override), OverrideKind.EMERGENCY_QUOTA, now)
    return [o for o in found if is_in_scope(o, region=region, tenant=tenant, workload=None)]


def _emergency(view: View, tenant: str, normal: QuotaPool, granted: RegionAmounts, now: float) -> QuotaPool:
    """Quota of active overrides, for regions whose normal limit does not cover their demand."""
    active = _emergencies(view, None, tenant, now)
    short = {
        region: _at_most(shortfall(need, granted.get(region, {})), _sum_of(_emergencies(view, region, tenant, now)))
        for region, need in (normal.demand.items() if active else ())
    }
    # The earliest expiry applies: a partitioned region must not spend expired quota (S8).
    ends_at = min((o.status.expires_at for o in active), default="")
    return QuotaPool(GrantClass.EMERGENCY, _sum_of(active), {}, short, ends_at=ends_at)


def _sum_of(emergencies: Iterable[Override]) -> Amounts:
    total: Amounts = {}
    for override in emergencies:
        add(total, amounts(override.spec.quota))
    return total


def _settle(
    quota: Quota,
    pool: QuotaPool,
    grants: Sequence[Grant],
    regions: Sequence[str],
    *,
    writes: list[Write],
    rows: list[RegionQuotaUsage],
    frozen: Container[Key],
) -> RegionAmounts:
    """Appends the writes and status rows for one class. Returns the new limits."""
    mine = {g.spec.region: g for g in grants if g.spec.grant_class is pool.grant_class}
    if not pool.total and not mine:
        return {}
    names = sorted({*regions, *mine})
    new = divide_quota(
        pool.total,
        pool.caps,
        {name: pool.demand.get(name, {}) for name in names},
        {name: amounts(g.spec.limit) for name, g in mine.items()},
        {name: max_enforced_limit(g) for name, g in mine.items()},
        least={name: pool.floor.get(name, {}) for name in names},
    )
    if pool.grant_class is not GrantClass.NORMAL:
        # Borrowed for an incident: unneeded quota is returned at once.
        used = {region: pool.floor.get(region) or pool.demand.get(region, {}) for region in new}
        new = {region: _at_most(limit, used[region]) for region, limit in new.items()}
    for region, limit in new.items():
        stored = mine.get(region)
        write = _write(quota, region, pool, limit, stored)
        if write is not None:
            writes.append(write)
        if stored is not None or limit:
            rows.append(_row(region, pool.grant_class, limit, stored, frozen))
    return new


def _at_most(limit: Amounts, need: Amounts) -> Amounts:
    return {name: min(amount, need[name]) for name, amount in limit.items() if need.get(name)}


def _row(
    region: str, grant_class: GrantClass, limit: Amounts, stored: Grant | None, frozen: Container[Key]
) -> RegionQuotaUsage:
    return RegionQuotaUsage(
        region=region,
        grant_class=grant_class,
        granted=dict(amounts_text(limit)),
        used=dict(stored.status.used) if stored is not None else {},
        lease_expired=stored is not None and stored.key in frozen,
    )


def is_lease_expired(grant: Grant, region: Region | None, now: float) -> bool:
    """Whether the region has been out of contact for longer than the grant lease. It then neither spends nor returns.

    The lease counts from the region's reports, here by their arrival on this cell's clock. `renewedAt` is a time of the
    region's clock and is compared only there."""
    if region is None:
        return bool(grant.status.renewed_at)
    return bool(region.status.health.last_contact_at) and silence_s(region, now) > grant.spec.lease_seconds


def divide_quota(
    hard: Amounts,
    caps: RegionAmounts,
    wanted: RegionAmounts,
    current: RegionAmounts,
    enforced: RegionAmounts,
    *,
    least: RegionAmounts | None = None,
) -> RegionAmounts:
    """New limits per region. Raises use only quota that is certainly free. A limit shrinks only if another region is
    short.

    `least` is a floor per region, filled from unneeded quota. It is the first quota to be withdrawn for another region.
    """
    new: RegionAmounts = {region: dict(current.get(region, {})) for region in wanted}
    for resource, total in sorted(hard.items()):
        room = _ResourceDivision(resource, total, new, enforced)
        need = {r: min(wanted[r].get(resource, 0), caps.get(r, {}).get(resource, total)) for r in sorted(new)}
        short = sum(room.raise_to(region, want) for region, want in need.items())
        room.withdraw(max(0, -room.free) + short, {r: wanted[r].get(resource, 0) for r in new})
        if not short:
            cap = {r: caps.get(r, {}).get(resource, total) for r in new}
            keep = {r: min((least or {}).get(r, {}).get(resource, 0), cap[r]) for r in sorted(new)}
            lacking = sum(room.raise_to(region, amount) for region, amount in keep.items())
            room.withdraw(lacking, {r: max(wanted[r].get(resource, 0), keep[r]) for r in new})
    for region in new:
        new[region] = {name: amount for name, amount in new[region].items() if amount and name in hard}
    return new


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


def _provisional(pool: QuotaPool, region: str, limit: Mapping[str, int]) -> Amounts:
    """The share of a limit, beyond the region's demand, that is kept for provisional work."""
    needed, extra = pool.demand.get(region, {}), pool.provisional.get(region, {})
    found = {name: min(amount, limit.get(name, 0) - needed.get(name, 0)) for name, amount in extra.items()}
    return {name: amount for name, amount in found.items() if amount > 0}


def _write(quota: Quota, region: str, pool: QuotaPool, limit: Mapping[str, int], stored: Grant | None) -> Write | None:
    text = dict(amounts_text(limit))
    provisional = dict(amounts_text(_provisional(pool, region, limit)))
    protected = dict(amounts_text(pool.protected.get(region, {})))
    if stored is None:
        if not limit:
            return None
        meta = ObjectMeta(
            name=grant_name(region, pool.grant_class),
            namespace=quota.metadata.namespace,
            owner_references=(
                OwnerReference(api_version=API_VERSION, kind="Quota", name=quota.metadata.name, uid=quota.uid),
            ),
        )
        spec = GrantSpec(
            region=region,
            grant_class=pool.grant_class,
            limit=dict(text),
            provisional=dict(provisional),
            protected=dict(protected),
            lease_seconds=limits.GRANT_LEASE_S,
            ends_at=pool.ends_at,
        )
        return Create(Grant(metadata=meta, spec=spec))
    ends_at = pool.ends_at if limit else stored.spec.ends_at
    same = amounts(stored.spec.limit) == dict(limit) and amounts(stored.spec.provisional) == amounts(dict(provisional))
    if same and stored.spec.ends_at == ends_at and amounts(stored.spec.protected) == pool.protected.get(region, {}):
        return None
    if same and stored.spec.ends_at == ends_at:  # the spendable limit is the same, so no new epoch is needed
        kept = msgspec.structs.replace(stored.spec, protected=dict(protected))
        return Update(msgspec.structs.replace(stored, spec=kept))
    spec = msgspec.structs.replace(
        next_epoch(stored, limit), ends_at=ends_at, provisional=dict(provisional), protected=dict(protected)
    )
    return Update(msgspec.structs.replace(stored, spec=spec))


def _withdraw(grants: Sequence[Grant], view: View) -> Outcome:
    """The Quota is gone: lowers every Grant to nothing, and deletes it once its region enforces nothing of it (S3)."""
    writes: list[Write] = []
    for grant in grants:
        if not max_enforced_limit(grant) or view.get(Region, grant.spec.region) is None:
            writes.append(Delete("Grant", grant.key, grant.uid, if_revision=grant.revision))
        elif grant.spec.limit:
            spec = msgspec.structs.replace(next_epoch(grant, {}), protected={})
            writes.append(Update(msgspec.structs.replace(grant, spec=spec)))
    return Outcome(writes=tuple(writes)) if writes else NO_CHANGES


def _status(
    quota: Quota,
    grants: Sequence[Grant],
    new: RegionAmounts,
    rows: tuple[RegionQuotaUsage, ...],
    *,
    emergency: Amounts,
    now: float,
) -> SetStatus | None:
    granted: Amounts = {}
    used: Amounts = {}
    for limit in new.values():
        add(granted, limit)
    for row in rows:
        if row.grant_class is not GrantClass.RECOVERY:  # emergency usage counts until it is drained
            add(used, amounts(row.used))
    conditions = (_granted(quota, grants, rows), _within(quota, used, emergency))
    known = quota.status.conditions
    for condition in conditions:
        known = with_condition(known, condition, seconds_text(now))
    status = QuotaStatus(
        observed_generation=quota.metadata.generation,
        conditions=known,
        granted=dict(amounts_text(granted)),
        used=dict(amounts_text(used)),
        regions=rows,
    )
    if status == quota.status:
        return None
    return SetStatus(
        "Quota",
        quota.key,
        quota.uid,
        blocks={"granted": status.granted, "used": status.used, "regions": status.regions},
        conditions=conditions,
        observed_generation=quota.metadata.generation,
        # In one commit with the grants, so that a quota lowered meanwhile is not exceeded (S3).
        if_revision=quota.revision,
    )


def _granted(quota: Quota, grants: Sequence[Grant], rows: Sequence[RegionQuotaUsage]) -> Condition:
    pending = sorted({g.spec.region for g in grants if g.status.acknowledged_epoch < g.spec.epoch})
    frozen = sorted({row.region for row in rows if row.lease_expired})
    reason, message = Reason.GRANTED, "every region has acknowledged its grant"
    if pending:
        reason, message = Reason.SHRINK_PENDING, f"waiting for {', '.join(pending)} to acknowledge the new limit"
    if frozen:
        reason = Reason.GRANT_LEASE_EXPIRED
        message = f"{', '.join(frozen)}: out of contact for longer than the grant lease; counted in full, not spent"
    return Condition(
        type="Granted",
        status="False" if pending or frozen else "True",
        reason=reason,
        message=message,
        observed_generation=quota.metadata.generation,
    )


def _within(quota: Quota, used: Amounts, emergency: Amounts) -> Condition:
    allowed = amounts(quota.spec.hard)
    add(allowed, emergency)
    over = amounts_text(shortfall(used, allowed))
    parts = ", ".join(f"{name} by {text}" for name, text in over.items())
    return Condition(
        type="OverQuota",
        status="True" if over else "False",
        reason=Reason.OVER_QUOTA if over else Reason.WITHIN_QUOTA,
        message=f"usage exceeds the quota: {parts}; nothing new is placed and the excess is drained" if over else "",
        observed_generation=quota.metadata.generation,
    )


def woken_by_policy(new: PolicyRevision | None, old: PolicyRevision | None, view: View) -> Iterable[Key]:
    """Wakes all quotas if a policy allows provisional work: quota is kept for it."""
    modes = {r.spec.rules.partition_mode for r in (new, old) if r is not None}
    return keys(view) if PartitionMode.PROVISIONAL in modes else ()


def keys(view: View) -> Iterable[Key]:
    found = {q.key for q in view.list(Quota)}
    found |= {Key(g.metadata.namespace, "quota") for g in view.list(Grant)}
    return sorted(found)


def woken_by_any(new: object, old: object, view: View) -> Iterable[Key]:
    """Wakes the tenant's quota on a change of the Quota, a Grant, or the demand of an Assignment."""
    item = new or old
    if isinstance(new, Assignment) and isinstance(old, Assignment):
        same = new.spec == old.spec and quota_demand(new) == quota_demand(old)
        return () if same else (Key(new.metadata.namespace, "quota"),)
    if isinstance(item, Quota | Grant | Assignment):
        return (Key(item.metadata.namespace, "quota"),)
    return ()


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    """Wakes all quotas if the region's health, its acknowledgement of a restore or its unknown grants change."""
    if new is None or old is None or new.status.report is None:
        return ()
    if new.status.health.state is not old.status.health.state:
        return keys(view)
    before = old.status.report
    same = post_restore.has_acknowledged_restore(new) == post_restore.has_acknowledged_restore(old)
    known = before is not None and before.unknown_grants == new.status.report.unknown_grants
    return () if same and known else keys(view)


def woken_by_override(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
    item = new or old
    if item is None or item.spec.kind is not OverrideKind.EMERGENCY_QUOTA:
        return ()
    return (Key(item.spec.scope.tenant, "quota"),)
