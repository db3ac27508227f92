"""Failback: after the lost region is healthy again, returns the replicas, slots and quota of the recovery.

A recovery Assignment shrinks only when the workload's ordinary replicas serve and no other open Recovery uses it. The
Recovery closes when `remaining_resources` is empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.fleet.recovery.borrowed_shares import all_returned
from holdfast.fleet.recovery.recovery_status import RECOVERY_CHECK_EVERY_S, status_write, suspension_writes
from holdfast.fleet.recovery.targets import targets_in_use
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.quantity import amounts
from holdfast.model.quota import Grant, GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.recovery import Recovery, RecoveryPhase, is_open
from holdfast.model.region import HealthState, Region
from holdfast.model.times import micro_text
from holdfast.model.view import View
from holdfast.model.workload import Workload, wanted_replicas
from holdfast.model.writes import Delete, Notice, Outcome, Update, Write

# Recovery Assignments emptied in one pass of a failback. The rest follows in the next pass.
RETURNS_PER_PASS = 16


def decide(recovery: Recovery, region: Region, view: View, now: float) -> Outcome:
    if region.status.health.state is HealthState.LOST:
        status = msgspec.structs.replace(recovery.status, phase=RecoveryPhase.OPEN, stable_since="")
        again = status_write(recovery, status, now)
        message = f"region {region.metadata.name} is lost again; recovery continues from the present state"
        notice = Notice(recovery, Reason.RECOVERING, message, warning=True)
        return Outcome(writes=(again,) if again is not None else (), notices=(notice,), requeue_after_s=0.0)
    writes: list[Write] = list(suspension_writes(region.metadata.name, view, suspended=False))
    writes += return_borrowed(recovery, view)
    remaining = remaining_resources(recovery, view)
    status = msgspec.structs.replace(recovery.status, remaining=remaining)
    notices: tuple[Notice, ...] = ()
    if not writes and not remaining:
        borrowed = all_returned(status.borrowed, now)
        status = msgspec.structs.replace(
            status, phase=RecoveryPhase.CLOSED, closed_at=micro_text(now), borrowed=borrowed
        )
        notices = (Notice(recovery, Reason.RECOVERY_CLOSED, "everything borrowed was returned"),)
    write = status_write(recovery, status, now)
    if write is not None:
        writes.append(write)
    again_s = None if status.phase is RecoveryPhase.CLOSED else RECOVERY_CHECK_EVERY_S
    return Outcome(writes=tuple(writes), notices=notices, requeue_after_s=again_s)


def recovery_assignments(view: View) -> list[Assignment]:
    return [a for a in view.list(Assignment) if a.spec.purpose is Purpose.RECOVERY]


def return_borrowed(recovery: Recovery, view: View) -> list[Write]:
    """Shrinks unused recovery Assignments to zero, a few per pass, and deletes them when they are drained."""
    writes: list[Write] = []
    used = targets_in_use(view, recovery, ())
    for item in recovery_assignments(view):
        if item.metadata.terminating:
            continue
        spec = item.spec
        if not spec.replicas:
            if item.status.observed_epoch >= spec.epoch and not item.status.replicas:
                writes.append(Delete("Assignment", item.key, item.uid))
            continue
        if (item.metadata.namespace, spec.workload, spec.region) in used or not _ordinary_replicas_serve(item, view):
            continue
        if len(writes) < RETURNS_PER_PASS:
            emptied = msgspec.structs.replace(
                spec, replicas=0, epoch=spec.epoch + 1, reason=f"failback of recovery {recovery.metadata.name}"
            )
            writes.append(Update(msgspec.structs.replace(item, spec=emptied)))
    return writes


def _ordinary_replicas_serve(item: Assignment, view: View) -> bool:
    """Whether all ordinary replicas of the workload serve, or the workload needs no recovery any more."""
    workload = view.get(Workload, item.spec.workload, item.metadata.namespace)
    if workload is None or workload.metadata.terminating or workload.spec.recovery is None:
        return True
    normal = [a for a in view.by(Assignment, "workload", str(workload.key)) if a.spec.purpose is Purpose.NORMAL]
    # A workload without ordinary Assignments counts only if it is scaled to zero; otherwise they do not exist yet.
    return (bool(normal) or not wanted_replicas(workload)) and all(_serves_fully(a, view) for a in normal)


def _serves_fully(item: Assignment, view: View) -> bool:
    region = view.get(Region, item.spec.region)
    if region is not None and region.status.health.state is not HealthState.HEALTHY:
        return False
    current = item.status.observed_epoch >= item.spec.epoch and not item.spec.suspended
    return current and item.status.serving >= item.spec.replicas


def remaining_resources(recovery: Recovery, view: View) -> tuple[str, ...]:
    """What the recovery still uses: recovery Assignments, suspensions, recovery grants and recovery slots."""
    others = [r for r in view.list(Recovery) if is_open(r) and r.metadata.name != recovery.metadata.name]
    found: list[str] = []
    if not others:
        found += [f"assignment {a.key}: {a.spec.replicas} recovery replica(s)" for a in recovery_assignments(view)]
        found += _remaining_grants(view)
        found += _used_slots(view)
    found += [
        f"assignment {a.key} is suspended"
        for a in view.by(Assignment, "region", recovery.spec.region)
        if a.spec.suspended
    ]
    return tuple(found)


def _remaining_grants(view: View) -> Sequence[str]:
    return [
        f"grant {g.key}: recovery quota {'in use' if amounts(g.status.used) else 'not returned'}"
        for g in view.list(Grant)
        if g.spec.grant_class is GrantClass.RECOVERY
        and (amounts(g.spec.limit) or amounts(g.status.limit) or amounts(g.status.used))
    ]


def _used_slots(view: View) -> Sequence[str]:
    return [
        f"region {region.metadata.name}: {place.consumed} recovery slot(s) of budget {place.budget} in use"
        for region in view.list(Region)
        if region.status.report is not None and region.status.health.state is HealthState.HEALTHY
        for place in region.status.report.recovery_slots
        if place.consumed
    ]
