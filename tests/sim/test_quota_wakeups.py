"""The checker of wake-ups for quota: who is late, who is not, and a planted bug that it sees."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests.factories import TEMPLATE, binding, bound_status, meta, node, replica

from holdfast.model import limits
from holdfast.model.assignment import Purpose
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.reasons import Reason
from holdfast.model.scheduling_request import (
    RefusalCount,
    RequestMember,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.workload import Gang
from holdfast.sim.checkers.checker_set import CheckerSet
from holdfast.sim.checkers.quota_wakeups import WAKES_WITHIN_S, QuotaWakeupChecker
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.parallel_runs import silence_logs
from holdfast.sim.simulation import Simulation

TEMPLATE_OF_ONE = msgspec.structs.replace(TEMPLATE, resources={"cpu": "1", "memory": "1Gi"}, ports=())
LATE_S = limits.RESYNC_S + WAKES_WITHIN_S + 1.0


def asks(reason: str = Reason.QUOTA_EXCEEDED, *members: str, **spec: Any) -> SchedulingRequest:
    waiting = tuple(RequestMember(name=name, uid=name) for name in members or (replica(1).metadata.name,))
    return SchedulingRequest(
        metadata=meta("ask", "acme"),
        spec=SchedulingRequestSpec(
            workload="api", assignment="api-east", revision="r", template=TEMPLATE_OF_ONE, members=waiting, **spec
        ),
        status=SchedulingRequestStatus(reasons=(RefusalCount(reason=reason),)),
    )


class East:
    """One node with room for eight, a tenant that may have four, and one replica that waits for quota."""

    def __init__(self, limit: str = "4", **spec: Any) -> None:
        self.court = CheckerSet(VirtualLoop(random.Random(1)))
        self.checker = QuotaWakeupChecker(self.court, ("east",), healed_s=0.0)
        waits = replica(1)
        waits = msgspec.structs.replace(
            waits, spec=msgspec.structs.replace(waits.spec, template=TEMPLATE_OF_ONE), metadata=waits.metadata
        )
        copy = GrantCopySpec(limit={"cpu": limit, "memory": "64Gi"}, **spec)
        self.put(node(), waits, asks(), GrantCopy(metadata=meta("normal", "acme"), spec=copy))

    def put(self, *items: Object) -> None:
        for item in items:
            key = kind_of(type(item)).store_key(item.metadata.namespace, item.metadata.name)
            self.court.state("east")[key] = item

    def late(self, at_s: float) -> list[str]:
        self.checker.observe(0.0)
        return [what for _, (_, what, _) in self.checker.overdue(at_s)]


def test_who_waits_for_quota_that_is_free_is_late_after_half_a_minute_and_told_once() -> None:
    east = East()
    assert not east.late(LATE_S - 2.0)
    (what,) = east.late(LATE_S)
    assert "acme/" in what and "is pending for quota in east" in what
    assert not east.late(LATE_S + 60.0)


def test_the_time_begins_anew_when_the_quota_was_taken_by_others_in_between() -> None:
    east = East()
    assert not east.late(LATE_S - 2.0)
    holder = binding(replica(2, status=bound_status(name="other")), resources={"cpu": "4", "memory": "1Gi"})
    east.put(holder)
    east.checker.observe(LATE_S - 1.0)
    del east.court.state("east")[f"/bindings/acme/{holder.metadata.name}"]
    east.checker.observe(LATE_S)
    assert not list(east.checker.overdue(LATE_S + WAKES_WITHIN_S - 1.0))
    assert list(east.checker.overdue(LATE_S + WAKES_WITHIN_S + 1.0))


@pytest.mark.parametrize(
    ("limit", "spec", "request_of"),
    [
        ("500m", {}, asks()),
        ("4", {"provisional": {"cpu": "3500m"}}, asks()),
        ("4", {}, asks(Reason.INSUFFICIENT_CPU)),
        ("4", {}, asks(purpose=Purpose.RECOVERY)),
        ("4", {}, asks(Reason.QUOTA_EXCEEDED, "gone")),
    ],
    ids=["over the limit", "kept for provisional work", "for room", "from another pot", "gone"],
)
def test_who_waits_for_something_else_is_not_late(limit: str, spec: Any, request_of: SchedulingRequest) -> None:
    east = East(limit, **spec)
    east.put(request_of)
    assert not east.late(LATE_S + 600.0)


def test_without_room_nobody_is_late() -> None:
    east = East()
    east.put(node(capacity={"cpu": "500m", "memory": "32Gi"}))
    assert not east.late(LATE_S + 600.0)


def test_a_gang_waits_until_all_of_it_fits() -> None:
    east = East("1500m")
    second = msgspec.structs.replace(replica(1), metadata=meta("second", "acme"))
    east.put(second, asks(Reason.QUOTA_EXCEEDED, replica(1).metadata.name, "second", gang=Gang(min_available=2)))
    assert not east.late(LATE_S + 600.0)
    east = East("2")
    east.put(second, asks(Reason.QUOTA_EXCEEDED, replica(1).metadata.name, "second", gang=Gang(min_available=2)))
    assert east.late(LATE_S)


@pytest.mark.slow
def test_a_lost_wake_up_is_seen() -> None:
    silence_logs()
    with applied_mutation("quota-wakeup-lost"):
        found = ({violation.invariant for violation in Simulation(seed).run().violations} for seed in (1, 4, 5, 6))
        assert any("wakeup" in promises for promises in found)
