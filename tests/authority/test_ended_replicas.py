"""A batch replica that has succeeded or failed is never placed again, whoever proposes it. Its retry is another one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.authority.cell import Cell

from holdfast.model.binding import Binding, Reservation
from holdfast.model.kinds import kind_of
from holdfast.model.placement_api import PlacementOutcome
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, Phase, PlacementBlock, Replica, ReplicaStatus
from holdfast.model.workload import WorkloadType
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.placement import PlacementChecker
from holdfast.store.contract import Txn

replace = msgspec.structs.replace


async def ended(cell: Cell, phase: Phase, **spec: Any) -> Replica:
    """A replica whose first attempt ended in this phase, and whose claims are released."""
    item = await cell.replica(**{"type": WorkloadType.BATCH, **spec})
    report = ExecutionBlock(phase=phase, attempt=0)
    await cell.put(replace(item, status=replace(item.status, execution=report, placement=PlacementBlock(attempt=1))))
    return cell.get_replica()


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED])
@pytest.mark.parametrize("bind", [True, False])
async def test_ended_batch_replica_is_refused(cell: Cell, phase: Phase, *, bind: bool) -> None:
    item = await ended(cell, phase)
    (answer,) = await cell.reserve(cell.item(item), bind=bind)
    assert (answer.result, answer.reason) == (PlacementOutcome.REJECTED, Reason.REPLICA_ENDED)
    assert answer.facts["phase"] == phase.value
    assert not cell.every(Binding) and not cell.every(Reservation)
    cell.check_ledger()


@pytest.mark.parametrize(
    ("phase", "spec"),
    [
        pytest.param(Phase.STOPPED, {}, id="stopped with its node, it goes on elsewhere"),
        pytest.param(Phase.FAILED, {"type": WorkloadType.SERVICE}, id="a service is placed again"),
    ],
)
async def test_replica_that_has_not_ended_is_placed_again(cell: Cell, phase: Phase, spec: dict[str, Any]) -> None:
    item = await ended(cell, phase, **spec)
    (answer,) = await cell.reserve(cell.item(item))
    assert answer.result is PlacementOutcome.ACCEPTED


async def test_bind_that_was_not_answered_is_confirmed_after_the_task_ended(cell: Cell) -> None:
    """The proposer repeats it. Its replica ended meanwhile, and its claim is not released yet."""
    item = await cell.replica(type=WorkloadType.BATCH)
    await cell.reserve(cell.item(item))
    bound = cell.get_replica()
    report = ExecutionBlock(phase=Phase.SUCCEEDED, attempt=bound.status.placement.attempt)
    await cell.put(replace(bound, status=replace(bound.status, execution=report)))
    (answer,) = await cell.reserve(cell.item(item))
    assert answer.result is PlacementOutcome.ALREADY


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED])
@pytest.mark.parametrize("kind", list(WorkloadType))
@pytest.mark.parametrize("placed", [{"reservation": "web-0.2"}, {"binding": "web-0.2"}])
async def test_checker_reports_a_batch_replica_that_is_placed_after_its_end(
    cell: Cell, phase: Phase, kind: WorkloadType, placed: dict[str, str]
) -> None:
    old = await ended(cell, phase, type=kind)
    placement = replace(PlacementBlock(attempt=1, node="n1"), **placed)
    new = replace(old, status=ReplicaStatus(execution=old.status.execution, placement=placement))
    change = ObservedChange("/replicas/acme/web-0", kind_of(Replica), old, new)
    commit = ObservedCommit("us-east", 1.0, 1.0, Txn(), (change,), {change.key: new})
    found = [invariant for invariant, _, _ in PlacementChecker("us-east").check(commit)]
    assert found == (["S1"] if kind is WorkloadType.BATCH and phase is not Phase.STOPPED else [])
