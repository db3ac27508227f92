"""What was true at the reserve, or when a background job chose its claims, is judged again at the commit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.authority.cell import TENANT, WHO, Cell

from holdfast.authority.claims import Claim
from holdfast.authority.commit_rounds import NOTHING, CommitStep
from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.node import ContactBlock, ContactState, FenceBlock, Node
from holdfast.model.placement_api import BindItem, BindRequest, PlacementOutcome, PlacementResult, ReleaseAction
from holdfast.model.replica import Phase, Replica
from holdfast.store.contract import Committed, Txn

replace = msgspec.structs.replace

LARGE: dict[str, Any] = {"resources": {"cpu": "6"}}


async def reserve(cell: Cell, name: str = "web-0", **spec: Any) -> Replica:
    replica = await cell.replica(name, **spec)
    (answer,) = await cell.reserve(cell.item(replica), bind=False)
    assert answer.result is PlacementOutcome.ACCEPTED
    return replica


async def bind(cell: Cell, replica: Replica) -> PlacementResult:
    item = BindItem(TENANT, replica.metadata.name, intent=cell.item(replica).intent)
    return (await cell.authority.bind(WHO, BindRequest((item,)))).results[0]


async def change_status(cell: Cell, **blocks: Any) -> None:
    node = cell.get_node()
    await cell.put(replace(node, status=replace(node.status, **blocks)))


async def not_reconciled(cell: Cell) -> None:
    await change_status(cell, execution=replace(cell.get_node().status.execution, reconciled=False))


async def another_epoch(cell: Cell) -> None:
    execution = cell.get_node().status.execution
    await change_status(cell, execution=replace(execution, epoch=execution.epoch + 1))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda cell: cell.change_node(unschedulable=True), "NodeCordoned", id="cordoned"),
        pytest.param(lambda cell: cell.change_node(drain=True), "NodeDraining", id="drained"),
        pytest.param(lambda cell: cell.change_node(drivers=("oci",)), "DriverMissing", id="without its driver"),
        pytest.param(lambda cell: cell.change_node(tenant="team-b"), "TenancyViolated", id="given to another tenant"),
        pytest.param(lambda cell: cell.remove(cell.get_node()), "NodeNotFound", id="removed"),
        pytest.param(
            lambda cell: change_status(cell, contact=ContactBlock(state=ContactState.EXPIRED)),
            "NodeUnreachable",
            id="unreachable",
        ),
        pytest.param(lambda cell: change_status(cell, fence=FenceBlock(fenced_epoch=9)), "NodeFenced", id="fenced"),
        pytest.param(not_reconciled, "NodeReconciling", id="not reconciled"),
        pytest.param(another_epoch, "NodeReconciling", id="of another epoch"),
    ],
)
async def test_bind_in_a_second_step_is_refused_by_a_node_that_changed(cell: Cell, change: Any, reason: str) -> None:
    replica = await reserve(cell)
    await change(cell)
    answer = await bind(cell, replica)
    assert (answer.result, answer.reason, answer.attempt) == (PlacementOutcome.REJECTED, reason, 1)
    assert not cell.every(Binding), "nothing was bound"
    cell.check_ledger()


async def test_bind_is_refused_by_a_node_that_is_cordoned_while_its_commit_is_on_the_way(cell: Cell) -> None:
    """The transaction compares the Node's revision, so the bind is judged again."""
    replica, commit = await reserve(cell), cell.store.commit

    async def cordoned_first(txn: Txn) -> Committed:
        if any(put.key.startswith("/bindings/") for put in txn.writes):
            cell.store.commit = commit  # type: ignore[method-assign]
            await cell.change_node(unschedulable=True)
        return await commit(txn)

    cell.store.commit = cordoned_first  # type: ignore[method-assign]
    answer = await bind(cell, replica)
    assert cell.get_node().spec.unschedulable
    assert (answer.result, answer.reason) == (PlacementOutcome.REJECTED, "NodeCordoned")
    assert not cell.every(Binding)
    cell.check_ledger()


def the_claim(cell: Cell, name: str) -> Claim:
    return cell.authority.ledger.claims[f"{TENANT}/{name}"]


async def expired(cell: Cell) -> Claim:
    await reserve(cell)
    cell.clock.wall_s += 61.0
    return the_claim(cell, "web-0.1")


