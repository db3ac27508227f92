"""The Grants of a tenant as they would be after a change of its Assignments, and as its regions would enforce them.

Runs the decision of the controller `grant` on a copy, with the acknowledgements of the regions in between. Writes
nothing. A region's headroom then follows from its GrantCopies as in the scheduler (`quota_headroom.headroom_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from holdfast.controllers.cache import Cache
from holdfast.fleet import grants
from holdfast.fleet.tenant_demand import is_lease_expired
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Key, Object, ObjectMeta
from holdfast.model.quantity import amounts, amounts_text
from holdfast.model.quota import Grant
from holdfast.model.region import Region
from holdfast.model.writes import Create, Delete, Update, Write

# Rounds of decision and acknowledgement: a limit is lowered, acknowledged, and raised in another region. At the bound
# the limits so far are used, which are never too high.
GRANT_ROUNDS_MAX = 4
PLANNED_REVISION = 2**53
"""Revision of a planned object: later than every stored one."""

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


def put_planned(view: Cache, item: O) -> O:
    """Puts a planned state into the view, as if it had been written last."""
    old = view.get(type(item), item.metadata.name, item.metadata.namespace)
    revision = max(PLANNED_REVISION, old.revision + 1 if old is not None else 0)
    meta = msgspec.structs.replace(
        item.metadata,
        resource_version=str(revision),
        uid=item.metadata.uid or f"planned-{item.metadata.namespace}-{item.metadata.name}",
    )
    planned = msgspec.structs.replace(item, metadata=meta)
    view.put(planned)
    return planned


def planned_grants(view: Cache, tenant: str, now: float) -> tuple[Grant, ...]:
    """The tenant's Grants after the controller and the regions have settled. The view then holds them."""
    for _ in range(GRANT_ROUNDS_MAX):
        changed = [_apply(view, w, now) for w in grants.decide(Key(tenant, "quota"), view, now).writes]
        if not any(changed):
            break
    return tuple(view.list(Grant, tenant))


def _apply(view: Cache, write: Write, now: float) -> bool:
    if isinstance(write, Delete) and write.kind == "Grant":
        view.remove(Grant, write.key, PLANNED_REVISION * 2)
        return True
    if not isinstance(write, Create | Update) or not isinstance(write.object, Grant):
        return False
    grant = write.object
    in_contact = not is_lease_expired(grant, view.get(Region, grant.spec.region), now)
    put_planned(view, _acknowledged(grant) if in_contact else grant)
    return True


def _acknowledged(grant: Grant) -> Grant:
    """The Grant after its region enforces the limit. A limit is never below what the region uses."""
    status = msgspec.structs.replace(
        grant.status, acknowledged_epoch=grant.spec.epoch, limit=dict(amounts_text(_enforced(grant, grant.status.used)))
    )
    return msgspec.structs.replace(grant, status=status)


def _enforced(grant: Grant, used: dict[str, str | int | float]) -> dict[str, int]:
    limit = amounts(grant.spec.limit)
    return {name: max(amount, amounts(used).get(name, 0)) for name, amount in limit.items()}


def planned_copies(planned: Iterable[Grant], region: str, present: Sequence[GrantCopy]) -> list[GrantCopy]:
    """The limits that the region would enforce for the tenants of these Grants; other tenants keep theirs. The lease
    stays as it is, so a region out of contact spends nothing new."""
    known = {copy.key: copy for copy in present}
    for grant in planned:
        if grant.spec.region != region:
            continue
        key = Key(grant.metadata.namespace, grant.spec.grant_class.value.lower())
        old = known.get(key)
        spec = msgspec.structs.replace(
            old.spec if old is not None else GrantCopySpec(lease_expires_at=grant.spec.ends_at),
            grant_class=grant.spec.grant_class,
            limit=grant.spec.limit,
            provisional=grant.spec.provisional,
            protected=grant.spec.protected,
            epoch=grant.spec.epoch,
        )
        meta = old.metadata if old is not None else ObjectMeta(name=key.name, namespace=key.namespace)
        known[key] = GrantCopy(meta, spec, old.status) if old is not None else GrantCopy(meta, spec)
    return list(known.values())
