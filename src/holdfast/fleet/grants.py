"""grant: shares a tenant's quota out to regions. Owns Grant.spec and Quota.status.

Escrow: a grant counts as the larger of what it should be and what its region last said it enforces. So a smaller
limit frees nothing until the region has acknowledged it, and the sum never exceeds the quota (S3), whoever is cut off.
Grants follow demand; nobody is shrunk unless someone else needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.meta import API_VERSION, Condition, Key, ObjectMeta, OwnerReference, with_condition
from holdfast.model.quantity import Amounts, add, amounts, amounts_text, scaled
from holdfast.model.quota import Grant, GrantClass, GrantSpec, Quota, QuotaStatus, RegionUse, grant_name
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.template import requests
from holdfast.model.times import seconds_text
from holdfast.model.view import View
from holdfast.model.workload import WorkloadType
from holdfast.model.writes import NOTHING, Create, Outcome, SetStatus, Update, Write

Limits = dict[str, Amounts]


def decide(key: Key, view: View, now: float) -> Outcome:
    """The decision for one tenant; the key names its Quota."""
    quota = view.get(Quota, key.name, key.namespace)
    grants = {g.spec.region: g for g in view.list(Grant, key.namespace) if g.spec.grant_class is GrantClass.NORMAL}
    if quota is None or quota.metadata.terminating:
        return _withdraw(grants)
    wanted = demand(view.list(Assignment, key.namespace))
    regions = [r.metadata.name for r in view.list(Region)]
    new = share_out(
        amounts(quota.spec.hard),
        {region: amounts(caps) for region, caps in quota.spec.region_caps.items()},
        {name: wanted.get(name, {}) for name in sorted({*regions, *grants})},
        {name: amounts(g.spec.limit) for name, g in grants.items()},
        {name: amounts(g.status.limit) for name, g in grants.items()},
    )
    writes: list[Write] = []
    for region, limit in new.items():
        write = _write(quota, region, limit, grants.get(region))
        if write is not None:
            writes.append(write)
    status = _status(quota, grants, new, now)
    if status is not None:
        writes.append(status)
    return Outcome(writes=tuple(writes)) if writes else NOTHING


def demand(assignments: Sequence[Assignment]) -> Limits:
    """What each region needs to hold what it was assigned, room for a rollout's surge included."""
    found: Limits = {}
    for assignment in assignments:
        if assignment.spec.purpose is not Purpose.NORMAL:
            continue
        spec = assignment.spec
        surge = spec.rollout.max_surge if spec.type is WorkloadType.SERVICE and spec.replicas else 0
        held = max(spec.replicas, assignment.status.bound)
        add(found.setdefault(spec.region, {}), scaled(requests(spec.template), held + surge))
    return found


def share_out(hard: Amounts, caps: Limits, wanted: Limits, current: Limits, enforced: Limits) -> Limits:
    """New limits per region. Raises only into what is provably free; shrinks only where someone else goes short."""
    new: Limits = {region: dict(current.get(region, {})) for region in wanted}
    for resource, total in sorted(hard.items()):
        counted = {
            region: max(new[region].get(resource, 0), enforced.get(region, {}).get(resource, 0)) for region in new
        }
        free = total - sum(counted.values())
        short = 0
        for region in sorted(new):
            cap = caps.get(region, {}).get(resource, total)
            want = min(wanted[region].get(resource, 0), cap)
            lacking = want - new[region].get(resource, 0)
            if lacking <= 0:
                continue
            # What the region still enforces from before a shrink may be given back to it without touching `free`.
            owned = counted[region] - new[region].get(resource, 0)
            granted = min(lacking, owned + max(0, free))
            free -= max(0, granted - owned)
            short += lacking - granted
            if granted > 0:
                new[region][resource] = new[region].get(resource, 0) + granted
        excess_total = max(0, -free) + short
        for region in sorted(new, reverse=True):
            spare = new[region].get(resource, 0) - wanted[region].get(resource, 0)
            if excess_total > 0 and spare > 0:
                back = min(spare, excess_total)
                new[region][resource] -= back
                excess_total -= back
    for region in new:
        new[region] = {name: amount for name, amount in new[region].items() if amount and name in hard}
    return new


