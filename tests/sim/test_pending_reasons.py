"""The pending-reasons checker: a pending object must have a current reason and a retry."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import TEMPLATE, bound_status, meta, replica, workload

from holdfast.model.kinds import kind_of
from holdfast.model.meta import Condition, Object
from holdfast.model.reasons import Reason
from holdfast.model.scheduling_request import (
    RefusalCount,
    RequestMember,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.times import micro_text
from holdfast.model.workload import Workload
from holdfast.sim.checkers.pending_reasons import RETRY_OVERDUE_S, unexplained_waits
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.parallel_runs import silence_logs
from holdfast.sim.simulation import Simulation

NOW_S = 1_800_000_000.0
PENDING = replica(1)
EXPLAINED_STATUS = {
    "reasons": (RefusalCount(reason=Reason.QUOTA_EXCEEDED),),
    "retry_on": ("GrantChanged",),
    "next_retry_at": micro_text(NOW_S + 10.0),
}


def found(*items: Object, cell: str = "east") -> list[str]:
    state = {kind_of(type(i)).store_key(i.metadata.namespace, i.metadata.name): i for i in items}
    return [what for invariant, what, _ in unexplained_waits(cell, state, NOW_S) if invariant == "reason"]


def request_for(uid: str = PENDING.uid, **changes: Any) -> SchedulingRequest:
    spec = SchedulingRequestSpec(
        workload="api",
        assignment="api-east",
        revision="r",
        template=TEMPLATE,
        members=(RequestMember(name="x", uid=uid),),
    )
    status = SchedulingRequestStatus(**{**EXPLAINED_STATUS, **changes})
    return SchedulingRequest(metadata=meta("ask", "acme"), spec=spec, status=status)


def workload_with(*conditions: Condition) -> Workload:
    made = workload()
    status = msgspec.structs.replace(made.status, conditions=conditions)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, generation=3), status=status)


def test_pending_replica_with_reason_and_retry_is_accepted() -> None:
    assert not found(PENDING, request_for())
    assert not found(PENDING, request_for(next_retry_at=""))
    assert not found(PENDING, request_for(retry_on=()))
    assert not found(replica(1, status=bound_status())), "bound"
    assert not found(replica(1, terminating=True)), "terminating"


@pytest.mark.parametrize(
    ("request_of", "what"),
    [
        (request_for("another"), "in no request"),
        (request_for(reasons=()), "has no reason"),
        (request_for(retry_on=(), next_retry_at=""), "neither a retry time nor a wakeup event"),
        (request_for(next_retry_at=micro_text(NOW_S - RETRY_OVERDUE_S - 1.0)), "was not retried at"),
    ],
    ids=["no request", "no reason", "no retry", "retry overdue"],
)
def test_pending_replica_without_request_reason_or_retry_is_reported(request_of: SchedulingRequest, what: str) -> None:
    (message,) = found(PENDING, request_of)
    assert what in message


@pytest.mark.parametrize(
    ("conditions", "what"),
    [
        ((), "no condition has a reason"),
        ((Condition("Serving", "False", observed_generation=3),), "no condition has a reason"),
        ((Condition("Serving", "False", "Pending", observed_generation=2),), "for generation 2, not 3"),
    ],
    ids=["no condition", "no reason", "stale generation"],
)
def test_workload_not_serving_without_current_reason_is_reported(conditions: tuple[Condition, ...], what: str) -> None:
    (message,) = found(workload_with(*conditions), cell="global")
    assert what in message
    assert not found(workload_with(*conditions), cell="east"), "the mirrored copy is not checked"


def test_workload_that_serves_or_has_a_current_reason_is_accepted() -> None:
    assert not found(workload_with(Condition("Serving", "True")), cell="global")
    assert not found(workload_with(Condition("Serving", "False", "Pending", observed_generation=3)), cell="global")


@pytest.mark.slow
def test_lost_quota_wakeup_violates_reason_invariant() -> None:
    silence_logs()
    with applied_mutation("quota-wakeup-lost"):
        violated = ({violation.invariant for violation in Simulation(seed).run().violations} for seed in (3, 4, 5, 6))
        assert any("reason" in invariants for invariants in violated)
