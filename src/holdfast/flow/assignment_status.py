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
    stages = Counter(stage(r) for r in replicas)
    ended = Counter(finished(r) for r in replicas)
    live = sum(1 for r in replicas if finished(r) is None or r.status.placement.binding)
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
        updated=sum(r.spec.revision == assignment.spec.revision and finished(r) is None for r in replicas),
        updated_serving=sum(
            r.spec.revision == assignment.spec.revision and stage(r) is Stage.SERVING for r in replicas
        ),
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
