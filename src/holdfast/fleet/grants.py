"""grant: divides a tenant's quota among regions. Owns Grant.spec and Quota.status.

- A grant counts as the highest limit that its region may enforce (`max_enforced_limit`). A lower limit frees nothing
  until the region acknowledges it, so the sum never exceeds the quota, even during a partition (S3).
- Each class (normal, recovery, emergency) is a pool of its own.
- Grants follow demand, in whole replicas, with some growth while the quota is ample. A grant shrinks only if another
  region needs the quota: first the growth, then the floors (surge of the next rollout, protected and provisional
  quota), never the quota of covered replicas.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from holdfast.fleet import post_restore
from holdfast.fleet.grant_demand import QuotaUnit, RegionAmounts, quota_demand
from holdfast.fleet.grant_epochs import next_epoch, reclaim_provisional
from holdfast.fleet.post_restore import RESTORE_CHECK_EVERY_S
from holdfast.fleet.protected_shares import protected_shares
from holdfast.fleet.quota_division import covered_demand, divide_quota, whole_demand
from holdfast.fleet.tenant_demand import TenantDemand
from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.meta import API_VERSION, Condition, Key, ObjectMeta, OwnerReference, with_condition
from holdfast.model.override import Override, OverrideKind
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

# Interval at which a contended quota is divided again: regions report new room without waking this controller.
ROOM_CHECK_EVERY_S = 10.0


class QuotaPool(msgspec.Struct, frozen=True):
    """One class of a tenant's quota: its total and the demand of each region."""

    grant_class: GrantClass
    total: Amounts
    caps: RegionAmounts
    demand: RegionAmounts
    """Quota for all replicas of each region, covered by the total or not."""
    need: RegionAmounts
    """Quota for the usage and the covered replicas of each region; at most the total."""
    lacking: Mapping[QuotaUnit, int] = {}
    """Replicas that the total does not cover."""
    kept_for_surge: RegionAmounts = {}
    floors: tuple[RegionAmounts, ...] = ()
    """Quota that each region keeps while no replica needs it; the first floor is filled first."""
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
    tenant = TenantDemand(view, key.namespace, grants, now)
    writes: list[Write] = []
    rows: list[RegionQuotaUsage] = []
    normal, recovery = _normal(quota, tenant), _recovery(quota, tenant)
    for pool in (normal, recovery):
        tenant.granted[pool.grant_class] = _settle(quota, pool, tenant, writes=writes, rows=rows)
    emergency = _emergency(normal, tenant)
    _settle(quota, emergency, tenant, writes=writes, rows=rows)
    tenant.grants = _after(grants, writes)
    status = _status(quota, tenant, tuple(rows), (normal, emergency), now)
    if status is not None:
        writes.append(status)
    ends = [parse_time(o.status.expires_at) - now for o in tenant.emergencies(None)]
    waits_s = [max(0.1, left_s) for left_s in ends] + ([ROOM_CHECK_EVERY_S] if normal.lacking else [])
    return Outcome(writes=tuple(writes), requeue_after_s=min(waits_s, default=None))


def _after(grants: Sequence[Grant], writes: Iterable[Write]) -> list[Grant]:
    """The Grants as these writes leave them, so that one write of the Quota describes them."""
    written = [w.object for w in writes if isinstance(w, Create | Update) and isinstance(w.object, Grant)]
    return list({g.key: g for g in (*grants, *written)}.values())


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