def _write(quota: Quota, region: str, limit: Mapping[str, int], stored: Grant | None) -> Write | None:
    text = dict(amounts_text(limit))
    if stored is None:
        if not limit:
            return None
        meta = ObjectMeta(
            name=grant_name(region),
            namespace=quota.metadata.namespace,
            owner_references=(
                OwnerReference(api_version=API_VERSION, kind="Quota", name=quota.metadata.name, uid=quota.uid),
            ),
        )
        spec = GrantSpec(region=region, limit=dict(text), lease_seconds=limits.GRANT_LEASE_S)
        return Create(Grant(metadata=meta, spec=spec))
    if amounts(stored.spec.limit) == dict(limit):
        return None
    spec = msgspec.structs.replace(stored.spec, limit=dict(text), epoch=stored.spec.epoch + 1)
    return Update(msgspec.structs.replace(stored, spec=spec))


def _withdraw(grants: Mapping[str, Grant]) -> Outcome:
    writes: list[Write] = []
    for grant in grants.values():
        if grant.spec.limit:
            spec = msgspec.structs.replace(grant.spec, limit={}, epoch=grant.spec.epoch + 1)
            writes.append(Update(msgspec.structs.replace(grant, spec=spec)))
    return Outcome(writes=tuple(writes)) if writes else NOTHING


def _status(quota: Quota, grants: Mapping[str, Grant], new: Limits, now: float) -> SetStatus | None:
    granted: Amounts = {}
    used: Amounts = {}
    pending = []
    rows = []
    for region, limit in sorted(new.items()):
        grant = grants.get(region)
        add(granted, limit)
        if grant is not None:
            add(used, amounts(grant.status.used))
            if grant.status.acknowledged_epoch < grant.spec.epoch:
                pending.append(region)
        if grant is not None or limit:
            rows.append(
                RegionUse(
                    region=region,
                    granted=dict(amounts_text(limit)),
                    used=dict(grant.status.used) if grant is not None else {},
                )
            )
    condition = Condition(
        type="Granted",
        status="False" if pending else "True",
        reason=Reason.SHRINK_PENDING if pending else Reason.GRANTED,
        message=f"waiting for {', '.join(pending)} to acknowledge" if pending else "every region holds its share",
        observed_generation=quota.metadata.generation,
    )
    conditions = with_condition(quota.status.conditions, condition, seconds_text(now))
    status = QuotaStatus(
        observed_generation=quota.metadata.generation,
        conditions=conditions,
        granted=dict(amounts_text(granted)),
        used=dict(amounts_text(used)),
        regions=tuple(rows),
    )
    if status == quota.status:
        return None
    return SetStatus(
        "Quota",
        quota.key,
        quota.uid,
        blocks={"granted": status.granted, "used": status.used, "regions": status.regions},
        conditions=(condition,),
        observed_generation=quota.metadata.generation,
    )


def keys(view: View) -> Iterable[Key]:
    found = {q.key for q in view.list(Quota)}
    found |= {Key(g.metadata.namespace, "quota") for g in view.list(Grant)}
    return sorted(found)


def woken_by_any(new: object, old: object, view: View) -> Iterable[Key]:
    """Quota, Grant or Assignment of a tenant; statuses that say the same wake nobody."""
    item = new or old
    if isinstance(new, Assignment) and isinstance(old, Assignment):
        same = new.spec == old.spec and new.status.bound == old.status.bound
        return () if same else (Key(new.metadata.namespace, "quota"),)
    if isinstance(item, Quota | Grant | Assignment):
        return (Key(item.metadata.namespace, "quota"),)
    return ()
