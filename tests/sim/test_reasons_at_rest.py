"""The checker of reasons at rest: whatever waits says why and what makes it go on, and silence is seen."""

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
WAITS = replica(1)
TOLD = {
    "reasons": (RefusalCount(reason=Reason.QUOTA_EXCEEDED),),
    "retry_on": ("GrantChanged",),
    "next_retry_at": micro_text(NOW_S + 10.0),
}


def found(*items: Object, cell: str = "east") -> list[str]:
    state = {kind_of(type(i)).store_key(i.metadata.namespace, i.metadata.name): i for i in items}
    return [what for promise, what, _ in unexplained_waits(cell, state, NOW_S) if promise == "reason"]


def asks(uid: str = WAITS.uid, **changes: Any) -> SchedulingRequest:
    spec = SchedulingRequestSpec(
        workload="api",
        assignment="api-east",
        revision="r",
        template=TEMPLATE,
        members=(RequestMember(name="x", uid=uid),),
    )
    status = SchedulingRequestStatus(**{**TOLD, **changes})
    return SchedulingRequest(metadata=meta("ask", "acme"), spec=spec, status=status)


def says(*conditions: Condition) -> Workload:
    made = workload()
    status = msgspec.structs.replace(made.status, conditions=conditions)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, generation=3), status=status)


def test_who_says_why_and_what_for_waits_rightly() -> None:
    assert not found(WAITS, asks())
    assert not found(WAITS, asks(next_retry_at=""))
    assert not found(WAITS, asks(retry_on=()))
    assert not found(replica(1, status=bound_status())), "it has a place"
    assert not found(replica(1, terminating=True)), "it is on its way out"


@pytest.mark.parametrize(
    ("request_of", "what"),
    [
        (asks("another"), "in no request"),
        (asks(reasons=()), "has no reason"),
        (asks(retry_on=(), next_retry_at=""), "neither a retry time nor a wakeup event"),
        (asks(next_retry_at=micro_text(NOW_S - RETRY_OVERDUE_S - 1.0)), "was not retried at"),
    ],
    ids=["nobody asks", "no reason", "no wake-up", "not tried again"],
)
def test_who_does_not_is_told(request_of: SchedulingRequest, what: str) -> None:
    (told,) = found(WAITS, request_of)
    assert what in told


@pytest.mark.parametrize(
    ("conditions", "what"),
    [
        ((), "no condition has a reason"),
        ((Condition("Serving", "False", observed_generation=3),), "no condition has a reason"),
        ((Condition("Serving", "False", "Pending", observed_generation=2),), "for generation 2, not 3"),
    ],
    ids=["silent", "no reason", "of the past"],
)
def test_a_workload_that_does_not_serve_says_why_of_what_is_wanted_now(
    conditions: tuple[Condition, ...], what: str
) -> None:
    (told,) = found(says(*conditions), cell="global")
    assert what in told
    assert not found(says(*conditions), cell="east"), "a copy says what its original said"


def test_a_workload_that_serves_or_says_why_not_is_well() -> None:
    assert not found(says(Condition("Serving", "True")), cell="global")
    assert not found(says(Condition("Serving", "False", "Pending", observed_generation=3)), cell="global")


@pytest.mark.slow
def test_work_that_is_never_tried_again_is_seen() -> None:
    silence_logs()
    with applied_mutation("quota-wakeup-lost"):
        broken = ({violation.invariant for violation in Simulation(seed).run().violations} for seed in (1, 4, 5, 6))
        assert any("reason" in promises for promises in broken)
