"""Liveness: every pending replica has a reason and a retry, and every workload that does not serve says why.

One check of every cell after convergence. A pending replica is a member of a request with a reason and a next retry
time or wakeup event. A workload that does not serve has a condition with a reason for its current generation. Other
checkers decide whether the reason is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.lifecycle import Stage, final_phase, stage
from holdfast.model.meta import is_condition_true
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import parse_time
from holdfast.model.workload import Workload, WorkloadType
from holdfast.sim.checkers import Finding

RETRY_OVERDUE_S = 120.0
"""Tolerance for an overdue retry time, because retries are recorded at intervals."""


def unexplained_waits(cell: str, state: dict[str, Any], wall_s: float) -> Iterator[Finding]:
    """Pending objects of a cell without reason or retry. `wall_s` is the true time."""
    requests = {
        member.uid: (key, item)
        for key, item in state.items()
        if isinstance(item, SchedulingRequest)
        for member in item.spec.members
    }
    for key, item in state.items():
        if isinstance(item, Replica) and _is_pending(item):
            found = requests.get(item.uid)
            if found is None:
                yield "reason", f"{key} is pending and in no request", (key,)
                continue
            request_key, request = found
            for why in _request_problems(request, wall_s):
                yield "reason", f"{key} is pending, and {request_key} {why}", (key, request_key)
        elif isinstance(item, Workload) and cell == "global" and not item.metadata.terminating:
            for why in _unexplained(item):
                yield "reason", f"{key} {why}", (key,)


def _is_pending(replica: Replica) -> bool:
    return not replica.metadata.terminating and final_phase(replica) is None and stage(replica) is Stage.QUEUED


def _request_problems(request: SchedulingRequest, wall_s: float) -> Iterator[str]:
    status = request.status
    if not any(refusal.reason for refusal in status.reasons):
        yield "has no reason"
    if not status.next_retry_at and not status.retry_on:
        yield "has neither a retry time nor a wakeup event"
    elif status.next_retry_at and parse_time(status.next_retry_at) + RETRY_OVERDUE_S < wall_s:
        yield f"was not retried at {status.next_retry_at}"


def _unexplained(workload: Workload) -> Iterator[str]:
    name = "Complete" if workload.spec.type is WorkloadType.BATCH else "Serving"
    conditions, generation = workload.status.conditions, workload.metadata.generation
    if is_condition_true(conditions, name):
        return
    condition_found = next((condition for condition in conditions if condition.type == name), None)
    if condition_found is None or not condition_found.reason:
        yield f"is not {name}, and no condition has a reason"
    elif condition_found.observed_generation != generation:
        yield f"is not {name}, and its reason is for generation {condition_found.observed_generation}, not {generation}"
