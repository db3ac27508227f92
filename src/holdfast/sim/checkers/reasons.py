"""Liveness: whatever waits says why, and what will make it go on.

One look at every cell when the world has been at rest for a while. A replica without a place is a member of a request
that names a reason and has a next try, or an event that wakes it; a workload that does not serve, or is not complete,
has a condition with a reason, and that is about what is wanted now. Whether the reason is true is for other checkers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.lifecycle import Stage, finished, stage
from holdfast.model.meta import is_true
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import parse_time
from holdfast.model.workload import Workload, WorkloadType
from holdfast.sim.checkers import Found

OVERDUE_S = 120.0
"""How long a next try may be over on record: what is tried again is told at intervals."""


def without_reason(cell: str, state: dict[str, Any], wall_s: float) -> Iterator[Found]:
    """What waits on a cell's disk and does not say why, or for what; `wall_s` is the true time."""
    requests = {
        member.uid: (key, item)
        for key, item in state.items()
        if isinstance(item, SchedulingRequest)
        for member in item.spec.members
    }
    for key, item in state.items():
        if isinstance(item, Replica) and _waits(item):
            asked = requests.get(item.uid)
            if asked is None:
                yield "reason", f"{key} has no place, and no request asks for one", (key,)
                continue
            request_key, request = asked
            for why in _silent(request, wall_s):
                yield "reason", f"{key} has no place, and {request_key} {why}", (key, request_key)
        elif isinstance(item, Workload) and cell == "global" and not item.metadata.terminating:
            for why in _unexplained(item):
                yield "reason", f"{key} {why}", (key,)


def _waits(replica: Replica) -> bool:
    return not replica.metadata.terminating and finished(replica) is None and stage(replica) is Stage.QUEUED


def _silent(request: SchedulingRequest, wall_s: float) -> Iterator[str]:
    status = request.status
    if not any(refusal.reason for refusal in status.reasons):
        yield "names no reason"
    if not status.next_try_at and not status.wake_on:
        yield "has neither a next try nor anything that wakes it"
    elif status.next_try_at and parse_time(status.next_try_at) + OVERDUE_S < wall_s:
        yield f"was to be tried again at {status.next_try_at}, and was not"


def _unexplained(workload: Workload) -> Iterator[str]:
    name = "Complete" if workload.spec.type is WorkloadType.BATCH else "Serving"
    conditions, generation = workload.status.conditions, workload.metadata.generation
    if is_true(conditions, name):
        return
    said = next((condition for condition in conditions if condition.type == name), None)
    if said is None or not said.reason:
        yield f"is not {name}, and no condition says why"
    elif said.observed_generation != generation:
        yield f"is not {name}, and why is said of generation {said.observed_generation}, not of {generation}"
