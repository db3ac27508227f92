"""policy: turns a SchedulerPolicy into immutable revisions. Owns PolicyRevision and SchedulerPolicy.status.

A revision is named by its content. The sequence of the active one only rises, also when going back to old rules.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.meta import Condition, Key, ObjectMeta
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import (
    PolicyRevision,
    PolicyRevisionSpec,
    PromotionStage,
    SchedulerPolicy,
    rules_hash,
)
from holdfast.model.view import View
from holdfast.model.writes import NOTHING, Create, Outcome, SetStatus, Update, Write

LABEL_POLICY = "holdfast.dev/policy"


def decide(key: Key, view: View, now: float) -> Outcome:
    """The decision for one policy."""
    policy = view.get(SchedulerPolicy, key.name)
    if policy is None or policy.metadata.terminating:
        return NOTHING
    revisions = view.list(PolicyRevision)
    name = f"{policy.metadata.name}-{rules_hash(policy.spec.rules)}"
    stored = view.get(PolicyRevision, name)
    newest = max((r.spec.sequence for r in revisions), default=0)
    wanted = PolicyRevisionSpec(
        policy=policy.metadata.name,
        rules=policy.spec.rules,
        sequence=newest + 1,
        stage=policy.spec.stage,
        regions=policy.spec.canary_regions,
    )
    writes: list[Write] = []
    sequence = newest + 1
    if stored is None:
        meta = ObjectMeta(name=name, labels={LABEL_POLICY: policy.metadata.name})
        writes.append(Create(PolicyRevision(metadata=meta, spec=wanted)))
    else:
        kept = msgspec.structs.replace(wanted, sequence=stored.spec.sequence)
        is_newest = stored.spec.sequence == newest
        sequence = stored.spec.sequence
        if kept != stored.spec or (policy.status.revision not in ("", name) and not is_newest):
            sequence = newest + 1
            writes.append(Update(msgspec.structs.replace(stored, spec=wanted)))
    status = policy.status
    spread = _spread(policy, name, view)
    known = next((c for c in status.conditions if c.type == spread.type), None)
    told = known is not None and (known.status, known.message) == (spread.status, spread.message)
    if status.revision != name or status.sequence != sequence or not told:
        condition = Condition(
            type="Published",
            status="True",
            reason=Reason.PUBLISHED,
            message=f"revision {name}, sequence {sequence}",
            observed_generation=policy.metadata.generation,
        )
        writes.append(
            SetStatus(
                "SchedulerPolicy",
                policy.key,
                policy.uid,
                blocks={"revision": name, "sequence": sequence},
                conditions=(condition, spread),
                observed_generation=policy.metadata.generation,
            )
        )
    return Outcome(writes=tuple(writes)) if writes else NOTHING


def _spread(policy: SchedulerPolicy, name: str, view: View) -> Condition:
    """Whether the regions that should decide by the revision do; a cut-off one keeps its last, and is named."""
    stage, canary = policy.spec.stage, policy.spec.canary_regions
    should = [
        r for r in view.list(Region)
        if stage is PromotionStage.ACTIVE or (stage is PromotionStage.CANARY and r.metadata.name in canary)
    ]  # fmt: skip
    behind = [r.metadata.name for r in should if r.status.report is None or r.status.report.policy != name]
    acts = stage in (PromotionStage.ACTIVE, PromotionStage.CANARY)
    message = f"{stage.value}: {len(should) - len(behind)} of {len(should)} region(s) decide by it"
    if behind:
        message += f"; stalled: {', '.join(behind)}"
    return Condition(
        type="Promoted",
        status="True" if acts and not behind else "False",
        reason=Reason.STALLED if behind else Reason.PROMOTED if acts else Reason.NOT_ACTING,
        message=message,
        observed_generation=policy.metadata.generation,
    )


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    before = old.status.report.policy if old is not None and old.status.report is not None else ""
    after = new.status.report.policy if new is not None and new.status.report is not None else ""
    return keys(view) if before != after else ()


def keys(view: View) -> Iterable[Key]:
    return [p.key for p in view.list(SchedulerPolicy)]


def woken_by_policy(new: SchedulerPolicy | None, old: SchedulerPolicy | None, view: View) -> Iterable[Key]:
    return (new.key,) if new is not None else ()