def _normal(quota: Quota, tenant: TenantDemand) -> QuotaPool:
    """While no replica needs more, each region keeps quota for the surge of its next rollout, and the protected quota
    is divided evenly, so that a partitioned region can restart its replicas."""
    total = amounts(quota.spec.hard)
    caps = {region: amounts(values) for region, values in quota.spec.region_caps.items()}
    wanted, surge, provisional = tenant.demand(Purpose.NORMAL), tenant.surge(Purpose.NORMAL), tenant.provisional()
    used = tenant.held(GrantClass.NORMAL)
    covered = whole_demand(total, caps, wanted, used, tenant.unreachable) or covered_demand(
        total, caps, tenant.units(Purpose.NORMAL), used, unreachable=tenant.unreachable, room_for=tenant.room_for
    )
    share = {name: amount // max(1, len(tenant.regions)) for name, amount in amounts(quota.spec.protected).items()}
    for_surge: RegionAmounts = {}
    for_partition: RegionAmounts = {}
    for region in sorted({*tenant.regions, *wanted}):
        kept = for_surge[region] = dict(wanted.get(region, {}))
        add(kept, surge.get(region, {}))
        kept = dict(kept)
        add(kept, provisional.get(region, {}))
        for_partition[region] = {n: max(kept.get(n, 0), share.get(n, 0)) for n in sorted({*kept, *share})}
    return QuotaPool(
        GrantClass.NORMAL,
        total,
        caps,
        wanted,
        covered.need,
        lacking=covered.lacking,
        kept_for_surge=surge,
        floors=(for_surge, for_partition),
        provisional=provisional,
        protected=protected_shares(amounts(quota.spec.protected), wanted, tenant.regions),
    )


def _recovery(quota: Quota, tenant: TenantDemand) -> QuotaPool:
    total, wanted = amounts(quota.spec.recovery_allowance), tenant.demand(Purpose.RECOVERY)
    used, units = tenant.held(GrantClass.RECOVERY), tenant.units(Purpose.RECOVERY)
    covered = covered_demand(total, {}, units, used, unreachable=tenant.unreachable)
    least = {region: dict(values) for region, values in wanted.items()}
    for region, beside in tenant.surge(Purpose.RECOVERY).items():
        add(least.setdefault(region, {}), beside)
    return QuotaPool(GrantClass.RECOVERY, total, {}, wanted, covered.need, lacking=covered.lacking, floors=(least,))


def _emergency(normal: QuotaPool, tenant: TenantDemand) -> QuotaPool:
    """Quota of active overrides, for replicas that the normal limits do not cover."""
    active = tenant.emergencies(None)
    granted = tenant.granted[GrantClass.NORMAL]
    short: RegionAmounts = {}
    caps: RegionAmounts = {}
    for region, wanted in normal.demand.items() if active else ():
        caps[region] = _sum_of(tenant.emergencies(region))
        short[region] = _at_most(shortfall(wanted, granted.get(region, {})), caps[region])
    # The earliest expiry applies: a partitioned region must not spend expired quota (S8).
    ends_at = min((o.status.expires_at for o in active), default="")
    return QuotaPool(GrantClass.EMERGENCY, _sum_of(active), caps, short, short, floors=(short,), ends_at=ends_at)


def _sum_of(emergencies: Iterable[Override]) -> Amounts:
    total: Amounts = {}
    for override in emergencies:
        add(total, amounts(override.spec.quota))
    return total


def _settle(
    quota: Quota, pool: QuotaPool, tenant: TenantDemand, *, writes: list[Write], rows: list[RegionQuotaUsage]
) -> RegionAmounts:
    """Appends the writes and status rows for one class. Returns the new limits."""
    mine = tenant.of_class(pool.grant_class)
    if not pool.total and not mine:
        return {}
    names = sorted({*tenant.regions, *mine})
    new = divide_quota(
        pool.total,
        pool.caps,
        {name: pool.need.get(name, {}) for name in names},
        {name: amounts(g.spec.limit) for name, g in mine.items()},
        {name: max_enforced_limit(g) for name, g in mine.items()},
        floors=pool.floors,
        grows=pool.grant_class is GrantClass.NORMAL,
    )
    if pool.grant_class is not GrantClass.NORMAL:
        # Borrowed for an incident: unneeded quota is returned at once.
        (most,) = pool.floors
        new = {region: _at_most(limit, most.get(region, {})) for region, limit in new.items()}
    for region, limit in new.items():
        stored = mine.get(region)
        write = _write(quota, region, pool, limit, stored)
        if write is not None:
            writes.append(write)
        if stored is not None or limit:
            rows.append(_row(region, pool.grant_class, limit, stored, tenant.frozen))
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


def _provisional(pool: QuotaPool, region: str, limit: Mapping[str, int]) -> Amounts:
    """The share of a limit, beyond the region's demand, that is kept for provisional work."""
    needed, extra = dict(pool.demand.get(region, {})), pool.provisional.get(region, {})
    add(needed, pool.kept_for_surge.get(region, {}))
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
            spec = msgspec.structs.replace(next_epoch(grant, {}), protected={}, provisional={})
            writes.append(Update(msgspec.structs.replace(grant, spec=spec)))
    return Outcome(writes=tuple(writes)) if writes else NO_CHANGES


def _status(
    quota: Quota,
    tenant: TenantDemand,
    rows: tuple[RegionQuotaUsage, ...],
    pools: tuple[QuotaPool, QuotaPool],
    now: float,
) -> SetStatus | None:
    normal, emergency = pools
    granted: Amounts = {}
    used: Amounts = {}
    for limit in tenant.granted[GrantClass.NORMAL].values():
        add(granted, limit)
    for row in rows:
        if row.grant_class is not GrantClass.RECOVERY:  # emergency usage counts until it is drained
            add(used, amounts(row.used))
    conditions = (_granted(quota, tenant.grants, rows, normal), _within(quota, used, emergency.total))
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


def _granted(quota: Quota, grants: Sequence[Grant], rows: Sequence[RegionQuotaUsage], normal: QuotaPool) -> Condition:
    pending = sorted({g.spec.region for g in grants if g.status.acknowledged_epoch < g.spec.epoch})
    frozen = sorted({row.region for row in rows if row.lease_expired})
    reason, message = Reason.GRANTED, "every region has acknowledged its grant"
    lacking = sum(unit.members * count for unit, count in normal.lacking.items() if not unit.surge)
    if lacking:
        names = ", ".join(sorted({unit.region for unit in normal.lacking if not unit.surge}))
        message = f"{message}; {lacking} replicas wait in {names}: the unused quota covers none of them"
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
