"""Guard of a policy revision: stops the revision if its outcomes in a region violate the guard.

Only fresh reports of healthy regions that use the revision count. A stop lasts until the policy is changed; it is never
lifted automatically, so that a policy does not oscillate.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.meta import Condition
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, PolicyTrial, Region
from holdfast.model.scheduler_policy import GuardAction, PolicyGuard, PolicyStop, PromotionStage, SchedulerPolicy
from holdfast.model.times import micro_text

_DECIDING = (PromotionStage.CANARY, PromotionStage.ACTIVE)


def current_stop(policy: SchedulerPolicy, name: str) -> PolicyStop | None:
    stop = policy.status.stopped
    if stop is None or stop.revision != name or stop.generation != policy.metadata.generation:
        return None
    return stop


def detect_breach(policy: SchedulerPolicy, name: str, regions: Iterable[Region], now: float) -> PolicyStop | None:
    """The stop caused by the first region whose outcomes violate the guard; None if there is none."""
    guard = policy.spec.guard
    if guard is None or policy.spec.stage not in _DECIDING:
        return None
    reporting = [r for r in regions if r.status.health.state is HealthState.HEALTHY and r.status.report is not None]
    users = [r for r in reporting if r.status.report is not None and r.status.report.policy == name]
    for region in sorted(users, key=lambda r: r.metadata.name):
        trial = region.status.report.policy_trial if region.status.report is not None else None
        reason = breach_reason(guard, trial) if trial is not None and trial.revision == name else ""
        if reason:
            return PolicyStop(
                revision=name,
                generation=policy.metadata.generation,
                action=guard.action,
                reason=Reason.GUARD_BREACHED,
                message=f"region {region.metadata.name}: {reason}",
                at=micro_text(now),
                regions=tuple(sorted(r.metadata.name for r in users)),
            )
    return None


def breach_reason(guard: PolicyGuard, trial: PolicyTrial) -> str:
    """Why the outcomes violate the guard; empty if they do not."""
    if trial.oldest_pending_seconds > guard.max_pending_seconds:
        return (
            f"a request is pending for {trial.oldest_pending_seconds:.0f} s (limit {guard.max_pending_seconds:.0f} s)"
        )
    if trial.decisions < guard.min_decisions:
        return ""
    if trial.refused * 100 > guard.max_conflict_percent * trial.proposed:
        return f"{trial.refused} of {trial.proposed} proposals refused (limit {guard.max_conflict_percent} %)"
    total = trial.proposed + trial.unplaced
    if total and trial.proposed * 100 < guard.min_placed_percent * total:
        return f"{trial.proposed} of {total} replicas placed (minimum {guard.min_placed_percent} %)"
    return ""


def effective_stage(policy: SchedulerPolicy, stop: PolicyStop | None) -> tuple[PromotionStage, tuple[str, ...]]:
    """Stage and canary regions in effect. After a rollback: none. Paused: the regions that used it when stopped."""
    if stop is None:
        return policy.spec.stage, policy.spec.canary_regions
    if stop.action is GuardAction.ROLLBACK:
        return PromotionStage.DRAFT, ()
    return PromotionStage.CANARY, stop.regions


def stopped_condition(policy: SchedulerPolicy, stop: PolicyStop | None) -> Condition:
    return Condition(
        type="Stopped",
        status="False" if stop is None else "True",
        reason=Reason.WITHIN_GUARD if stop is None else Reason.GUARD_BREACHED,
        message="" if stop is None else f"{stop.action.value}: {stop.message}",
        observed_generation=policy.metadata.generation,
    )
