"""grant-sync: turns a Grant into the limit this region enforces, and tells the global cell what it enforces.

A smaller limit is first enforced here, never below what is in use, and only then acknowledged; so what the global cell
counts is never less than what this region may still spend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.controllers.controller import ControllerView
from holdfast.model import limits
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.quantity import Amounts, amounts, amounts_text, shortfall
from holdfast.model.quota import Grant, GrantClass, grant_name
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.writes import Create, SetStatus, Update, Write

RENEW_AFTER_FRACTION = 0.5
"""The part of a lease that must have passed before it is worth a write to renew it."""


CHECK_AFTER_FRACTION = 0.25
"""The part of a lease after which it is looked at again: twice before it is worth renewing, often before it ends."""


CLOCK_STEP_FRACTION = 0.5
"""An answer may come late, and takes nothing back. By this part of a lease it does not: then the clock was put back and
what was heard before that counts for nothing. By less, the lease lasts until the clock is there again."""


def grant_copy_name(grant_class: GrantClass) -> str:
    return grant_class.value.lower()


def copy_writes(
    key: Key, grants: View, here: View, region: str, heard_s: float, *, ends_s: Callable[[str], float] = parse_time
) -> Iterable[Write]:
    """The writes that bring this region's limit to the tenant's grant. The key is (tenant, class).

    `ends_s` turns a time of the global cell's clock, at which a grant ends by itself, into one of this region's.

    `heard_s` is when the last report that the global cell took was sent: a lease counts from there, and never from the
    mere reading of grants. The global cell does not know who reads, and by its own count of silence may give away what
    comes back by time.
    """
    grant_class = GrantClass(key.name.capitalize())
    grant = grants.get(Grant, grant_name(region, grant_class), key.namespace)
    copy = here.get(GrantCopy, key.name, key.namespace)
    if grant is None:
        return () if copy is None else _close(copy)
    wanted = amounts(grant.spec.limit)
    lease = {"heard_at": micro_text(heard_s), "spend_until": micro_text(_spend_until_s(grant, heard_s, ends_s))}
    if copy is None:
        if not heard_s:
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
    known_s = parse_time(copy.spec.last_contact_at) if copy.spec.last_contact_at else 0.0
    if not heard_s or 0.0 < known_s - heard_s < grant.spec.lease_seconds * CLOCK_STEP_FRACTION:
        lease = {"heard_at": copy.spec.last_contact_at, "spend_until": copy.spec.lease_expires_at}
    limit = _not_below_use(wanted, amounts(copy.spec.limit), amounts(copy.status.used))
    gained_s = parse_time(lease["spend_until"]) - parse_time(copy.spec.lease_expires_at)
    same = limit == amounts(copy.spec.limit) and copy.spec.epoch == grant.spec.epoch
    same = same and copy.spec.protected == grant.spec.protected
    late = gained_s < -limits.EXPIRY_CLOCK_ERROR_MAX_S  # this region's clock was put back
    if same and not late and gained_s < grant.spec.lease_seconds * RENEW_AFTER_FRACTION:
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


def _spend_until_s(grant: Grant, heard_s: float, ends_s: Callable[[str], float]) -> float:
    """A lease from the last answer; what ends by itself is not spent past its end, whatever happens (S8)."""
    until_s = heard_s + grant.spec.lease_seconds
    return min(until_s, ends_s(grant.spec.ends_at)) if grant.spec.ends_at else until_s


def _not_below_use(wanted: Amounts, current: Amounts, used: Amounts) -> Amounts:
    """The new limit. Where it shrinks it stops at what is in use: the rest follows as work ends."""
    limit = dict(wanted)
    for name, amount in used.items():
        if limit.get(name, 0) < min(amount, current.get(name, 0)):
            limit[name] = min(amount, current.get(name, 0))
    return limit


def _close(copy: GrantCopy) -> Iterable[Write]:
    """The grant is gone: nothing new may be spent; the copy stays while something is in use."""
    limit = _not_below_use({}, amounts(copy.spec.limit), amounts(copy.status.used))
    if limit == amounts(copy.spec.limit) and not copy.spec.protected:
        return ()
    spec = msgspec.structs.replace(copy.spec, limit=dict(amounts_text(limit)), protected={})
    return (Update(msgspec.structs.replace(copy, spec=spec)),)


def acknowledgement(key: Key, grants: View, here: View, region: str, now: float) -> Iterable[Write]:
    """What to tell the global cell about one grant, when it does not know it already.

    Only use that the authority counted under this very limit is proof that nothing is spent under a higher one; what
    is in use beyond it is still held, and said to be.
    """
    grant = grants.get(Grant, grant_name(region, GrantClass(key.name.capitalize())), key.namespace)
    copy = here.get(GrantCopy, key.name, key.namespace)
    if grant is None or copy is None or copy.status.observed_generation != copy.metadata.generation:
        return ()
    used, held = _told(copy, grants, here, region)
    known = grant.status
    same = known.acknowledged_epoch == copy.spec.epoch and amounts(known.limit) == held and amounts(known.used) == used
    recent = known.renewed_at and now - parse_time(known.renewed_at) < limits.GRANT_LEASE_S / 2
    if same and recent:
        return ()
    blocks = {
        "acknowledgedEpoch": copy.spec.epoch,
        "limit": dict(amounts_text(held)),
        "used": dict(amounts_text(used)),
        "renewedAt": micro_text(now),
    }
    return (SetStatus("Grant", grant.key, grant.uid, blocks=blocks, observed_generation=grant.metadata.generation),)


def _told(copy: GrantCopy, grants: View, here: View, region: str) -> tuple[Amounts, Amounts]:
    """What is used and held of a grant, each class by itself.

    Emergency quota adds to the normal limit, and use is counted once, on the normal copy. What is beyond the normal
    limit is spent from the emergency's: told as normal it would be given on as such, and the emergency given twice.
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
    """The most that the region may hold under this limit: the limit, or what is in use beyond it."""
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
