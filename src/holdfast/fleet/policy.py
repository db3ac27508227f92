"""policy: turns a SchedulerPolicy into immutable revisions. Owns PolicyRevision and SchedulerPolicy.status.

A revision is named by its content. The sequence of the active one only rises, also when going back to old rules.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.meta import Condition, Key, ObjectMeta
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRevisionSpec, SchedulerPolicy, rules_hash
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
    if status.revision != name or status.sequence != sequence:
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
                conditions=(condition,),
                observed_generation=policy.metadata.generation,
            )
        )
    return Outcome(writes=tuple(writes)) if writes else NOTHING


def keys(view: View) -> Iterable[Key]:
    return [p.key for p in view.list(SchedulerPolicy)]


def woken_by_policy(new: SchedulerPolicy | None, old: SchedulerPolicy | None, view: View) -> Iterable[Key]:
    return (new.key,) if new is not None else ()
