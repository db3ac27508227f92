"""Checkers that compare stored objects with the tasks on machines: failback, devices and ports. Also the quota and
placement checks that simulations of two-step binds and lowered quotas need."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests.expected import present
from tests.factories import assignment, binding, bound_status, meta, node, region, replica, workload

from holdfast.agent.drivers.contract import Task
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import (
    DesiredRunState,
    DeviceClaim,
    Reservation,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of
from holdfast.model.quota import Grant, GrantSpec, GrantStatus, Quota, QuotaSpec
from holdfast.model.replica import ExitStatus
from holdfast.model.template import Template
from holdfast.model.workload import RecoveryObjective, Workload
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.device_use import conflicting_tasks
from holdfast.sim.checkers.failback import FailbackChecker
from holdfast.sim.checkers.placement import PlacementChecker
from holdfast.sim.checkers.quota import QuotaChecker
from holdfast.sim.fault_injection import FaultInjector
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.machine import Machine, TaskRun
from holdfast.store.contract import Txn

replace = msgspec.structs.replace


def task(number: int, **changes: Any) -> Task:
    made = Task(
        id=f"t{number}",
        run=1,
        namespace="acme",
        replica=f"web-{number}",
        replica_uid=f"uid-{number}",
        workload="web",
        binding=f"web-{number}.1",
        binding_uid=f"b-{number}",
        attempt=1,
        epoch=1,
        node_epoch=1,
        template=Template(command=("serve",)),
        env={},
    )
    return replace(made, **changes)


def commit(cell: str, at_s: float, changes: tuple[tuple[Any, Any], ...], *others: Any) -> ObservedCommit:
    """A commit with these (old, new) objects; the state also has the others."""

    def key(item: Any) -> str:
        return kind_of(type(item)).store_key(item.metadata.namespace, item.metadata.name)

    state = {key(item): item for item in (*others, *(new for _, new in changes))}
    observed = tuple(ObservedChange(key(new), kind_of(type(new)), old, new) for old, new in changes)
    return ObservedCommit(cell, at_s, at_s, Txn(writes=()), observed, state)


# Failback

WORKLOAD = workload("web", recovery=RecoveryObjective(min_serving=2))


def assigned(region: str, purpose: Purpose, replicas: int, reason: str = "") -> Assignment:
    return assignment("web", region, replicas=replicas, purpose=purpose, reason=reason)


ORDINARY = assigned("west", Purpose.NORMAL, 2)
BORROWED = assigned("east", Purpose.RECOVERY, 2)
RETURNED = assigned("east", Purpose.RECOVERY, 0, "failback of recovery west-1")


def failback_findings(*runs: TaskRun, returned: Assignment = RETURNED, owner: Workload = WORKLOAD) -> list[str]:
    checker = FailbackChecker()
    for run in runs:
        checker.task_started("west-n1", run)
    list(checker.check(commit("global", 1.0, ((None, ORDINARY), (None, BORROWED)))))
    found = checker.check(commit("global", 200.0, ((BORROWED, returned),), ORDINARY, owner))
    return [invariant for invariant, _, _ in found]


def ended(number: int, at_s: float) -> TaskRun:
    return TaskRun(task(number), 1, 1.0, exit=ExitStatus(code=1), ended_s=at_s)


def test_failback_while_ordinary_tasks_run_is_allowed() -> None:
    assert failback_findings(TaskRun(task(0), 1, 1.0), TaskRun(task(1), 2, 1.0)) == []


def test_failback_after_ordinary_tasks_ended_long_ago_is_a_violation() -> None:
    assert failback_findings(ended(0, 30.0), ended(1, 30.0)) == ["failback"]
    assert failback_findings(ended(0, 190.0), ended(1, 30.0)) == ["failback"]


def test_failback_may_rely_on_tasks_that_ended_just_now() -> None:
    assert failback_findings(ended(0, 190.0), ended(1, 190.0)) == []


def test_shrinking_without_failback_or_objective_is_not_checked() -> None:
    elsewhere = assigned("east", Purpose.RECOVERY, 0, "recovery target changed to north")
    assert failback_findings(returned=elsewhere) == []
    plain = replace(WORKLOAD, spec=replace(WORKLOAD.spec, recovery=None))
    assert failback_findings(owner=plain) == []


# Devices and ports


def conflicts(*tasks: Task) -> list[str]:
    """Findings at the start of the last task, while the others run."""
    loop = VirtualLoop(random.Random(1))
    machine = Machine("n1", loop, FaultInjector(1, loop.time, enabled=()), random.Random(1), lambda *_: None)
    runs = [TaskRun(made, number, 0.0) for number, made in enumerate(tasks)]
    machine.runs = {run.task.id: run for run in runs}
    found = [invariant for invariant, _, _ in conflicting_tasks(machine, runs[-1])]
    loop.shut_down()
    return found


def on_gpu(number: int, milli: int) -> Task:
    return task(number, devices=(DeviceClaim("gpu-0", milli),))


def test_task_on_a_device_that_a_zombie_holds_is_a_violation() -> None:
    assert conflicts(on_gpu(0, 1000), on_gpu(1, 1000)) == ["S2"]
    assert conflicts(on_gpu(0, 500), on_gpu(1, 500)) == []
    assert conflicts(on_gpu(0, 500), on_gpu(1, 500), on_gpu(2, 500)) == ["S2"]


def test_task_on_a_port_that_a_zombie_holds_is_a_violation() -> None:
    assert conflicts(task(0, ports={"http": 80}), task(1, ports={"http": 80})) == ["S2"]
    assert conflicts(task(0, ports={"http": 80}), task(1, ports={"http": 81})) == []


# Cordons


@pytest.mark.parametrize(
    ("field", "expected"), [({}, []), ({"unschedulable": True}, ["S4"]), ({"drain": True}, ["S4"])]
)
def test_bind_to_a_node_that_was_cordoned_meanwhile_is_a_violation(field: dict[str, Any], expected: list[str]) -> None:
    placed, machine = replica(0), node("n1")
    bound = binding(placed)
    machine = replace(machine, metadata=meta(bound.spec.node), spec=replace(machine.spec, **field))
    found = PlacementChecker("east").check(commit("east", 1.0, ((None, bound),), placed, machine))
    assert [invariant for invariant, _, what in found if "node" in str(what) or invariant == "S4"] == expected


def test_stop_order_on_a_cordoned_node_is_no_violation() -> None:
    placed, machine = replica(0), node("n1", unschedulable=True)
    order = binding(placed, desired=DesiredRunState.STOP)
    found = PlacementChecker("east").check(commit("east", 1.0, ((None, order),), placed, machine))
    assert "S4" not in [invariant for invariant, _, _ in found]


@pytest.mark.parametrize(("released", "expected"), [(False, ["S2"]), (True, [])])
def test_claim_of_a_lost_binding_counts_while_its_replica_names_it(*, released: bool, expected: list[str]) -> None:
    """The task of the lost Binding may run, so that another claim of its port is a violation (seed 121)."""
    holder, other = replica(0, status=bound_status(name="web-0")), replica(1, status=bound_status(name="web-1"))
    lost, second = binding(holder, ports={"http": 80}), binding(other, ports={"http": 80})
    machine, kind = node(lost.spec.node), kind_of(type(lost))
    key = kind.store_key(lost.metadata.namespace, lost.metadata.name)
    checker = PlacementChecker("east")
    list(checker.check(commit("east", 1.0, ((None, lost),), holder, machine)))
    after = replica(0) if released else holder
    gone = replace(commit("east", 2.0, (), after, machine), changes=(ObservedChange(key, kind, lost, None),))
    assert not list(checker.check(gone))
    found = checker.check(commit("east", 3.0, ((None, second),), after, other, machine))
    assert [invariant for invariant, _, _ in found if invariant == "S2"] == expected


# Quota lowered below what regions may still enforce


def grant(region: str, limit: int, peak: int = 0) -> Grant:
    spec = GrantSpec(region=region, limit={"cpu": str(limit)}, unacknowledged_peak={"cpu": str(peak)}, epoch=2)
    return Grant(meta(f"{region}.normal", "acme"), spec, GrantStatus(acknowledged_epoch=1))


@pytest.mark.parametrize(("raised_to", "expected"), [(3, []), (4, ["S3"])])
def test_grant_raised_while_more_is_counted_than_exists_is_a_violation(raised_to: int, expected: list[str]) -> None:
    """East still enforces 6 of a quota that was lowered to 8, and west may enforce 5."""
    quota = Quota(meta("quota", "acme"), QuotaSpec(hard={"cpu": "8"}))
    change = (grant("east", 2, peak=6), grant("east", raised_to, peak=6))
    found = QuotaChecker(lambda cell: {}).check(commit("global", 1.0, (change,), quota, grant("west", 4, peak=5)))
    assert [invariant for invariant, _, _ in found] == expected


# A limit that is lowered between reserve and bind

PLACED = replica(0, status=bound_status(name="web-0.1"))
LOWERED = GrantCopy(meta("normal", "acme"), GrantCopySpec(limit={"cpu": "1"}))


def reserved(cpu: str, phase: ReservationPhase) -> Reservation:
    bound = binding(PLACED)
    spec = ReservationSpec(bound.spec.replica, bound.spec.intent, bound.spec.node, {"cpu": cpu})
    return Reservation(bound.metadata, spec, ReservationStatus(phase=phase))


FIRM, RELEASED = reserved("2", ReservationPhase.FIRM), reserved("2", ReservationPhase.RELEASED)


@pytest.mark.parametrize(
    ("before", "expected"), [(FIRM, []), (reserved("1", ReservationPhase.FIRM), ["S3"]), (RELEASED, ["S3"])]
)
def test_bind_above_a_lowered_limit_needs_a_reservation_of_the_same_amount(
    before: Reservation, expected: list[str]
) -> None:
    consumed = replace(before, status=ReservationStatus(phase=ReservationPhase.CONSUMED))
    changes = ((before, consumed), (None, binding(PLACED, resources={"cpu": "2"})))
    found = QuotaChecker(lambda cell: {}).check(commit("east", 1.0, changes, LOWERED))
    assert [invariant for invariant, _, _ in found] == expected


@pytest.mark.parametrize(("desired", "expected"), [(DesiredRunState.STOP, []), (DesiredRunState.RUN, ["S3"])])
def test_stop_order_spends_nothing_new_above_a_lowered_limit(desired: DesiredRunState, expected: list[str]) -> None:
    """The authority writes the lost Binding of a replica again, to stop its task."""
    made = binding(PLACED, resources={"cpu": "2"}, desired=desired)
    found = QuotaChecker(lambda cell: {}).check(commit("east", 1.0, ((None, made),), LOWERED))
    assert [invariant for invariant, _, _ in found] == expected


@pytest.mark.parametrize(("acknowledged", "expected"), [("2", []), ("1", ["S3"])])
def test_acknowledgement_below_an_open_reservation_is_a_violation(acknowledged: str, expected: list[str]) -> None:
    """The region lowered its limit to 1, while a reservation holds 2. The reservation may still be bound."""
    east = commit("east", 0.5, ((None, FIRM),), LOWERED).state
    old = replace(grant("east", 1, peak=4), status=GrantStatus(acknowledged_epoch=1, limit={"cpu": "4"}))
    new = replace(old, status=GrantStatus(acknowledged_epoch=2, limit={"cpu": acknowledged}))
    found = QuotaChecker(lambda cell: east).check(commit("global", 1.0, ((old, new),)))
    assert [invariant for invariant, _, _ in found] == expected


# Grants undone by a restore of the global cell

LATER, BACKED_UP = grant("east", 6), grant("east", 0, peak=2)
EAST_REGION = region("east")
RESTORED_REGION = replace(EAST_REGION, status=replace(EAST_REGION.status, restore_incarnation=2))
REJOINED_REGION = replace(
    RESTORED_REGION,
    status=replace(RESTORED_REGION.status, report=replace(present(EAST_REGION.status.report), restore_acknowledged=2)),
)


def after_restore(*, acknowledged: bool) -> QuotaChecker:
    """East was granted 6 after the backup, in which it has 2."""
    checker = QuotaChecker(lambda cell: {"/grants/acme/east.normal": BACKED_UP})
    assert not list(checker.check(commit("global", 1.0, ((LATER, BACKED_UP), (EAST_REGION, RESTORED_REGION)))))
    if acknowledged:
        assert not list(checker.check(commit("global", 2.0, ((RESTORED_REGION, REJOINED_REGION),))))
    return checker


@pytest.mark.parametrize(
    ("limit", "acknowledged", "expected"), [("6", False, []), ("7", False, ["S3"]), ("6", True, ["S3"])]
)
def test_region_may_enforce_an_undone_grant_until_it_acknowledges_the_restore(
    limit: str, acknowledged: bool, expected: list[str]
) -> None:
    """The Grant was on its way to the region when the global cell was restored."""
    copy = GrantCopy(meta("normal", "acme"), GrantCopySpec(limit={"cpu": limit}))
    found = after_restore(acknowledged=acknowledged).check(commit("east", 3.0, ((None, copy),)))
    assert [invariant for invariant, _, _ in found] == expected


@pytest.mark.parametrize(("acknowledged", "expected"), [(False, ["S3"]), (True, [])])
def test_grant_raised_by_an_undone_one_before_its_region_acknowledges_is_a_violation(
    acknowledged: bool, expected: list[str]
) -> None:
    quota = Quota(meta("quota", "acme"), QuotaSpec(hard={"cpu": "8"}))
    change = (grant("west", 1), grant("west", 6))
    checker = after_restore(acknowledged=acknowledged)
    found = checker.check(commit("global", 3.0, (change,), quota, BACKED_UP))
    assert [invariant for invariant, _, _ in found] == expected
