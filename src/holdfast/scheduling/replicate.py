"""replicate: creates and deletes the Replicas of an Assignment, and the SchedulingRequest of the pending ones.

Owns Replica (spec, deletion) and SchedulingRequest.
- At most `replicas` + surge live replicas per Assignment.
- A batch workload never runs more completions than requested.
- A replica name is reused only after the former replica is gone.
- A live replica is never deleted because its Assignment is missing.
- It only requests deletion. `release` decides when a replica gives up its node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.lifecycle import Stage, final_phase, stage
from holdfast.model.meta import API_VERSION, Key, ObjectMeta, OwnerReference
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase, Replica, ReplicaSpec, replica_name
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import template_claims
from holdfast.model.times import micro_text, parse_time
from holdfast.model.trace_ids import kept_context
from holdfast.model.view import View
from holdfast.model.workload import Gang, WorkloadType, is_indexed
from holdfast.model.writes import NO_CHANGES, Create, Delete, Notice, Outcome, Update, Write
from holdfast.scheduling import batch_indexes
from holdfast.scheduling.disruption_budget import disruption_share
from holdfast.scheduling.stable_ordinals import free_ordinals, stable_changes

CREATES_PER_PASS = limits.BATCH_WRITES_MAX // 2
REMOVALS_PER_PASS = limits.BATCH_WRITES_MAX // 2
"""Replicas created and removed per pass. Together with their requests they fit one transaction; the rest follows at
once in the next pass."""
LABEL_REVISION = "holdfast.dev/revision"


def decider(region: str) -> Callable[[Key, View, float], Outcome]:
    """Returns the decide function for Assignments of this region."""

    def decide(key: Key, view: View, now: float) -> Outcome:
        assignment: Assignment | None = view.get(Assignment, key.name, key.namespace)
        index = f"{key.namespace}/{key.name}"
        replicas: Sequence[Replica] = view.by(Replica, "assignment", index)
        requests: Sequence[SchedulingRequest] = view.by(SchedulingRequest, "assignment", index)
        if assignment is None:
            # The link deletes an Assignment after its last live replica. A live one has lost its Assignment with the
            # records of a cell, and is held.
            ended = (r for r in replicas if not r.metadata.terminating and final_phase(r) is not None)
            deletions: list[Write] = [_delete(r) for r in ended]
            deletions += [_delete_request(request) for request in requests]
            some = tuple(deletions[: limits.BATCH_WRITES_MAX])
            return (
                Outcome(writes=some, requeue_after_s=0.0 if len(deletions) > len(some) else None)
                if deletions
                else NO_CHANGES
            )
        siblings: Sequence[Replica] = ()
        if assignment.spec.purpose is Purpose.RECOVERY and any(_is_old(r, assignment) for r in replicas):
            siblings = view.by(Replica, "workload", f"{key.namespace}/{assignment.spec.workload}")
        return _decide(region, assignment, replicas, requests, now, siblings=siblings)

    return decide


def _decide(
    region: str,
    assignment: Assignment,
    replicas: Sequence[Replica],
    requests: Sequence[SchedulingRequest],
    now: float,
    *,
    siblings: Sequence[Replica],
) -> Outcome:
    live = [r for r in replicas if not r.metadata.terminating and final_phase(r) is None]
    left_s = _active_time_left_s(assignment, now)
    is_over = left_s is not None and left_s <= 0
    creates, every_removal = (0, live) if is_over else _changes(assignment, replicas, live, siblings)
    removals = every_removal[:REMOVALS_PER_PASS]
    created = _new_replicas(region, assignment, replicas, min(creates, CREATES_PER_PASS), now)
    writes: list[Write] = [Create(replica) for replica in created]
    writes += [_delete(r) for r in removals]
    terminating = {r.uid for r in removals}
    placed = (r.status.placement for r in live)
    unplaced = [r for r, p in zip(live, placed, strict=True) if not p.binding and not p.reservation]
    pending = [r for r in (*unplaced, *created) if r.uid not in terminating and stage(r) is Stage.QUEUED]
    writes += _request_writes(region, assignment, pending, requests, _gang(assignment, replicas))
    notices: tuple[Notice, ...] = ()
    if created:
        names = ", ".join(r.metadata.name for r in created[:3]) + (" …" if len(created) > 3 else "")
        message = f"created {len(created)} replica(s) of revision {assignment.spec.revision}: {names}"
        notices = (Notice(assignment, Reason.REPLICA_CREATED, message),)
    waits_s = left_s if live and not is_over else None
    again = 0.0 if creates > CREATES_PER_PASS or len(every_removal) > len(removals) else waits_s
    return Outcome(writes=tuple(writes), notices=notices, requeue_after_s=again)


def _active_time_left_s(assignment: Assignment, now: float) -> float | None:
    """Time until a batch must have ended (`activeDeadlineSeconds`); None without such a time."""
    batch = assignment.spec.batch
    if batch is None or batch.active_deadline_seconds is None or not assignment.metadata.creation_timestamp:
        return None
    return parse_time(assignment.metadata.creation_timestamp) + batch.active_deadline_seconds - now


def _active_until(assignment: Assignment) -> str:
    """When a batch must have ended; empty without such a time."""
    at_s = _active_time_left_s(assignment, 0.0)
    return micro_text(at_s) if at_s is not None else ""


def _changes(
    assignment: Assignment, replicas: Sequence[Replica], live: Sequence[Replica], siblings: Sequence[Replica]
) -> tuple[int, list[Replica]]:
    """Number of replicas to create, and the replicas to remove. `siblings` are all replicas of the workload in this
    region; they limit a replacement in place."""
    spec = assignment.spec
    if assignment.metadata.terminating:
        return 0, list(live)
    if spec.suspended:  # a withdrawn ordinal still goes: another region, or the end of a restore, waits for it
        return 0, [r for r in live if spec.exclusive is not None and r.spec.ordinal not in spec.ordinals]
    if spec.type is WorkloadType.BATCH and spec.batch is not None:
        return _batch_changes(assignment, replicas, live)
    if spec.exclusive is not None:
        return _exclusive_changes(assignment, live)
    if template_claims(spec.template):
        return stable_changes(assignment, replicas, live)
    current = [r for r in live if r.spec.revision == spec.revision]
    old = [r for r in live if _is_old(r, assignment)]
    desired = spec.replicas
    excess = _removal_order(current)[: len(current) - desired] if len(current) > desired else []
    if not old:
        return max(0, desired - len(current)), excess
    if spec.rollout.paused:  # keep the mix of revisions; only maintain the total
        surplus = _removal_order(live)[: max(0, len(live) - desired)]
        return max(0, desired - len(live)), surplus
    surge = min(desired - len(current), desired + spec.rollout.max_surge - len(live))
    serving = sum(stage(r) is Stage.SERVING for r in live)
    spare = serving - (desired - spec.rollout.max_unavailable)
    idle = [r for r in old if stage(r) is not Stage.SERVING]
    busy = _removal_order([r for r in old if stage(r) is Stage.SERVING])
    spare = max(spare, _replaceable_in_place(assignment, live, siblings))
    return max(0, surge), [*excess, *idle, *busy[: max(0, spare)]]


def _is_old(replica: Replica, assignment: Assignment) -> bool:
    return replica.spec.revision != assignment.spec.revision


def _replaceable_in_place(assignment: Assignment, live: Sequence[Replica], siblings: Sequence[Replica]) -> int:
    """Number of recovery replicas that may be removed before their successors serve, whatever the rollout says.

    The recovery allowance covers `minServing` only, so surge replicas of an update may get no quota. While one is
    pending, old replicas are replaced in place, as far as the disruption budget allows.
    """
    pending = _pending_surge(assignment, live)
    unavailable = [
        r for r in siblings if not r.metadata.terminating and final_phase(r) is None and stage(r) is not Stage.SERVING
    ]
    terminating = [r for r in siblings if r.metadata.terminating]
    return (
        disruption_share(live[0], assignment) - (len(unavailable) - len(pending)) - len(terminating) if pending else 0
    )


def replaces_in_place(assignment: Assignment, replicas: Sequence[Replica], siblings: Sequence[Replica]) -> bool:
    """Whether old recovery replicas must be replaced in place because a surge replica is pending."""
    live = [r for r in replicas if not r.metadata.terminating and final_phase(r) is None]
    return bool(_pending_surge(assignment, live)) and any(_is_old(r, assignment) for r in live)


def _pending_surge(assignment: Assignment, live: Sequence[Replica]) -> list[Replica]:
    if assignment.spec.purpose is not Purpose.RECOVERY or len(live) <= assignment.spec.replicas:
        return []
    return [r for r in live if stage(r) is Stage.QUEUED and not _is_old(r, assignment)]


def _exclusive_changes(assignment: Assignment, live: Sequence[Replica]) -> tuple[int, list[Replica]]:
    """Updates one ordinal at a time: the old instance must be gone before its successor is created.

    Ordinals that moved to another region are removed first: that region waits for them.
    """
    spec = assignment.spec
    desired = set(spec.ordinals)
    unwanted = [r for r in live if r.spec.ordinal not in desired]
    missing = len(desired - {r.spec.ordinal for r in live})
    old = [r for r in live if r.spec.ordinal in desired and r.spec.revision != spec.revision]
    replaced = [] if missing or spec.rollout.paused else old[:1]
    return missing, [*unwanted, *replaced]


def _batch_changes(
    assignment: Assignment, replicas: Sequence[Replica], live: Sequence[Replica]
) -> tuple[int, list[Replica]]:
    batch = assignment.spec.batch
    if batch is None:
        return 0, []
    if is_indexed(batch):
        return batch_indexes.indexed_changes(assignment, replicas, live)
    succeeded = sum(final_phase(r) is Phase.SUCCEEDED for r in replicas)
    failed = sum(final_phase(r) is Phase.FAILED for r in replicas)
    if failed > batch.backoff_limit:
        return 0, list(live)
    remaining = batch.completions - succeeded
    target = min(batch.parallelism, remaining)
    return max(0, target - len(live)), _removal_order(live)[: max(0, len(live) - max(0, target))]


_USE_ORDER = {
    Stage.QUEUED: 0,
    Stage.RESERVED: 1,
    Stage.FAILED: 2,
    Stage.UNKNOWN: 3,
    Stage.BOUND: 4,
    Stage.STARTING: 5,
    Stage.RUNNING: 6,
    Stage.READY: 7,
    Stage.SERVING: 8,
}


def _removal_order(replicas: Iterable[Replica]) -> list[Replica]:
    """Replicas in the order of removal: pending, then not serving, then highest ordinal."""
    return sorted(replicas, key=lambda r: (_USE_ORDER.get(stage(r), 0), -r.spec.ordinal))


def _new_replicas(
    region: str, assignment: Assignment, replicas: Sequence[Replica], count: int, now: float
) -> list[Replica]:
    if count <= 0:
        return []
    spec = assignment.spec
    taken = {r.spec.ordinal for r in replicas}
    pool: Iterable[int] = (
        sorted(set(spec.ordinals) - taken)
        if spec.exclusive is not None
        else free_ordinals(assignment, replicas)
        if template_claims(spec.template)
        else (n for n in range(len(taken) + count) if n not in taken)
    )
    if is_indexed(spec.batch):
        # A retry has another ordinal, and so another name, than the failed replica, and the same index.
        indexes = batch_indexes.open_indexes(assignment, replicas)
        pairs = zip(pool, indexes[:count], strict=False)
        return [_replica(region, assignment, ordinal, now, index=index) for ordinal, index in pairs]
    return [_replica(region, assignment, ordinal, now) for ordinal, _ in zip(pool, range(count), strict=False)]


def _owned_by(assignment: Assignment) -> tuple[OwnerReference, ...]:
    meta = assignment.metadata
    return (OwnerReference(api_version=API_VERSION, kind="Assignment", name=meta.name, uid=meta.uid, controller=True),)


def _replica(region: str, assignment: Assignment, ordinal: int, now: float, *, index: int | None = None) -> Replica:
    spec = assignment.spec
    name = replica_name(spec.workload, region, ordinal, spec.purpose)
    meta = ObjectMeta(
        name=name,
        namespace=assignment.metadata.namespace,
        uid=_uid(assignment, name, now),
        labels={**spec.template.labels, LABEL_WORKLOAD: spec.workload, LABEL_REVISION: spec.revision},
        annotations=kept_context(assignment),
        owner_references=_owned_by(assignment),
    )
    return Replica(
        metadata=meta,
        spec=ReplicaSpec(
            workload=spec.workload,
            workload_uid=spec.workload_uid,
            assignment=assignment.metadata.name,
            purpose=spec.purpose,
            ordinal=ordinal,
            type=spec.type,
            revision=spec.revision,
            template=spec.template,
            placement=spec.placement,
            priority=spec.priority,
            reclaimable=spec.reclaimable,
            dedicated=spec.dedicated,
            disruption=spec.disruption,
            exclusive=spec.exclusive,
            min_ready_seconds=spec.min_ready_seconds,
            index=index,
            active_until=_active_until(assignment),
        ),
    )


def _uid(assignment: Assignment, name: str, now: float) -> str:
    """A new unique uid, derived from the Assignment, the name and the time.

    It is known before the write, so that the replica and its SchedulingRequest are created in one transaction.
    """
    source = f"{assignment.uid}/{name}/{assignment.metadata.resource_version}/{now!r}"
    text = hashlib.sha256(source.encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:32]}"


def _gang(assignment: Assignment, replicas: Sequence[Replica]) -> Gang | None:
    """The gang with `minAvailable` reduced to the completions still owed: finished members need no node."""
    gang, batch = assignment.spec.gang, assignment.spec.batch
    if gang is None or batch is None:
        return gang
    remaining = batch.completions - sum(final_phase(r) is Phase.SUCCEEDED for r in replicas)
    return Gang(min_available=max(1, min(gang.min_available, remaining)))


def _request_writes(
    region: str,
    assignment: Assignment,
    pending: Sequence[Replica],
    requests: Sequence[SchedulingRequest],
    gang: Gang | None,
) -> list[Write]:
    """Writes that make the SchedulingRequests match the pending replicas. A request that lists members that are no
    longer pending is left as it is."""
    writes: list[Write] = []
    by_revision: dict[str, list[Replica]] = {}
    for replica in pending:
        by_revision.setdefault(replica.spec.revision, []).append(replica)
    for request in requests:
        members = by_revision.pop(request.spec.revision, None)
        if request.metadata.terminating:
            continue
        if not members:
            writes.append(_delete_request(request))
            continue
        listed = {(m.uid, m.attempt) for m in request.spec.members}
        current_members = tuple(_member(r) for r in members)
        missing = any((m.uid, m.attempt) not in listed for m in current_members)
        if missing or (request.spec.priority, request.spec.gang) != (assignment.spec.priority, gang):
            spec = msgspec.structs.replace(
                request.spec, members=current_members, priority=assignment.spec.priority, gang=gang
            )
            writes.append(Update(msgspec.structs.replace(request, spec=spec)))
    for members in by_revision.values():
        writes.append(Create(_request(region, assignment, members, gang)))
    return writes


def _member(replica: Replica) -> RequestMember:
    return RequestMember(name=replica.metadata.name, uid=replica.uid, attempt=replica.status.placement.attempt)


def _request(region: str, assignment: Assignment, members: Sequence[Replica], gang: Gang | None) -> SchedulingRequest:
    spec, first = assignment.spec, members[0].spec
    suffix = "-r" if spec.purpose is Purpose.RECOVERY else ""
    deadline = ""
    if spec.batch is not None and spec.batch.deadline_seconds is not None:
        created_at = parse_time(assignment.metadata.creation_timestamp)
        deadline = micro_text(created_at + spec.batch.deadline_seconds)
    return SchedulingRequest(
        metadata=ObjectMeta(
            name=f"{spec.workload}-{region}-{first.revision}{suffix}",
            namespace=assignment.metadata.namespace,
            labels={LABEL_WORKLOAD: spec.workload},
            annotations=kept_context(assignment),
            owner_references=_owned_by(assignment),
        ),
        spec=SchedulingRequestSpec(
            workload=spec.workload,
            workload_uid=spec.workload_uid,
            assignment=assignment.metadata.name,
            revision=first.revision,
            template=first.template,
            purpose=spec.purpose,
            placement=first.placement,
            priority=spec.priority,
            reclaimable=spec.reclaimable,
            may_preempt=spec.may_preempt,
            dedicated=spec.dedicated,
            exclusive=spec.exclusive,
            gang=gang,
            deadline=deadline,
            max_unavailable=spec.disruption.max_unavailable,
            workload_generation=spec.workload_generation,
            members=tuple(_member(r) for r in members),
            active_until=_active_until(assignment),
        ),
    )


def _delete(replica: Replica) -> Delete:
    return Delete("Replica", replica.key, replica.uid)


def _delete_request(request: SchedulingRequest) -> Delete:
    return Delete("SchedulingRequest", request.key, request.uid)


def keys(view: View) -> Iterable[Key]:
    """All Assignments, and deleted ones that replicas or requests still refer to."""
    found = {a.key for a in view.list(Assignment)}
    found |= {Key(r.metadata.namespace, r.spec.assignment) for r in view.list(Replica)}
    found |= {Key(s.metadata.namespace, s.spec.assignment) for s in view.list(SchedulingRequest)}
    return sorted(found)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    item = new or old
    return (item.key,) if item is not None else ()


_STARTING_STAGES = frozenset({Stage.RESERVED, Stage.BOUND, Stage.STARTING, Stage.RUNNING, Stage.READY})
"""Stages that replicate treats alike: scheduled and not serving yet."""


def woken_by_replica(new: Replica | None, old: Replica | None, view: View) -> Iterable[Key]:
    """Wakes the Assignment if the replica's stage or attempt changes or the replica is deleted."""
    item = new or old
    if item is None:
        return ()
    if new is not None and old is None and stage(new) is Stage.QUEUED and new.status.placement.attempt <= 1:
        return ()
    if old is not None and new is not None:
        is_at, was_at = stage(new), stage(old)
        same = is_at is was_at or (is_at in _STARTING_STAGES and was_at in _STARTING_STAGES)
        same = same and new.status.placement.attempt == old.status.placement.attempt
        if same and new.metadata.terminating == old.metadata.terminating:
            return ()
    return (Key(item.metadata.namespace, item.spec.assignment),)


def woken_by_request(new: SchedulingRequest | None, old: SchedulingRequest | None, view: View) -> Iterable[Key]:
    """Wakes the Assignment if the request's spec changes, or if it is removed while replicas are pending."""
    item = new or old
    if item is None or (new is not None and (old is None or new.spec == old.spec)):
        return ()
    key = Key(item.metadata.namespace, item.spec.assignment)
    if new is None and not any(stage(r) is Stage.QUEUED for r in view.by(Replica, "assignment", str(key))):
        return ()
    return (key,)
