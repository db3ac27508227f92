"""Which region a workload is recovered in, and when it is left for another one. Pure.

A target stays as long as it may hold the workload and gets on with it. One that took the workload and shows no progress
for a stated part of the promise's time is left, with the evidence on record, for a region that was not tried; each is
left at most once in an incident, so that this ends. What serves in a region that was left stays until the new one
serves as promised (make before break); what does not serve there is given up at once, as it holds quota and places that
the new one needs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from holdfast.fleet.disruption_shares import with_share_peak
from holdfast.fleet.recovery.need import CriticalWorkload, TargetSelector
from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose, assignment_name
from holdfast.model.meta import Key
from holdfast.model.reasons import Reason
from holdfast.model.recovery import AbandonedTarget, Recovery, RecoveryPhase, WorkloadProgress, is_open
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import RolloutPhase
from holdfast.model.writes import Delete, Update, Write

_SHORT_OF_QUOTA = frozenset({Reason.QUOTA_EXCEEDED, Reason.NO_GRANT})


class TargetChoice(msgspec.Struct, frozen=True):
    """The region to recover in, those that were left for it, and why the present one is stuck, if it is."""

    target: str
    abandoned_targets: tuple[AbandonedTarget, ...] = ()
    stalled_reason: str = ""
    changed: bool = False


def choose_target(
    critical: CriticalWorkload,
    row: WorkloadProgress | None,
    targets: TargetSelector,
    now: float,
    *,
    waiting_for: str,
) -> TargetChoice:
    """Where the workload is recovered from here on. `waiting_for` is what the target says it waits for."""
    target, left = (row.target, row.abandoned_targets) if row is not None else ("", ())
    tried = frozenset(item.region for item in left)
    if not target or targets.refusal(critical, target):
        return TargetChoice(targets.choose(critical, without=tried) or targets.choose(critical), left)
    why = _why_stuck(critical, row, waiting_for, now) if row is not None else ""
    if not why:
        return TargetChoice(target, left)
    other = targets.choose(critical, without=tried | {target}) if len(left) < limits.RECOVERY_TARGET_CHANGES_MAX else ""
    if not other:
        return TargetChoice(target, left, stalled_reason=f"{why}; no other region is left to try")
    record = AbandonedTarget(region=target, at=micro_text(now), reason=Reason.TARGET_STALLED, message=why)
    return TargetChoice(other, (*left, record), stalled_reason=f"{why}; {other} is asked instead", changed=True)


def stalled_after_s(critical: CriticalWorkload) -> float:
    """How long a target may show no progress before another one is asked."""
    return max(limits.RECOVERY_STALL_MIN_S, critical.objective.deadline_seconds * limits.RECOVERY_STALL_FRACTION)


def _why_stuck(critical: CriticalWorkload, row: WorkloadProgress, waiting_for: str, now: float) -> str:
    """The evidence, in words that stay the same as long as nothing moves; empty while the target has time left."""
    here = critical.counts_in(row.target)
    if here.serving >= critical.objective.min_serving or not row.last_progress_at:
        return ""
    if progress_points(critical, row.target) > row.best_progress or _turning(critical, row.target):
        return ""
    if now - parse_time(row.last_progress_at) < stalled_after_s(critical):
        return ""
    said = f" ({waiting_for})" if waiting_for else ""
    return (
        f"region {row.target} took {here.assigned} replica(s), and since {row.last_progress_at} nothing moved: {here.bound} "
        f"bound, {here.ready} ready, {here.serving} of {critical.objective.min_serving} serving{said}"
    )


def _turning(critical: CriticalWorkload, target: str) -> bool:
    """Whether no more is missing there than a rollout under way may have away: its own deadline judges that."""
    block, away = critical.workload.status.rollout, critical.workload.spec.disruption.max_unavailable
    if block is None or block.phase not in (RolloutPhase.PROGRESSING, RolloutPhase.ROLLING_BACK):
        return False
    return target in block.regions and critical.counts_in(target).serving >= max(1, critical.objective.min_serving - away)


def pending_reason(critical: CriticalWorkload, target: str, view: View) -> str:
    """What the recovery replicas in the target wait for, by the region's own word."""
    own = view.get(Assignment, assignment_name(critical.name, target, Purpose.RECOVERY), critical.tenant)
    if own is None or not own.status.pending:
        return ""
    first = own.status.pending[0]
    return f"{first.reason}: {first.message}" if first.message else str(first.reason)


