"""The checkers of rest themselves: what may wait and what may go to and fro for a reason, and no more than that."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests.factories import TEMPLATE, assignment, bound_status, meta, replica, with_new_revision, workload

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Condition, Object
from holdfast.model.reasons import Reason
from holdfast.model.recovery import Recovery, RecoveryPhase, RecoverySpec, RecoveryStatus
from holdfast.model.replica import ExecutionBlock, Phase, Replica
from holdfast.model.workload import (
    Autoscale,
    LoadBlock,
    LoadMetric,
    RolloutBlock,
    RolloutPhase,
    ScaleBlock,
    Workload,
    WorkloadType,
)
from holdfast.sim.actors import DesiredObjects
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.checker_set import CheckerSet
from holdfast.sim.checkers.churn import FLIPS_MAX, ChurnChecker
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.workload_profiles import BEHAVIOUR_ENV, HALF_READY
from holdfast.store.contract import Txn

OLD, NEW = "old", "new"


def key_of(item: Object) -> str:
    return kind_of(type(item)).store_key(item.metadata.namespace, item.metadata.name)


class Two:
    """East waits for room for the repaired revision; west, where the rollout has not come, runs what never gets ready.
    There is no node at all, so there is no room."""

    def __init__(self) -> None:
        self.block = RolloutBlock(revision=NEW, phase=RolloutPhase.PROGRESSING, regions=("east",))
        self.waiting: Replica | None = replica(1, assignment(where="east"), revision=NEW)
        bad = msgspec.structs.replace(TEMPLATE, env={BEHAVIOUR_ENV: HALF_READY})
        running = ExecutionBlock(phase=Phase.RUNNING, attempt=1, ready=False)
        held = assignment(where="west", template=bad)
        self.stuck = replica(1, held, revision=OLD, status=bound_status(execution=running))

    def found(self) -> list[str]:
        court = CheckerSet(VirtualLoop(random.Random(1)))
        made = workload()
        made = with_new_revision(made, status=msgspec.structs.replace(made.status, rollout=self.block))
        for cell, item in (("global", made), ("east", self.waiting), ("west", self.stuck)):
            if item is not None:
                court.state(cell)[key_of(item)] = item
        return ConvergenceCheck(court, DesiredObjects(), ("east", "west"), ()).problems


def test_what_is_to_be_replaced_stays_while_the_repaired_waits_for_room_in_a_region_before_it() -> None:
    assert Two().found() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"regions": ("east", "west")},
        {"phase": RolloutPhase.COMPLETE},
        {"phase": RolloutPhase.FAILED},
        {"revision": OLD},
    ],
    ids=["the rollout has come here", "it is over", "it has failed", "this is what is wanted"],
)
def test_it_does_not_stay_for_any_other_reason(changes: dict[str, Any]) -> None:
    two = Two()
    two.block = msgspec.structs.replace(two.block, **changes)
    assert two.found() == ["west: replica acme/api-west-1 is Running"]


def test_nor_when_nobody_waits() -> None:
    two = Two()
    two.waiting = None
    assert two.found() == ["west: replica acme/api-west-1 is Running"]


def test_nor_does_work_that_could_get_ready() -> None:
    two = Two()
    two.stuck = with_new_revision(two.stuck, spec=msgspec.structs.replace(two.stuck.spec, template=TEMPLATE))
    assert two.found() == ["west: replica acme/api-west-1 is Running"]


@pytest.mark.parametrize("seen", [True, False])
def test_nothing_is_at_rest_while_nobody_has_looked_at_what_was_asked_last(seen: bool) -> None:
    court = CheckerSet(VirtualLoop(random.Random(1)))
    made = workload()
    summary = msgspec.structs.replace(made.status.summary, serving=2)
    serving = Condition(type="Serving", status="True", reason=Reason.ALL_SERVING)
    observed = made.metadata.generation - (not seen)
    status = msgspec.structs.replace(
        made.status, summary=summary, conditions=(serving,), observed_generation=observed
    )  # fmt: skip
    made = with_new_revision(made, status=status)
    court.state("global")[key_of(made)] = made
    wanted = DesiredObjects()
    wanted.services[(made.metadata.namespace, made.metadata.name)] = 2
    found = ConvergenceCheck(court, wanted, (), ()).problems
    assert found == ([] if seen else ["acme/api has a stale observedGeneration"])


@pytest.mark.parametrize("reason", [Reason.SCALE_LIMITED, Reason.LOAD_WITHIN_TARGET, Reason.SCALE_UP_BLOCKED])
def test_nothing_is_at_rest_while_a_number_is_on_its_way_to_another(reason: Reason) -> None:
    court = CheckerSet(VirtualLoop(random.Random(1)))
    made = workload(autoscale=Autoscale(max_replicas=4))
    summary = msgspec.structs.replace(made.status.summary, serving=2)
    serving = Condition(type="Serving", status="True", reason=Reason.ALL_SERVING)
    status = msgspec.structs.replace(
        made.status, scale=ScaleBlock(2, reason, ""), summary=summary, conditions=(serving,), observed_generation=1
    )
    made = with_new_revision(made, status=status)
    court.state("global")[key_of(made)] = made
    wanted = DesiredObjects()
    wanted.services[(made.metadata.namespace, made.metadata.name)] = 2
    found = ConvergenceCheck(court, wanted, (), ()).problems
    assert found == (["acme/api is still being scaled"] if reason != Reason.LOAD_WITHIN_TARGET else [])


@pytest.mark.parametrize("waited", [True, False])
@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STARTING])
def test_batch_work_whose_turn_came_late_may_still_run_at_the_end(waited: bool, phase: Phase) -> None:
    court = CheckerSet(VirtualLoop(random.Random(1)))
    made = workload(type=WorkloadType.BATCH)
    name = (made.metadata.namespace, made.metadata.name)
    held = assignment(where="east", type=WorkloadType.BATCH)
    runs = replica(1, held, status=bound_status(execution=ExecutionBlock(phase=phase, attempt=1)))
    court.state("global")[key_of(made)] = made
    court.state("east")[key_of(runs)] = runs
    wanted = DesiredObjects()
    wanted.batches.add(name)
    looked = ConvergenceCheck(court, wanted, ("east",), (), {name} if waited else set())
    assert looked.problems == ["batch acme/api is not complete: 0 succeeded"]
    assert looked.still_running == int(waited and phase is Phase.RUNNING)


def test_what_waits_rightly_is_remembered() -> None:
    court = CheckerSet(VirtualLoop(random.Random(1)))
    waits = replica(1, assignment(where="east"), revision=NEW)
    court.state("east")[key_of(waits)] = waits
    waited: set[tuple[str, str]] = set()
    assert not ConvergenceCheck(court, DesiredObjects(), ("east",), (), waited).problems
    assert waited == {("acme", "api")}


@pytest.mark.parametrize("phase", list(RecoveryPhase))
@pytest.mark.parametrize("waits", [True, False])
def test_nothing_is_at_rest_before_a_recovery_is_given_back(phase: RecoveryPhase, waits: bool) -> None:
    """Unless what it keeps serving waits where it belongs, and there is no room."""
    court = CheckerSet(VirtualLoop(random.Random(1)))
    incident = Recovery(
        metadata=meta("east-1"), spec=RecoverySpec(region="east"), status=RecoveryStatus(phase=phase)
    )  # fmt: skip
    for item in (incident, assignment(where="west", purpose=Purpose.RECOVERY)):
        court.state("global")[key_of(item)] = item
    if waits:
        waiting = replica(1, assignment(where="east"))
        court.state("east")[key_of(waiting)] = waiting
    found = ConvergenceCheck(court, DesiredObjects(), ("east",), ()).problems
    over = waits or phase is RecoveryPhase.CLOSED
    assert found == ([] if over else [f"/recoveries/east-1 is {phase}, not Closed"])


# To and fro


class Scaled:
    """A scaled workload and its assignment, as the checker of unrest is shown them."""

    def __init__(self) -> None:
        self.checker = ChurnChecker()
        self.disk: dict[str, Any] = {}
        self.workload: Workload = workload(autoscale=Autoscale(max_replicas=4))
        self.assignment: Assignment = assignment()
        assert not self.commit(self.workload) and not self.commit(self.assignment)

    def commit(self, item: Object) -> list[str]:
        key = key_of(item)
        changed = ObservedChange(key, kind_of(type(item)), self.disk.get(key), item)
        self.disk[key] = item
        found = self.checker.check(ObservedCommit("global", 0.0, 0.0, Txn(), (changed,), self.disk))
        return [promise for promise, _, _ in found]

    def push(self, load: float, at: str) -> None:
        block = LoadBlock(metrics=(LoadMetric("cpuPercent", load, at),))
        self.workload = with_new_revision(
            self.workload, status=msgspec.structs.replace(self.workload.status, load=block)
        )
        assert not self.commit(self.workload)

    def scale(self, replicas: int) -> list[str]:
        spec = msgspec.structs.replace(self.assignment.spec, replicas=replicas)
        self.assignment = with_new_revision(self.assignment, spec=spec)
        return self.commit(self.assignment)


@pytest.mark.parametrize("loads", [(20.0, 140.0), (70.0, 70.0)], ids=["with the load", "while the load is the same"])
def test_a_number_may_go_to_and_fro_only_with_its_load(loads: tuple[float, float]) -> None:
    scaled = Scaled()
    found = []
    for n in range(2 * FLIPS_MAX + 2):
        scaled.push(loads[n % 2], f"2027-01-15T08:00:{n:02d}Z")
        found += scaled.scale(1 + n % 2)
    assert found == ([] if loads[0] != loads[1] else ["oscillation"])
