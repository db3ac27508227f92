"""Restrictions on a restored global cell until every region has reported what it holds. Pure.

A backup lacks grants that were created or raised after it. Until every region has acknowledged the new incarnation, no
grant grows (S3) and no region gets an exclusive ordinal that another one may still run (S7). Grants that
regions enforce and the backup lacks are created first.
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

# Interval at which a restored global cell checks whether every region has acknowledged the restore.
RESTORE_CHECK_EVERY_S = 1.0

Decide = Callable[[Key, View, float], Outcome]


def regions_not_restored(view: View, now: float) -> tuple[str, ...]:
    """Regions that have not acknowledged the restore. Empty: the restore is complete.

    A region that an override declares lost is not waited for: the operator attests that its work is gone.
    """
    waiting = [r.metadata.name for r in view.list(Region) if not has_acknowledged_restore(r)]
    if not waiting:
        return ()
    lost = {o.spec.scope.region for o in in_force(view.list(Override), OverrideKind.DECLARE_REGION_LOST, now)}
    return tuple(sorted(name for name in waiting if name not in lost))


def incarnation_of_epoch(epoch: int) -> int:
    """The incarnation in which an epoch was restored; 0 if it was never restored."""
    return epoch // limits.EPOCHS_PER_INCARNATION


def unless_restoring(decide: Decide) -> Decide:
    """The decision, postponed until every region has acknowledged the restore."""

    def postponed(key: Key, view: View, now: float) -> Outcome:
        return (
            Outcome(requeue_after_s=RESTORE_CHECK_EVERY_S)
            if regions_not_restored(view, now)
            else decide(key, view, now)
        )

    return postponed


def has_acknowledged_restore(region: Region) -> bool:
    report = region.status.report
    return region.status.restore_incarnation <= (report.restore_acknowledged if report is not None else 0)


def adopt_unknown_grants(
    quota: Quota, grants: Sequence[Grant], regions: Iterable[Region], *, lease_s: float
) -> list[Write]:
    """Grants for limits that regions report and that have no record.

    Their limit is empty; the peak counts against the quota until the region has lowered its own limit.
    """
    known = {grant.metadata.name for grant in grants}
    owner = OwnerReference(api_version=API_VERSION, kind="Quota", name=quota.metadata.name, uid=quota.uid)
    tenant = quota.metadata.namespace
    found: list[Write] = []
    for region in regions:
        name = region.metadata.name
        for unknown in region.status.report.unknown_grants if region.status.report is not None else ():
            grant = grant_name(name, unknown.grant_class)
            if unknown.tenant != tenant or grant in known:
                continue
            meta = ObjectMeta(name=grant, namespace=tenant, owner_references=(owner,))
            spec = GrantSpec(
                region=name, grant_class=unknown.grant_class, unacknowledged_peak=unknown.amounts, lease_seconds=lease_s
            )
            found.append(Create(Grant(metadata=meta, spec=spec)))
    return found


def without_additions(copy: AssignmentSpec, wanted: AssignmentSpec) -> AssignmentSpec:
    """The Assignment during a restore: ordinals and replicas in both `copy` and `wanted`. May be `copy` itself."""
    ordinals = tuple(ordinal for ordinal in copy.ordinals if ordinal in wanted.ordinals)
    replicas = min(copy.replicas, wanted.replicas)
    if (ordinals, replicas) == (copy.ordinals, copy.replicas):
        return copy
    return msgspec.structs.replace(copy, ordinals=ordinals, replicas=replicas, epoch=copy.epoch + 1)