def progress_points(critical: CriticalWorkload, target: str) -> int:
    """How far the workload is in the target: every stage a replica reaches counts one."""
    here = critical.counts_in(target)
    return here.bound + here.ready + here.serving


def with_progress_clock(
    row: WorkloadProgress, old: WorkloadProgress | None, critical: CriticalWorkload, now: float, *, waits: bool, asked: bool
) -> WorkloadProgress:
    """The row with its clock of progress: it runs while something was asked of the target and is not done.

    `waits` for its turn, nothing was asked yet; `asked` for more just now, which begins anew.
    """
    if waits or not row.target or row.serving >= row.wanted:
        return row
    best = progress_points(critical, row.target)
    if old is not None and old.target == row.target and old.last_progress_at and not asked and best <= old.best_progress:
        return msgspec.structs.replace(row, best_progress=old.best_progress, last_progress_at=old.last_progress_at)
    return msgspec.structs.replace(row, best_progress=best, last_progress_at=micro_text(now))


def targets_in_use(view: View, recovery: Recovery, rows: Sequence[WorkloadProgress]) -> set[tuple[str, str, str]]:
    """(tenant, workload, region) that some open recovery recovers in, this one by its newest rows."""
    found = {(row.tenant, row.workload, row.target) for row in rows}
    for other in view.list(Recovery):
        away = other.status.phase is RecoveryPhase.FAILING_BACK or other.metadata.name == recovery.metadata.name
        if is_open(other) and not away:
            found |= {(row.tenant, row.workload, row.target) for row in other.status.workloads}
    return found


def release_abandoned(critical: CriticalWorkload, target: str, used: Collection[tuple[str, str, str]], view: View) -> list[Write]:
    """Recovery Assignments in regions that nobody recovers this workload in any more, brought down as far as may be."""
    writes: list[Write] = []
    for item in view.by(Assignment, "workload", str(Key(critical.tenant, critical.name))):
        spec = item.spec
        counted = (critical.tenant, critical.name, spec.region) in used
        if spec.purpose is not Purpose.RECOVERY or item.metadata.terminating or not target or counted:
            continue
        if not spec.replicas:
            if item.status.observed_epoch >= spec.epoch and not item.status.replicas:
                writes.append(Delete("Assignment", item.key, item.uid))
            continue
        keep = min(spec.replicas, item.status.serving) if _needed(item, critical, target, view) else 0
        if keep < spec.replicas:
            reason = f"{critical.name} is recovered in {target}: {keep} stay until it serves there"
            smaller = msgspec.structs.replace(spec, replicas=keep, epoch=spec.epoch + 1, reason=reason)
            writes.append(Update(msgspec.structs.replace(item, spec=with_share_peak(smaller, item))))
    return writes


def _needed(item: Assignment, critical: CriticalWorkload, target: str, view: View) -> bool:
    """Whether what serves in a region that was left is still the best there is.

    Where the tenant's recovery allowance does not cover both regions, the new one needs only to be no worse.
    """
    serving = critical.counts_in(target).serving
    if serving >= critical.objective.min_serving:
        return False
    own = view.get(Assignment, assignment_name(critical.name, target, Purpose.RECOVERY), critical.tenant)
    starved = own is not None and any(p.reason in _SHORT_OF_QUOTA for p in own.status.pending)
    return not (starved and serving >= item.status.serving)