async def test_reservation_expires_only_if_it_is_still_due(cell: Cell) -> None:
    claim = await expired(cell)
    plan = cell.authority._jobs.plan_expiry
    assert isinstance(plan(claim), CommitStep)
    (stored,) = cell.every(Reservation)
    await cell.put(replace(stored, spec=replace(stored.spec, expires_at="2099-01-01T00:00:00Z")))
    assert plan(claim) is NOTHING, "it was prolonged"
    await cell.remove(stored)
    assert plan(claim) is NOTHING, "it is gone"


async def test_reservation_that_was_bound_meanwhile_does_not_expire(cell: Cell) -> None:
    replica = await reserve(cell)
    claim = the_claim(cell, "web-0.1")
    assert (await bind(cell, replica)).result is PlacementOutcome.ACCEPTED
    cell.clock.wall_s += 61.0
    assert cell.authority._jobs.plan_expiry(claim) is NOTHING


async def nominate(cell: Cell) -> Claim:
    """A nomination whose victim is gone, so that it could be promoted."""
    await cell.place(await cell.replica("low", template=LARGE))
    high = await cell.replica("high", template=LARGE, priority=10)
    (answer,) = await cell.reserve(cell.item(high, victims=("low.1",)), bind=False)
    assert answer.reason == "WaitingForVictims"
    await cell.release(cell.get_replica("low"), ReleaseAction.STOP)
    await cell.acknowledge("low.1", Phase.STOPPED)
    await cell.release(cell.get_replica("low"), ReleaseAction.FREE)
    assert f"{TENANT}/low.1" not in cell.authority.ledger.claims
    return the_claim(cell, "high.1")


@pytest.mark.parametrize("missing", [Reservation, Replica, Node])
async def test_nomination_is_not_promoted_without_its_objects(cell: Cell, missing: type[Any]) -> None:
    claim = await nominate(cell)
    plan = cell.authority._jobs.plan_promotion
    step = plan(claim)
    assert isinstance(step, CommitStep) and step.claim is not None and not step.claim.nominated
    names: dict[Any, str] = {Reservation: "high.1", Replica: "high", Node: "n1"}
    (item,) = [found for found in cell.every(missing) if found.metadata.name == names[missing]]
    await cell.remove(item)
    assert plan(claim) is NOTHING


async def test_nomination_that_is_firm_already_is_not_promoted_again(cell: Cell) -> None:
    claim = await nominate(cell)
    await cell.authority.tick()
    (stored,) = [found for found in cell.every(Reservation) if found.metadata.name == "high.1"]
    assert stored.status.phase is ReservationPhase.FIRM and not stored.spec.victims
    assert cell.authority._jobs.plan_promotion(claim) is NOTHING
    cell.check_ledger()


async def test_nomination_waits_while_another_claim_has_its_capacity(cell: Cell) -> None:
    claim = await nominate(cell)
    before = dict(cell.authority.ledger.claims)
    await cell.change_node(capacity={"cpu": "5", "memory": "16Gi"})
    assert cell.authority._jobs.plan_promotion(claim) is NOTHING
    assert cell.authority.ledger.claims == before, "the nomination is counted as before"
    cell.check_ledger()


async def test_nomination_expires_in_time_while_no_victim_stops(cell: Cell) -> None:
    """It is prolonged only for a victim whose stop was ordered."""
    await cell.place(await cell.replica("low", template=LARGE))
    high = await cell.replica("high", template=LARGE, priority=10)
    await cell.reserve(cell.item(high, victims=("low.1",)), bind=False)
    await cell.clock.advance(61)
    await cell.authority.tick()
    assert not [found for found in cell.every(Reservation) if found.metadata.name == "high.1"]
    assert cell.get_replica("high").status.placement.released_reason == "ReservationExpired"
    assert cell.binding("low.1") is not None
    cell.check_ledger()


async def test_claim_that_has_not_ended_is_neither_removed_nor_released(cell: Cell) -> None:
    await cell.place(await cell.replica())
    claim = the_claim(cell, "web-0.1")
    assert cell.authority._jobs.plan_removal(claim) is NOTHING
    assert cell.authority._jobs.plan_orphan(claim) is NOTHING
