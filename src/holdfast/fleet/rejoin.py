"""What a restored global cell may do before every region has told it what it really holds.

An old backup believes in grants that were raised since, and knows nothing of those that were made since. So nothing
grows anywhere (S3), and no region takes on an exclusive ordinal that another one may still run (S7), until every region
has answered for the new incarnation. What regions hold beyond the records counts first. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.assignment import AssignmentSpec
from holdfast.model.meta import API_VERSION, Key, ObjectMeta, OwnerReference
from holdfast.model.override import Override, OverrideKind, in_force
from holdfast.model.quota import Grant, GrantSpec, Quota, grant_name
from holdfast.model.region import Region
from holdfast.model.view import View
from holdfast.model.writes import Create, Outcome, Write

Decide = Callable[[Key, View, float], Outcome]


def unheard(view: View, now: float) -> tuple[str, ...]:
    """Regions that have not answered since the global cell was restored; with none, it has joined again.

    Who declares a region lost attests that what it was given since the backup is gone with it.
    """
    waiting = [r.metadata.name for r in view.list(Region) if not has_answered(r)]
    if not waiting:
        return ()
    lost = {o.spec.scope.region for o in in_force(view.list(Override), OverrideKind.DECLARE_REGION_LOST, now)}
    return tuple(sorted(name for name in waiting if name not in lost))


def life_of(epoch: int) -> int:
    """The incarnation of the global cell in which an epoch was restored; 0 for what was made since, or without one."""
    return epoch // limits.EPOCHS_PER_INCARNATION


def unless_rejoining(decide: Decide) -> Decide:
    """The same decision, put off while regions are unheard: for whoever gives regions something to hold."""

    def later(key: Key, view: View, now: float) -> Outcome:
        return Outcome(again_in_s=limits.REJOIN_LOOK_EVERY_S) if unheard(view, now) else decide(key, view, now)

    return later


def has_answered(region: Region) -> bool:
    report = region.status.report
    return region.status.awaited <= (report.answered if report is not None else 0)


def adoptions(quota: Quota, grants: Sequence[Grant], regions: Iterable[Region], *, lease_s: float) -> list[Write]:
    """Grants for what regions say they hold of this tenant's and no record knows.

    They give nothing: the limit is empty, and the peak counts until the region has lowered its own.
    """
    known = {grant.metadata.name for grant in grants}
    owner = OwnerReference(api_version=API_VERSION, kind="Quota", name=quota.metadata.name, uid=quota.uid)
    tenant = quota.metadata.namespace
    found: list[Write] = []
    for region in regions:
        name = region.metadata.name
        for stray in region.status.report.strays if region.status.report is not None else ():
            grant = grant_name(name, stray.grant_class)
            if stray.tenant != tenant or grant in known:
                continue
            meta = ObjectMeta(name=grant, namespace=tenant, owner_references=(owner,))
            spec = GrantSpec(region=name, grant_class=stray.grant_class, peak=stray.held, lease_seconds=lease_s)
            found.append(Create(Grant(metadata=meta, spec=spec)))
    return found


def narrowed(copy: AssignmentSpec, wanted: AssignmentSpec) -> AssignmentSpec:
    """What a region may hold while others are unheard: only what it has already and is still wanted. May be `copy`."""
    ordinals = tuple(ordinal for ordinal in copy.ordinals if ordinal in wanted.ordinals)
    replicas = min(copy.replicas, wanted.replicas)
    if (ordinals, replicas) == (copy.ordinals, copy.replicas):
        return copy
    return msgspec.structs.replace(copy, ordinals=ordinals, replicas=replicas, epoch=copy.epoch + 1)
