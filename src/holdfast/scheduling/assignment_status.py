"""Derives Assignment.status from the region's replicas and scheduling requests. Pure; nothing is carried over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.index_ranges import indexes_text
from holdfast.model.lifecycle import PLACED_STAGES, STARTED_STAGES, Stage, current_execution, final_phase, stage
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase, Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.scheduling import batch_indexes
from holdfast.scheduling.disruption_budget import is_queued_without_eviction

FAILURES_REPORTED_MAX = 3
"""Failure reasons listed per Assignment; the most frequent are kept. Enough to explain a bad revision."""
_QUOTA_REASONS = frozenset({Reason.NO_GRANT, Reason.QUOTA_EXCEEDED, Reason.GRANT_EXPIRED})
_COMING_UP = (Stage.BOUND, Stage.STARTING, Stage.RUNNING)


def assignment_status(
    assignment: Assignment,
    replicas: Sequence[Replica],
    requests: Sequence[SchedulingRequest],
    evictions_blocked: int = 0,
    pending_evictions: int = 0,
) -> AssignmentStatus:
    """The status. `replicas` counts unfinished replicas and finished ones that are still bound: any that could run."""
    stages: Counter[Stage] = Counter()
    ended: Counter[Phase] = Counter()
    failures: Counter[tuple[str, str]] = Counter()
    live = updated = updated_serving = 0
    ordinals: list[int] = []
    for replica in replicas:
        reached, ended_as = stage(replica), final_phase(replica)
        current = replica.spec.revision == assignment.spec.revision
        stages[reached] += 1
        counts = ended_as is None or bool(replica.status.placement.binding)
        live += counts
        if counts and replica.spec.exclusive is not None:
            ordinals.append(replica.spec.ordinal)
        elif counts and replica.spec.index is not None:
            ordinals.append(replica.spec.index)
        if ended_as is not None:
            ended[ended_as] += 1
        else:
            updated += current
        updated_serving += current and reached is Stage.SERVING
        if reached in _COMING_UP and (why := _failure(replica)):
            failures[why] += 1
    queued = stages[Stage.QUEUED]
    return AssignmentStatus(
        observed_generation=assignment.metadata.generation,
        observed_epoch=assignment.spec.epoch,
        replicas=live,
        ordinals=tuple(sorted(ordinals)),
        queued=queued,
        bound=sum(stages[s] for s in PLACED_STAGES) + stages[Stage.STOPPING],
        started=sum(stages[s] for s in STARTED_STAGES),
        ready=stages[Stage.READY] + stages[Stage.SERVING],
        serving=stages[Stage.SERVING],
        revision=assignment.spec.revision,
        updated=updated,
        updated_serving=updated_serving,
        unknown=stages[Stage.UNKNOWN],
        evictions_blocked=evictions_blocked,
        pending_evictions=pending_evictions,
        awaiting_quota=_awaiting_quota(replicas, requests),
        succeeded=ended[Phase.SUCCEEDED],
        failed=ended[Phase.FAILED],
        succeeded_indexes=indexes_text(batch_indexes.succeeded_indexes(replicas)),
        failed_indexes=indexes_text(batch_indexes.failed_indexes(assignment, replicas)),
        index_failures=batch_indexes.index_failures(assignment, replicas),
        pending=_pending(queued, requests),
        failing=_failing(failures),
    )


_NAMED_FAILURES = (Reason.SECRET_MISSING, Reason.CONFIG_MISSING, Reason.CONFIG_UNUSABLE)
"""Failures whose message names the object to change, in the same words after each attempt."""


def _failing(failures: Counter[tuple[str, str]]) -> tuple[PendingReason, ...]:
    """The most frequent first."""
    by_frequency = sorted(failures.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        PendingReason(reason=why, count=count, message=detail)
        for (why, detail), count in by_frequency[:FAILURES_REPORTED_MAX]
    )


def _failure(replica: Replica) -> tuple[str, str] | None:
    """Why a bound replica is not ready. The text is the same after each restart, so that equal failures group."""
    execution = current_execution(replica)
    if execution is None:
        return None
    exit_status = execution.last_exit
    if exit_status is not None and exit_status.reason:
        detail = (
            f"signal {exit_status.signal}"
            if exit_status.signal
            else f"exit code {exit_status.code}"
            if exit_status.code is not None
            else exit_status.message
            if exit_status.reason in _NAMED_FAILURES
            else ""
        )
        return exit_status.reason, detail
    starting = (Reason.FETCHING_ARTIFACTS, Reason.IMAGE_PULLING, Reason.INITIALIZING)
    if execution.reason in (Reason.BECAME_UNREADY, *starting):
        return str(execution.reason), ""
    return None


def _awaiting_quota(replicas: Sequence[Replica], requests: Sequence[SchedulingRequest]) -> int:
    """Replicas whose main reason is missing quota, and that no eviction for another reason made unavailable."""
    members = {
        member.uid
        for request in requests
        if request.status.reasons and request.status.reasons[0].reason in _QUOTA_REASONS
        for member in request.spec.members
    }
    return sum(r.uid in members and is_queued_without_eviction(r) for r in replicas)


def _pending(queued: int, requests: Sequence[SchedulingRequest]) -> tuple[PendingReason, ...]:
    """The main reason of each request; the full counts are on the SchedulingRequest."""
    if not queued:
        return ()
    reported = [r for r in requests if r.status.pending and r.status.reasons]
    if not reported:
        return (PendingReason(reason=Reason.WAITING, count=queued, message="not scheduled yet"),)
    return tuple(
        PendingReason(
            reason=r.status.reasons[0].reason, count=min(queued, r.status.pending), message=r.status.reasons[0].message
        )
        for r in reported
    )
