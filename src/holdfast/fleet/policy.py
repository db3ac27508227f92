"""policy: publishes a SchedulerPolicy as immutable revisions. Owns PolicyRevision and SchedulerPolicy.status.

A revision is named by the hash of its rules. The sequence of the active revision only increases, also when old rules
return, by hand or after a guard breach (`policy_guard`). Decisions that were already made are not changed (S10).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.fleet import policy_guard
from holdfast.model.meta import Condition, Key, ObjectMeta
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import (
    PolicyRevision,
    PolicyRevisionSpec,
    PolicyStop,
    PromotionStage,
    SchedulerPolicy,
    rules_hash,
)
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Create, Notice, Outcome, SetStatus, Update, Write

LABEL_POLICY = "holdfast.dev/policy"


def decide(key: Key, view: View, now: float) -> Outcome:
    """Publishes the newest rules of one policy, or the rollback after a guard breach."""
    policy = view.get(SchedulerPolicy, key.name)
    if policy is None or policy.metadata.terminating:
        return NO_CHANGES
    name = f"{policy.metadata.name}-{rules_hash(policy.spec.rules)}"
    stop = policy_guard.current_stop(policy, name) or policy_guard.detect_breach(policy, name, view.list(Region), now)
    revisions = view.list(PolicyRevision)
    above = _revision_above(policy, name, revisions)
    writes, sequence = _revisions(policy, name, stop, revisions, above is not None and not _is_in_force(above, view))
    conditions = (
        _published(policy, name, sequence),
        _spread(policy, name, stop, view, above if above is not None and above.spec.sequence > sequence else None),
        policy_guard.stopped_condition(policy, stop),
    )
    status = policy.status
    known = {c.type: (c.status, c.reason, c.message) for c in status.conditions}
    same = all(known.get(c.type) == (c.status, c.reason, c.message) for c in conditions)
    notices: tuple[Notice, ...] = ()
    if (status.revision, status.sequence, status.stopped) != (name, sequence, stop) or not same:
        blocks = {"revision": name, "sequence": sequence, "stopped": stop}
        writes.append(
            SetStatus(
                "SchedulerPolicy",
                policy.key,
                policy.uid,
                blocks=blocks,
                conditions=conditions,
                observed_generation=policy.metadata.generation,
            )
        )
        if stop is not None and status.stopped != stop:
            notices = (Notice(policy, Reason.GUARD_BREACHED, f"{stop.action.value}: {stop.message}", warning=True),)
    return Outcome(writes=tuple(writes), notices=notices) if writes else NO_CHANGES


def _revision_above(policy: SchedulerPolicy, name: str, revisions: Iterable[PolicyRevision]) -> PolicyRevision | None:
    """The active revision of another policy that decides instead of this one. Admission allows no two active policies;
    they may be older than this rule, or one may be deleted."""
    revisions = [r for r in revisions if r.spec.stage is PromotionStage.ACTIVE and not r.metadata.terminating]
    own = next((r.spec.sequence for r in revisions if r.metadata.name == name), None)
    if own is None:
        return None
    above = [r for r in revisions if r.spec.policy != policy.metadata.name and r.spec.sequence > own]
    return max(above, key=lambda r: r.spec.sequence, default=None)


def _is_in_force(revision: PolicyRevision, view: View) -> bool:
    """Whether the policy of the revision exists and is not a draft."""
    owner = view.get(SchedulerPolicy, revision.spec.policy)
    return owner is not None and owner.spec.stage is not PromotionStage.DRAFT


def _revisions(
    policy: SchedulerPolicy,
    name: str,
    stop: PolicyStop | None,
    revisions: Sequence[PolicyRevision],
    overtaken: bool = False,
) -> tuple[list[Write], int]:
    """Writes of PolicyRevisions, and the sequence of the policy's current revision. A revision that was overtaken by
    one of a deleted policy or of a draft becomes the newest again."""
    newest = max((r.spec.sequence for r in revisions), default=0)
    stored = next((r for r in revisions if r.metadata.name == name), None)
    stage, regions = policy_guard.effective_stage(policy, stop)
    wanted = PolicyRevisionSpec(
        policy=policy.metadata.name,
        rules=policy.spec.rules,
        sequence=newest + 1,
        stage=stage,
        regions=regions,
        guard=policy.spec.guard,
    )
    if stored is None:
        meta = ObjectMeta(name=name, labels={LABEL_POLICY: policy.metadata.name})
        return [Create(PolicyRevision(metadata=meta, spec=wanted))], newest + 1
    kept = msgspec.structs.replace(wanted, sequence=stored.spec.sequence)
    if stop is not None:
        return _stopped(stored, kept, revisions, newest), stored.spec.sequence
    returns = policy.status.revision not in ("", name) and stored.spec.sequence != newest
    if kept != stored.spec or returns or (overtaken and stage is PromotionStage.ACTIVE):
        return [Update(msgspec.structs.replace(stored, spec=wanted))], newest + 1
    return [], stored.spec.sequence


def _stopped(
    stored: PolicyRevision, kept: PolicyRevisionSpec, revisions: Sequence[PolicyRevision], newest: int
) -> list[Write]:
    """A stopped revision keeps its sequence. On rollback the last good revision gets a higher one, because the sequence
    used in a region never decreases."""
    if kept == stored.spec:
        return []
    writes: list[Write] = [Update(msgspec.structs.replace(stored, spec=kept))]
    others = [
        r
        for r in revisions
        if r.spec.policy == kept.policy
        and r.metadata.name != stored.metadata.name
        and r.spec.stage is PromotionStage.ACTIVE
        and not r.metadata.terminating
    ]
    good = max(others, key=lambda r: r.spec.sequence, default=None)
    if kept.stage is PromotionStage.DRAFT and good is not None:
        writes.append(
            Update(msgspec.structs.replace(good, spec=msgspec.structs.replace(good.spec, sequence=newest + 1)))
        )
    return writes


def _published(policy: SchedulerPolicy, name: str, sequence: int) -> Condition:
    return Condition(
        type="Published",
        status="True",
        reason=Reason.PUBLISHED,
        message=f"revision {name}, sequence {sequence}",
        observed_generation=policy.metadata.generation,
    )


def _spread(
    policy: SchedulerPolicy, name: str, stop: PolicyStop | None, view: View, above: PolicyRevision | None
) -> Condition:
    """Whether all regions that should use the revision use it. A partitioned region keeps its last one and is named.
    `above` is a newer active revision of another policy."""
    if above is not None:
        return Condition(
            type="Promoted",
            status="False",
            reason=Reason.ANOTHER_POLICY_ACTIVE,
            message=f"revision {above.metadata.name} of policy {above.spec.policy} is newer, and decides; next: set "
            f"spec.stage of policy {above.spec.policy} to Draft",
            observed_generation=policy.metadata.generation,
        )
    stage, canary = policy_guard.effective_stage(policy, stop)
    users = [
        r
        for r in view.list(Region)
        if stage is PromotionStage.ACTIVE or (stage is PromotionStage.CANARY and r.metadata.name in canary)
    ]
    behind = [r.metadata.name for r in users if r.status.report is None or r.status.report.policy != name]
    acts = stage in (PromotionStage.ACTIVE, PromotionStage.CANARY)
    message = f"{stage.value}: {len(users) - len(behind)} of {len(users)} region(s) use it"
    if behind:
        message += f"; not yet: {', '.join(behind)}"
    return Condition(
        type="Promoted",
        status="True" if acts and not behind else "False",
        reason=Reason.POLICY_ROLLOUT_STALLED if behind else Reason.PROMOTED if acts else Reason.POLICY_INACTIVE,
        message=message,
        observed_generation=policy.metadata.generation,
    )


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    before = old.status.report if old is not None else None
    after = new.status.report if new is not None else None
    previous = (before.policy, before.policy_trial) if before is not None else ("", None)
    return keys(view) if previous != ((after.policy, after.policy_trial) if after is not None else ("", None)) else ()


def keys(view: View) -> Iterable[Key]:
    return [p.key for p in view.list(SchedulerPolicy)]


def woken_by_policy(new: SchedulerPolicy | None, old: SchedulerPolicy | None, view: View) -> Iterable[Key]:
    """All policies: if another one is deleted or becomes a draft, this one decides again."""
    return keys(view)
