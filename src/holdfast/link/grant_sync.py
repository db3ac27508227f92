"""grant-sync: applies Grants as the limits that this region enforces, and acknowledges them to the global cell.

A lower limit is enforced first, never below current usage, and acknowledged only then. So the limit
that the global cell counts for this region is never below the limit in force here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.controllers.controller import ControllerView
from holdfast.link.global_clock import EXPIRY_CLOCK_ERROR_MAX_S
from holdfast.model import limits
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.quantity import Amounts, amounts, amounts_text, shortfall
from holdfast.model.quota import Grant, GrantClass, grant_name
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import Create, Outcome, SetStatus, Update, Write

RENEW_AFTER_FRACTION = 0.5
"""Fraction of a lease that must have passed before its renewal is written. Saves writes."""


USAGE_REPORT_EVERY_S = 5.0
"""Interval at which rising usage within an acknowledged limit is reported. It changes nothing that the quota counts."""

CHECK_AFTER_FRACTION = 0.25
"""Fraction of a lease after which it is checked again: twice before it is renewed, four times before it ends."""


def grant_copy_name(grant_class: GrantClass) -> str:
    return grant_class.value.lower()


def copy_writes(
    key: Key,
    grants: View,
    here: View,
    region: str,
    last_contact_s: float,
    *,
    steady_since_s: float = 0.0,
    ends_s: Callable[[str], float] = parse_time,
) -> Iterable[Write]:
    """The writes that make this region's limit follow the tenant's Grant. The key is (tenant, class).

    `ends_s` converts a time of the global clock to this region's clock. `last_contact_s` is when the last accepted
    report was sent. The lease counts from there, never from reading Grants: the global cell does not see reads, and may
    reclaim the provisional share of a region that does not report.

    A contact stored before `steady_since_s` looks newer than it is, because the clock was stepped back since. It is
    renewed at once. Otherwise the lease could end, on the authority's monotonic clock, before its renewal seems due.
    """
    grant_class = GrantClass(key.name.capitalize())
    grant = grants.get(Grant, grant_name(region, grant_class), key.namespace)
    copy = here.get(GrantCopy, key.name, key.namespace)
    if grant is None:
        return () if copy is None else _close_copy(copy)
    wanted = amounts(grant.spec.limit)
    lease = {
        "last_contact_at": micro_text(last_contact_s),
        "lease_expires_at": micro_text(_lease_end_s(grant, last_contact_s, ends_s)),
    }
    if copy is None:
        if not last_contact_s:
            return ()
        spec = GrantCopySpec(
            grant_class=grant_class,
            limit=dict(amounts_text(wanted)),
            provisional=grant.spec.provisional,
            protected=grant.spec.protected,
            epoch=grant.spec.epoch,
            **lease,
        )
        return (Create(GrantCopy(metadata=ObjectMeta(name=key.name, namespace=key.namespace), spec=spec)),)
    if not last_contact_s:
        lease = {"last_contact_at": copy.spec.last_contact_at, "lease_expires_at": copy.spec.lease_expires_at}
    limit = _not_below_use(wanted, amounts(copy.spec.limit), amounts(copy.status.used))
    gained_s = parse_time(lease["lease_expires_at"]) - parse_time(copy.spec.lease_expires_at)
    same = limit == amounts(copy.spec.limit) and copy.spec.epoch == grant.spec.epoch
    same = same and copy.spec.protected == grant.spec.protected
    known_s = parse_time(copy.spec.last_contact_at) if copy.spec.last_contact_at else 0.0
    unsteady = gained_s < -EXPIRY_CLOCK_ERROR_MAX_S or (
        known_s <= steady_since_s + EXPIRY_CLOCK_ERROR_MAX_S and lease["last_contact_at"] != copy.spec.last_contact_at
    )
    if same and not unsteady and gained_s < grant.spec.lease_seconds * RENEW_AFTER_FRACTION:
        return ()
    spec = msgspec.structs.replace(
        copy.spec,
        limit=dict(amounts_text(limit)),
        provisional=grant.spec.provisional,
        protected=grant.spec.protected,
        epoch=grant.spec.epoch,
        **lease,
    )
    return (Update(msgspec.structs.replace(copy, spec=spec)),)


def _lease_end_s(grant: Grant, last_contact_s: float, ends_s: Callable[[str], float]) -> float:
    """End of the lease, counted from the last accepted report, but not after `endsAt` (S8)."""
    until_s = last_contact_s + grant.spec.lease_seconds
    return min(until_s, ends_s(grant.spec.ends_at)) if grant.spec.ends_at else until_s


def _not_below_use(wanted: Amounts, current: Amounts, used: Amounts) -> Amounts:
    """The new limit, but not below current usage. It shrinks further as work ends."""
    limit = dict(wanted)
    for name, amount in used.items():
        if limit.get(name, 0) < min(amount, current.get(name, 0)):
            limit[name] = min(amount, current.get(name, 0))
    return limit


def _close_copy(copy: GrantCopy) -> Iterable[Write]:
    """The Grant was deleted: the limit shrinks to current usage."""
    limit = _not_below_use({}, amounts(copy.spec.limit), amounts(copy.status.used))
    if limit == amounts(copy.spec.limit) and not copy.spec.protected:
        return ()
    spec = msgspec.structs.replace(copy.spec, limit=dict(amounts_text(limit)), protected={})
    return (Update(msgspec.structs.replace(copy, spec=spec)),)


def acknowledge(key: Key, grants: View, here: View, region: str, now: float) -> Outcome:
    """The acknowledgement of one Grant now, or a later look at usage that need not be reported yet."""
    writes = tuple(acknowledgement(key, grants, here, region, now))
    grant = grants.get(Grant, grant_name(region, GrantClass(key.name.capitalize())), key.namespace)
    copy = here.get(GrantCopy, key.name, key.namespace)
    if writes or grant is None or copy is None or grant.status.used == copy.status.used:
        return Outcome(writes=writes)
    return Outcome(requeue_after_s=USAGE_REPORT_EVERY_S)


def acknowledgement(key: Key, grants: View, here: View, region: str, now: float) -> Iterable[Write]:
    """The acknowledgement of one Grant, if the global cell does not have it yet.

    Only usage that the authority counted under this limit proves that nothing is spent under a higher one. Usage beyond
    the limit is reported as still held.
    """
    grant = grants.get(Grant, grant_name(region, GrantClass(key.name.capitalize())), key.namespace)
    copy = here.get(GrantCopy, key.name, key.namespace)
    if grant is None or copy is None or copy.status.observed_generation != copy.metadata.generation:
        return ()
    used, held = _reported_amounts(copy, grants, here, region)
    known = grant.status
    same = known.acknowledged_epoch == copy.spec.epoch and amounts(known.limit) == held
    age_s = now - parse_time(known.renewed_at) if known.renewed_at else limits.GRANT_LEASE_S
    if same and amounts(known.used) == used and age_s < limits.GRANT_LEASE_S / 2:
        return ()
    if same and 0 <= age_s < USAGE_REPORT_EVERY_S and not shortfall(amounts(known.used), used):
        return ()
    blocks = {
        "acknowledgedEpoch": copy.spec.epoch,
        "limit": dict(amounts_text(held)),
        "used": dict(amounts_text(used)),
        "renewedAt": micro_text(now),
    }
    return (SetStatus("Grant", grant.key, grant.uid, blocks=blocks, observed_generation=grant.metadata.generation),)


def _reported_amounts(copy: GrantCopy, grants: View, here: View, region: str) -> tuple[Amounts, Amounts]:
    """Usage and held limit to report for one class.

    Usage of normal and emergency quota is counted together on the normal copy. Usage beyond the normal limit is
    reported for the emergency grant. Reported as normal, it would be granted again as normal quota.
    """
    tenant = copy.metadata.namespace
    normal = here.get(GrantCopy, grant_copy_name(GrantClass.NORMAL), tenant)
    emergency = here.get(GrantCopy, grant_copy_name(GrantClass.EMERGENCY), tenant)
    known = grants.get(Grant, grant_name(region, GrantClass.EMERGENCY), tenant)
    alone = normal is None or emergency is None or known is None
    if copy.spec.grant_class is GrantClass.RECOVERY or alone or normal is None:
        return amounts(copy.status.used), max_held(copy)
    limit = amounts(normal.spec.limit)
    beyond = shortfall(amounts(normal.status.used), limit)
    if copy.spec.grant_class is GrantClass.NORMAL:
        within = {name: min(amount, limit.get(name, 0)) for name, amount in amounts(copy.status.used).items()}
        return {name: amount for name, amount in within.items() if amount}, limit
    held = amounts(copy.spec.limit)
    return beyond, {**held, **{name: max(amount, held.get(name, 0)) for name, amount in beyond.items()}}


def max_held(copy: GrantCopy) -> Amounts:
    """The larger of limit and usage, per resource."""
    held = amounts(copy.spec.limit)
    for name, amount in amounts(copy.status.used).items():
        held[name] = max(amount, held.get(name, 0))
    return held


def keys(view: ControllerView) -> Iterable[Key]:
    found = {_copy_key(grant) for grant in view.peer.list(Grant)}
    return sorted(found | {c.key for c in view.list(GrantCopy)})


def woken_by_grant(new: Any, old: Any, view: View) -> Iterable[Key]:
    return (_copy_key(new if new is not None else old),)


def _copy_key(grant: Grant) -> Key:
    return Key(grant.metadata.namespace, grant_copy_name(grant.spec.grant_class))
