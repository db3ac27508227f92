"""Metrics of a region's replicas by stage and step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
from tests.controllers.scripted import ScriptedCell, ScriptedClient
from tests.controllers.virtual import VirtualPorts, run, until
from tests.expected import present
from tests.factories import bound_status, replica, serving_status, with_new_revision

from holdfast.cell.replica_stages import ReplicaStages, step_times
from holdfast.controllers.informer import Informers
from holdfast.foundation import metrics
from holdfast.model.replica import ExecutionBlock, Phase, PlacementBlock, Replica, ReplicaStatus, TrafficBlock

STEPS = ("scheduling", "binding", "startup", "readiness", "serving")


def at(seconds: float) -> str:
    return f"2026-01-01T00:00:{seconds:09.6f}Z"


def serving(attempt: int = 1, *, restarts: int = 0) -> Replica:
    """Created at 0 s, reserved at 2, bound at 3, started at 7, ready at 15, serving at 16."""
    placement = PlacementBlock(
        attempt=attempt, node="n1", binding=f"x.{attempt}", reserved_at=at(2), bound_at=at(3), epoch=attempt
    )
    execution = ExecutionBlock(
        phase=Phase.RUNNING, attempt=attempt, ready=True, restarts=restarts, started_at=at(7), ready_since=at(15)
    )
    traffic = TrafficBlock(serving=True, attempt=attempt, since=at(16))
    return replica(status=ReplicaStatus(placement=placement, execution=execution, traffic=traffic))


def test_step_times_separate_scheduling_binding_startup_readiness_and_serving() -> None:
    assert step_times(serving()) == {"scheduling": 2, "binding": 1, "startup": 4, "readiness": 8, "serving": 1}


def test_step_without_recorded_begin_is_left_out() -> None:
    assert set(step_times(serving(2))) == set(STEPS) - {"scheduling"}
    assert set(step_times(serving(restarts=1))) == set(STEPS) - {"startup"}
    assert step_times(replica(status=bound_status())) == {}


def test_step_time_between_different_clocks_is_never_negative() -> None:
    item = serving()
    assert item.status.execution is not None
    early = msgspec.structs.replace(item.status.execution, started_at=at(1))
    found = step_times(with_new_revision(item, status=msgspec.structs.replace(item.status, execution=early)))
    assert found["startup"] == 0


def counted(step: str) -> float:
    return sum(
        sample.value
        for family in metrics.REGION_STEP.collect()
        for sample in family.samples
        if sample.name.endswith("_count") and sample.labels["step"] == step
    )


def in_stage(stage: str) -> float:
    return cast(float, metrics.REGION_REPLICAS.labels(stage)._value.get())


def in_region(test: Callable[[ScriptedCell], Awaitable[None]], *first: Replica) -> None:
    """Runs the test with a cell whose replicas are followed; `first` exist before."""

    async def main() -> None:
        ports, cell = VirtualPorts(), ScriptedCell()
        for item in first:
            cell.put(item)
        informers = Informers(ScriptedClient(cell, ports), ports)
        ReplicaStages(informers, ports.clock)
        await informers.start()
        await informers.synced()
        try:
            await test(cell)
        finally:
            await informers.stop()

    run(main)


def test_replica_counts_once_per_attempt_and_moves_between_stages() -> None:
    before = {step: counted(step) for step in STEPS}
    bound, served = in_stage("Bound"), in_stage("Serving")
    item = serving()
    traffic = present(item.status.traffic)

    async def test(cell: ScriptedCell) -> None:
        def write(status: ReplicaStatus) -> None:
            cell.put(msgspec.structs.replace(item, status=status))

        write(bound_status())
        await until(lambda: (in_stage("Bound"), in_stage("Serving")) == (bound + 1, served))
        write(item.status)
        await until(lambda: (in_stage("Bound"), in_stage("Serving")) == (bound, served + 1))
        write(msgspec.structs.replace(item.status, traffic=msgspec.structs.replace(traffic, serving=False)))
        await until(lambda: in_stage("Serving") == served)
        write(item.status)
        await until(lambda: in_stage("Serving") == served + 1)
        assert {step: counted(step) - before[step] for step in STEPS} == dict.fromkeys(STEPS, 1)
        cell.remove(Replica, item.key)
        await until(lambda: in_stage("Serving") == served)

    in_region(test)


def test_replica_that_served_before_the_cell_started_is_not_counted() -> None:
    before, served = counted("serving"), in_stage("Serving")

    async def test(cell: ScriptedCell) -> None:
        assert (counted("serving"), in_stage("Serving")) == (before, served + 1)

    in_region(test, replica(status=serving_status()))


def test_every_step_has_its_series_before_the_first_replica_serves() -> None:
    metrics.REGION_STEP.clear()

    async def test(cell: ScriptedCell) -> None:
        (family,) = metrics.REGION_STEP.collect()
        assert {sample.labels["step"] for sample in family.samples} == set(STEPS)

    in_region(test)
