"""What a region says about an Assignment, derived from its replicas and queue items each time it is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.lifecycle import PLACED, STARTED, Stage, finished, stage
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase, Replica
from holdfast.model.scheduling_request import SchedulingRequest


def assignment_status(
    assignment: Assignment, replicas: Sequence[Replica], requests: Sequence[SchedulingRequest], held_back: int = 0
) -> AssignmentStatus:
    """`replicas` counts what still exists and is not finished: nothing may be forgotten while it could run."""
    stages: Counter[Stage] = Counter()
    ended: Counter[Phase] = Counter()
    live = updated = updated_serving = 0
    for replica in replicas:
        at, end = stage(replica), finished(replica)
        current = replica.spec.revision == assignment.spec.revision
        stages[at] += 1
        if end is not None:
            ended[end] += 1
            live += bool(replica.status.placement.binding)
        else:
            live += 1
            updated += current
        updated_serving += current and at is Stage.SERVING
    queued = stages[Stage.QUEUED]
    return AssignmentStatus(
        observed_generation=assignment.metadata.generation,
        observed_epoch=assignment.spec.epoch,
        replicas=live,
        queued=queued,
        bound=sum(stages[s] for s in PLACED) + stages[Stage.STOPPING],
        started=sum(stages[s] for s in STARTED),
        ready=stages[Stage.READY] + stages[Stage.SERVING],
        serving=stages[Stage.SERVING],
        updated=updated,
        updated_serving=updated_serving,
        unknown=stages[Stage.UNKNOWN],
        held_back=held_back,
        succeeded=ended[Phase.SUCCEEDED],
        failed=ended[Phase.FAILED],
        pending=_pending(queued, requests),
    )


def _pending(queued: int, requests: Sequence[SchedulingRequest]) -> tuple[PendingReason, ...]:
    """Only the main reason of each queue item: the whole histogram is on the SchedulingRequest."""
    if not queued:
        return ()
    told = [r for r in requests if r.status.pending and r.status.reasons]
    if not told:
        return (PendingReason(reason=Reason.WAITING, count=queued, message="not yet considered"),)
    return tuple(
        PendingReason(
            reason=r.status.reasons[0].reason, count=min(queued, r.status.pending), message=r.status.reasons[0].message
        )
        for r in told
    )
