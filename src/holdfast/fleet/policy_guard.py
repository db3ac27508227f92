"""The guard of a policy on trial: whether regions that decide by it do badly, and what becomes of it then.

Judges only fresh reports of regions that are heard and really decide by the revision. A hold lasts until the policy is
changed: nothing lifts it by itself, so that a policy does not swing between good and bad.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.meta import Condition
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, PolicyTrial, Region
from holdfast.model.scheduler_policy import Guard, GuardAction, PolicyHold, PromotionStage, SchedulerPolicy
from holdfast.model.times import micro_text

_DECIDING = (PromotionStage.CANARY, PromotionStage.ACTIVE)


def still_held(policy: SchedulerPolicy, name: str) -> PolicyHold | None:
    held = policy.status.held
    if held is None or held.revision != name or held.generation != policy.metadata.generation:
        return None
    return held


def breached(policy: SchedulerPolicy, name: str, regions: Iterable[Region], now: float) -> PolicyHold | None:
    """The hold that follows from what regions report, if one does badly."""
    guard = policy.spec.guard
    if guard is None or policy.spec.stage not in _DECIDING:
        return None
    heard = [r for r in regions if r.status.health.state is HealthState.HEALTHY and r.status.report is not None]
    deciding = [r for r in heard if r.status.report is not None and r.status.report.policy == name]
    for region in sorted(deciding, key=lambda r: r.metadata.name):
        trial = region.status.report.trial if region.status.report is not None else None
        wrong = judge(guard, trial) if trial is not None and trial.revision == name else ""
        if wrong:
            return PolicyHold(
                revision=name,
                generation=policy.metadata.generation,
                action=guard.action,
                reason=Reason.GUARD_BREACHED,
                message=f"region {region.metadata.name}: {wrong}",
                at=micro_text(now),
                regions=tuple(sorted(r.metadata.name for r in deciding)),
            )
    return None


def judge(guard: Guard, trial: PolicyTrial) -> str:
    """What is wrong, or an empty string."""
    if trial.oldest_pending_seconds > guard.max_pending_seconds:
        return (
            f"a request has waited for {trial.oldest_pending_seconds:.0f} s, "
            f"{guard.max_pending_seconds:.0f} s are allowed"
        )
    if trial.decisions < guard.min_decisions:
        return ""
    if trial.refused * 100 > guard.max_conflict_percent * trial.proposed:
        return f"{trial.refused} of {trial.proposed} proposals were refused, {guard.max_conflict_percent} % are allowed"
    asked = trial.proposed + trial.unplaced
    if asked and trial.proposed * 100 < guard.min_placed_percent * asked:
        return f"{trial.proposed} of {asked} replicas found a place, {guard.min_placed_percent} % are asked for"
    return ""


def stage_of(policy: SchedulerPolicy, held: PolicyHold | None) -> tuple[PromotionStage, tuple[str, ...]]:
    """The stage a revision really has. Taken back, it decides nowhere; paused, only where it did when stopped."""
    if held is None:
        return policy.spec.stage, policy.spec.canary_regions
    if held.action is GuardAction.ROLLBACK:
        return PromotionStage.DRAFT, ()
    return PromotionStage.CANARY, held.regions


def told(policy: SchedulerPolicy, held: PolicyHold | None) -> Condition:
    return Condition(
        type="Held",
        status="False" if held is None else "True",
        reason=Reason.WITHIN_GUARD if held is None else Reason.GUARD_BREACHED,
        message="" if held is None else f"{held.action.value}: {held.message}",
        observed_generation=policy.metadata.generation,
    )
