"""Chooses the recovery target of a critical workload, and abandons a target that stalls. Pure.

- A target is kept while it is eligible and makes progress.
- A target without progress for a fraction of `deadlineSeconds` is abandoned, with evidence, for an untried region. Each
  region is abandoned at most once per incident, so the search ends.
- Serving replicas in an abandoned target stay until the new target serves `minServing`. Other replicas there are
  released at once, because the new target needs their quota and slots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from holdfast.fleet.disruption_shares import with_share_peak
from holdfast.fleet.recovery.need import CriticalWorkload, TargetSelector
from holdfast.model.assignment import Assignment, Purpose, assignment_name
from holdfast.model.meta import Key
from holdfast.model.reasons import Reason
from holdfast.model.recovery import AbandonedTarget, Recovery, RecoveryPhase, WorkloadProgress, is_open, live_rows
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import RolloutPhase
from holdfast.model.writes import Delete, Update, Write

# Fraction of `deadlineSeconds` without progress after which a recovery target is abandoned. Three targets can be tried
# before the deadline.
RECOVERY_STALL_FRACTION = 0.25
# Minimum time without progress before a recovery target is abandoned, for short deadlines.
RECOVERY_STALL_MIN_S = 20.0
# Targets abandoned per workload and incident. After that, the last target is kept, so that the search ends.
RECOVERY_TARGET_CHANGES_MAX = 4

_SHORT_OF_QUOTA = frozenset({Reason.QUOTA_EXCEEDED, Reason.NO_GRANT})


class TargetChoice(msgspec.Struct, frozen=True):
    """The target region, the abandoned ones, and why the present target stalls (empty if it does not)."""

    target: str
    abandoned_targets: tuple[AbandonedTarget, ...] = ()
    stalled_reason: str = ""
    changed: bool = False


def choose_target(
    critical: CriticalWorkload, row: WorkloadProgress | None, targets: TargetSelector, now: float, *, waiting_for: str
) -> TargetChoice:
    """The next target of the workload. `waiting_for` is the pending reason that the target reports."""
    target, left = (row.target, row.abandoned_targets) if row is not None else ("", ())
    tried = frozenset(item.region for item in left)
    if not target or targets.refusal(critical, target):
        return TargetChoice(targets.choose(critical, without=tried) or targets.choose(critical), left)
    why = _stall_evidence(critical, row, waiting_for, now) if row is not None else ""
    if not why:
        return TargetChoice(target, left)
    other = targets.choose(critical, without=tried | {target}) if len(left) < RECOVERY_TARGET_CHANGES_MAX else ""
    if not other:
        return TargetChoice(target, left, stalled_reason=f"{why}; no other region is eligible")
    record = AbandonedTarget(region=target, at=micro_text(now), reason=Reason.TARGET_STALLED, message=why)
    return TargetChoice(other, (*left, record), stalled_reason=f"{why}; the new target is {other}", changed=True)


def stalled_after_s(critical: CriticalWorkload) -> float:
    """Time without progress after which a target is abandoned."""
    return max(RECOVERY_STALL_MIN_S, critical.objective.deadline_seconds * RECOVERY_STALL_FRACTION)


def _stall_evidence(critical: CriticalWorkload, row: WorkloadProgress, waiting_for: str, now: float) -> str:
    """Evidence of a stall, with stable wording while nothing changes; empty if the target does not stall."""
    here = critical.counts_in(row.target)
    if here.serving >= critical.objective.min_serving or not row.last_progress_at:
        return ""
    if progress_points(critical, row.target) > row.best_progress or _is_rolling_out(critical, row.target):
        return ""
    if now - parse_time(row.last_progress_at) < stalled_after_s(critical):
        return ""
    said = f" ({waiting_for})" if waiting_for else ""
    return (
        f"region {row.target}: no progress since {row.last_progress_at}: {here.assigned} replica(s) assigned, "
        f"{here.bound} bound, {here.ready} ready, {here.serving} of {critical.objective.min_serving} serving{said}"
    )


def _is_rolling_out(critical: CriticalWorkload, target: str) -> bool:
    """Whether a running rollout explains the missing replicas. The rollout has its own deadline."""
    block, away = critical.workload.status.rollout, critical.workload.spec.disruption.max_unavailable
    if block is None or block.phase not in (RolloutPhase.PROGRESSING, RolloutPhase.ROLLING_BACK):
        return False
    return target in block.regions and critical.counts_in(target).serving >= max(
        1, critical.objective.min_serving - away
    )


def pending_reason(critical: CriticalWorkload, target: str, view: View) -> str:
    """Pending reason of the recovery replicas in the target, as reported by the region."""
    own = view.get(Assignment, assignment_name(critical.name, target, Purpose.RECOVERY), critical.tenant)
    if own is None or not own.status.pending:
        return ""
    first = own.status.pending[0]
    return f"{first.reason}: {first.message}" if first.message else str(first.reason)


def progress_points(critical: CriticalWorkload, target: str) -> int:
    """Progress of the workload in the target: one point per replica and stage."""
    here = critical.counts_in(target)
    return here.bound + here.ready + here.serving


def with_progress_clock(
    row: WorkloadProgress,
    old: WorkloadProgress | None,
    critical: CriticalWorkload,
    now: float,
    *,
    waits: bool,
    asked: bool,
) -> WorkloadProgress:
    """The row with its progress clock, which runs while the target has replicas to bring up.

    `waits`: the start is rate limited, so nothing was assigned yet. `asked`: replicas were just assigned, so the clock
    restarts.
    """
    if waits or not row.target or row.serving >= row.wanted:
        return row
    best = progress_points(critical, row.target)
    if (
        old is not None
        and old.target == row.target
        and old.last_progress_at
        and not asked
        and best <= old.best_progress
    ):
        return msgspec.structs.replace(row, best_progress=old.best_progress, last_progress_at=old.last_progress_at)
    return msgspec.structs.replace(row, best_progress=best, last_progress_at=micro_text(now))


def targets_in_use(view: View, recovery: Recovery, rows: Sequence[WorkloadProgress]) -> set[tuple[str, str, str]]:
    """(tenant, workload, region) of every target of an open Recovery; for this Recovery by its newest rows."""
    found = {(row.tenant, row.workload, row.target) for row in rows}
    for other in view.list(Recovery):
        away = other.status.phase is RecoveryPhase.FAILING_BACK or other.metadata.name == recovery.metadata.name
        if is_open(other) and not away:
            found |= {(row.tenant, row.workload, row.target) for row in live_rows(other.status)}
    return found


def release_abandoned(
    critical: CriticalWorkload, target: str, used: Collection[tuple[str, str, str]], view: View
) -> list[Write]:
    """Writes that shrink or delete recovery Assignments in regions that are no longer a target."""
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
        keep = min(spec.replicas, item.status.serving) if _must_keep_serving(item, critical, target, view) else 0
        if keep < spec.replicas:
            reason = f"recovery target changed to {target}: {keep} replica(s) stay until it serves"
            smaller = msgspec.structs.replace(spec, replicas=keep, epoch=spec.epoch + 1, reason=reason)
            writes.append(Update(msgspec.structs.replace(item, spec=with_share_peak(smaller, item))))
    return writes


def _must_keep_serving(item: Assignment, critical: CriticalWorkload, target: str, view: View) -> bool:
    """Whether the serving replicas in an abandoned target must stay.

    They stay until the new target serves `minServing`. If the recovery allowance cannot pay for both regions, they stay
    only until the new target serves at least as many."""
    serving = critical.counts_in(target).serving
    if serving >= critical.objective.min_serving:
        return False
    own = view.get(Assignment, assignment_name(critical.name, target, Purpose.RECOVERY), critical.tenant)
    starved = own is not None and any(p.reason in _SHORT_OF_QUOTA for p in own.status.pending)
    return not (starved and serving >= item.status.serving)
