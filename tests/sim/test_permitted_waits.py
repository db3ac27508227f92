"""The convergence and churn checkers: which waits and which alternations are permitted."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests.factories import (
    TEMPLATE,
    assignment,
    binding,
    bound_status,
    meta,
    node,
    replica,
    with_new_revision,
    workload,
)
from tests.sim.test_machine_truth import task

from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec, GrantCopyStatus
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Condition, Object
from holdfast.model.node import NodeExecution
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.quantity import Amount
from holdfast.model.reasons import Reason
from holdfast.model.recovery import Recovery, RecoveryPhase, RecoverySpec, RecoveryStatus
from holdfast.model.replica import ExecutionBlock, Phase, Replica
from holdfast.model.workload import (
    Autoscale,
    Exclusivity,
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
from holdfast.sim.checkers.convergence import ConvergenceCheck, ConvergenceTimer
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.machine import TaskRun
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.simulation import Simulation
from holdfast.sim.workload_profiles import BEHAVIOUR_ENV, HALF_READY
from holdfast.store.contract import Txn

OLD, NEW = "old", "new"


def key_of(item: Object) -> str:
    return kind_of(type(item)).store_key(item.metadata.namespace, item.metadata.name)


class StuckRollout:
    """East waits for room for the new revision. West, which the rollout has not reached, runs an old replica that never
    becomes ready. There is no node, so there is no room."""

    def __init__(self) -> None:
        self.block = RolloutBlock(revision=NEW, phase=RolloutPhase.PROGRESSING, regions=("east",))
        self.waiting: Replica | None = replica(1, assignment(where="east"), revision=NEW)
        bad = msgspec.structs.replace(TEMPLATE, env={BEHAVIOUR_ENV: HALF_READY})
        running = ExecutionBlock(phase=Phase.RUNNING, attempt=1, ready=False)
        stored_assignment = assignment(where="west", template=bad)
        self.stuck = replica(1, stored_assignment, revision=OLD, status=bound_status(execution=running))

    def found(self) -> list[str]:
        checkers = CheckerSet(VirtualLoop(random.Random(1)))
        made = workload()
        made = with_new_revision(made, status=msgspec.structs.replace(made.status, rollout=self.block))
        for cell, item in (("global", made), ("east", self.waiting), ("west", self.stuck)):
            if item is not None:
                checkers.state(cell)[key_of(item)] = item
        return ConvergenceCheck(checkers, DesiredObjects(), ("east", "west"), ()).problems


@pytest.mark.parametrize("phase", [RolloutPhase.PROGRESSING, RolloutPhase.FAILED])
def test_old_replica_may_remain_while_rollout_waits_for_room_elsewhere(phase: RolloutPhase) -> None:
    """Also after the deadline: a failed rollout continues when the region that waits serves."""
    case = StuckRollout()
    case.block = msgspec.structs.replace(case.block, phase=phase)
    assert case.found() == []


@pytest.mark.parametrize("phase", [RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK])
def test_old_replica_may_remain_after_a_rollback_if_the_old_revision_lacks_room_too(phase: RolloutPhase) -> None:
    """Seed 7100152: the rollout of the repaired revision waited for room until its deadline."""
    case = StuckRollout()
    case.block = msgspec.structs.replace(case.block, phase=phase)
    case.waiting = replica(1, assignment(where="east"), revision=OLD)
    assert case.found() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"regions": ("east", "west")},
        {"phase": RolloutPhase.COMPLETE},
        {"phase": RolloutPhase.ROLLED_BACK},
        {"revision": OLD},
    ],
    ids=["rollout reached the region", "rollout complete", "rolled back", "revision is current"],
)
def test_old_replica_may_not_remain_for_another_rollout_state(changes: dict[str, Any]) -> None:
    case = StuckRollout()
    case.block = msgspec.structs.replace(case.block, **changes)
    assert case.found() == ["west: replica acme/api-west-1 is Running"]


def test_old_replica_may_not_remain_without_a_pending_replica() -> None:
    case = StuckRollout()
    case.waiting = None
    assert case.found() == ["west: replica acme/api-west-1 is Running"]


def test_old_replica_that_can_become_ready_may_not_remain() -> None:
    case = StuckRollout()
    case.stuck = with_new_revision(case.stuck, spec=msgspec.structs.replace(case.stuck.spec, template=TEMPLATE))
    assert case.found() == ["west: replica acme/api-west-1 is Running"]


@pytest.mark.parametrize("current", [True, False])
def test_stale_observed_generation_prevents_convergence(current: bool) -> None:
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    made = workload()
    summary = msgspec.structs.replace(made.status.summary, serving=2)
    serving = Condition(type="Serving", status="True", reason=Reason.ALL_SERVING)
    observed = made.metadata.generation - (not current)
    status = msgspec.structs.replace(made.status, summary=summary, conditions=(serving,), observed_generation=observed)
    made = with_new_revision(made, status=status)
    checkers.state("global")[key_of(made)] = made
    desired = DesiredObjects()
    desired.services[(made.metadata.namespace, made.metadata.name)] = 2
    found = ConvergenceCheck(checkers, desired, (), ()).problems
    assert found == ([] if current else ["acme/api has a stale observedGeneration"])


@pytest.mark.parametrize("reason", [Reason.SCALE_LIMITED, Reason.LOAD_WITHIN_TARGET, Reason.SCALE_UP_BLOCKED])
def test_unfinished_scaling_prevents_convergence(reason: Reason) -> None:
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    made = workload(autoscale=Autoscale(max_replicas=4))
    summary = msgspec.structs.replace(made.status.summary, serving=2)
    serving = Condition(type="Serving", status="True", reason=Reason.ALL_SERVING)
    status = msgspec.structs.replace(
        made.status, scale=ScaleBlock(2, reason, ""), summary=summary, conditions=(serving,), observed_generation=1
    )
    made = with_new_revision(made, status=status)
    checkers.state("global")[key_of(made)] = made
    desired = DesiredObjects()
    desired.services[(made.metadata.namespace, made.metadata.name)] = 2
    found = ConvergenceCheck(checkers, desired, (), ()).problems
    assert found == (["acme/api is still being scaled"] if reason != Reason.LOAD_WITHIN_TARGET else [])


@pytest.mark.parametrize("waited", [True, False])
@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STARTING, None])
def test_batch_that_was_pending_may_still_run_at_the_end(waited: bool, phase: Phase | None) -> None:
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    made = workload(type=WorkloadType.BATCH)
    name = (made.metadata.namespace, made.metadata.name)
    stored_assignment = assignment(where="east", type=WorkloadType.BATCH)
    execution = ExecutionBlock(phase=phase, attempt=1) if phase is not None else None
    runs = replica(1, stored_assignment, status=bound_status(execution=execution))
    checkers.state("global")[key_of(made)] = made
    checkers.state("east")[key_of(runs)] = runs
    desired = DesiredObjects()
    desired.batches.add(name)
    check = ConvergenceCheck(checkers, desired, ("east",), (), {name} if waited else set())
    assert check.problems == ["batch acme/api is not complete: 0 succeeded"]
    assert check.still_running == int(waited)
    assert check.all_permitted is waited


@pytest.mark.parametrize("waited", [True, False])
@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STARTING])
def test_service_that_was_pending_may_still_start_at_the_end(waited: bool, phase: Phase) -> None:
    """Seed 1500285: a rollout that waited for quota was rolled back at its deadline, a moment before the end."""
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    made = workload(replicas=1)
    made = with_new_revision(made, status=msgspec.structs.replace(made.status, observed_generation=99))
    name = (made.metadata.namespace, made.metadata.name)
    starts = replica(1, assignment(where="east"), status=bound_status(execution=ExecutionBlock(phase=phase, attempt=1)))
    checkers.state("global")[key_of(made)] = made
    checkers.state("east")[key_of(starts)] = starts
    desired = DesiredObjects()
    desired.services[name] = made.spec.replicas
    check = ConvergenceCheck(checkers, desired, ("east",), (), {name} if waited else set())
    assert check.problems == [f"east: replica acme/{starts.metadata.name} is {phase}", "acme/api serves 0 of 1"]
    assert check.still_running == (2 if waited else 0)


@pytest.mark.parametrize("waited", [True, False])
@pytest.mark.parametrize("stray", [True, False])
def test_node_may_not_run_yet_what_was_pending_until_now(waited: bool, stray: bool) -> None:
    """Seed 14 without watches: a service got its quota 2 s before the time limit, and its agent lists every 40 s. A
    task without a Binding on the same node is never permitted."""
    simulation = Simulation(1, SimulationSize(regions=("east",), nodes_per_region=1))
    (agent,) = simulation.agents
    state = simulation.checkers.state("east")
    starts = replica(1, assignment(where="east"), status=bound_status(agent.name, name="api-east-1"))
    execution = NodeExecution(epoch=1, reconciled=True, agent_version="1")
    ready = msgspec.structs.replace(node(agent.name).status, execution=execution)
    for item in (starts, binding(starts, agent.name), msgspec.structs.replace(node(agent.name), status=ready)):
        state[key_of(item)] = item
    if stray:
        agent.machine.runs["stray"] = TaskRun(task(0), 1, 1.0)
    waits = {(starts.metadata.namespace, starts.spec.workload)} if waited else set()
    check = ConvergenceCheck(simulation.checkers, DesiredObjects(), ("east",), (agent,), waits)
    running = [("acme", task(0).binding)] if stray else []
    expected = [("acme", "api-east-1.1")]
    assert check.problems == [
        f"east: replica acme/{starts.metadata.name} is Bound",
        f"{agent.name} runs {running}, expected {expected}",
    ]
    assert check.all_permitted is (waited and not stray)


def test_time_to_converge_leaves_out_permitted_work() -> None:
    """Scenario late-commits, seed 1: batches that had waited ran one after the other through a full quota, for 195 of
    301 s."""
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    made = workload(type=WorkloadType.BATCH)
    name = (made.metadata.namespace, made.metadata.name)
    runs = replica(1, assignment(where="east", type=WorkloadType.BATCH), status=bound_status())
    checkers.state("global")[key_of(made)] = made
    checkers.state("east")[key_of(runs)] = runs
    desired = DesiredObjects()
    desired.batches.add(name)
    permitted = ConvergenceCheck(checkers, desired, ("east",), (), {name})
    unexplained = ConvergenceCheck(checkers, desired, ("east",), (), set())
    without_problems = ConvergenceCheck(checkers, DesiredObjects(), ("east",), ())
    timer = ConvergenceTimer(healed_s=100.0)
    for now_s, check in ((110.0, unexplained), (170.0, permitted), (175.0, without_problems), (200.0, unexplained)):
        timer.observe(now_s, check)
    assert timer.elapsed_s(200.0) == 40.0


@pytest.mark.parametrize("former", [("east",), ("west",), ()])
@pytest.mark.parametrize("reported", [(0,), (0, 1)])
@pytest.mark.parametrize("exclusive", [Exclusivity(), None])
def test_ordinal_may_wait_for_a_region_of_the_former_release(
    former: tuple[str, ...], reported: tuple[int, ...], exclusive: Exclusivity | None
) -> None:
    """Seed 2300078: the former release does not report ordinals, so that a withdrawn one is never known to be free."""
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    made = workload(replicas=2, exclusive=exclusive)
    made = with_new_revision(made, status=msgspec.structs.replace(made.status, observed_generation=99))
    held = assignment(where="east", exclusive=exclusive, ordinals=(0,))
    held = with_new_revision(held, status=AssignmentStatus(replicas=1, ordinals=reported))
    for item in (made, held):
        checkers.state("global")[key_of(item)] = item
    desired = DesiredObjects()
    desired.services[made.metadata.namespace, made.metadata.name] = 2
    found = ConvergenceCheck(checkers, desired, (), (), former_releases=former).problems
    permitted = former == ("east",) and len(reported) == 2 and exclusive is not None
    assert found == ([] if permitted else ["acme/api serves 0 of 2"])


def test_workload_permitted_to_wait_is_recorded() -> None:
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    pending = replica(1, assignment(where="east"), revision=NEW)
    checkers.state("east")[key_of(pending)] = pending
    waited: set[tuple[str, str]] = set()
    assert not ConvergenceCheck(checkers, DesiredObjects(), ("east",), (), waited).problems
    assert waited == {("acme", "api")}


@pytest.mark.parametrize("phase", list(RecoveryPhase))
@pytest.mark.parametrize("pending", [True, False])
def test_open_recovery_prevents_convergence(phase: RecoveryPhase, pending: bool) -> None:
    """Exception: the replicas to fail back are pending in their region without room."""
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    incident = Recovery(metadata=meta("east-1"), spec=RecoverySpec(region="east"), status=RecoveryStatus(phase=phase))
    for item in (incident, assignment(where="west", purpose=Purpose.RECOVERY)):
        checkers.state("global")[key_of(item)] = item
    if pending:
        waiting = replica(1, assignment(where="east"))
        checkers.state("east")[key_of(waiting)] = waiting
    found = ConvergenceCheck(checkers, DesiredObjects(), ("east",), ()).problems
    over = pending or phase is RecoveryPhase.CLOSED
    assert found == ([] if over else [f"/recoveries/east-1 is {phase}, not Closed"])


# Churn


class Scaled:
    """A scaled workload and its assignment, committed to the churn checker."""

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
        return [invariant for invariant, _, _ in found]

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
def test_replica_count_may_alternate_only_with_its_load(loads: tuple[float, float]) -> None:
    scaled = Scaled()
    found = []
    for n in range(2 * FLIPS_MAX + 2):
        scaled.push(loads[n % 2], f"2027-01-15T08:00:{n:02d}Z")
        found += scaled.scale(1 + n % 2)
    assert found == ([] if loads[0] != loads[1] else ["oscillation"])


@pytest.mark.parametrize(("phase", "reported"), [("Expired", True), ("Active", False)])
def test_usage_above_the_limit_after_an_emergency_quota_prevents_convergence(phase: str, reported: bool) -> None:
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    spec = OverrideSpec(kind=OverrideKind.EMERGENCY_QUOTA, scope=OverrideScope(tenant="acme"))
    override = Override(meta("more"), spec, OverrideStatus(phase=phase, expires_at="2027-01-15T08:00:00Z"))
    used: dict[str, Amount] = {"cpu": "500m"}
    claim = binding(replica(1, assignment(where="east")), resources=used)
    copy = GrantCopy(meta("normal", "acme"), GrantCopySpec(limit={}), GrantCopyStatus(used=used))
    for cell, item in (("global", override), ("east", claim), ("east", copy)):
        checkers.state(cell)[key_of(item)] = item
    found = ConvergenceCheck(checkers, DesiredObjects(), ("east",), ()).problems
    assert any("after its emergency quota ended" in problem for problem in found) is reported
