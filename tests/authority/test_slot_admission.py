"""Recovery slots count only after admission by the authority, and never race a bind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.authority.cell import TENANT, Cell, yield_to_loop

from holdfast.model.assignment import Assignment, AssignmentSpec, Purpose
from holdfast.model.binding import Reservation, ReservationPhase
from holdfast.model.errors import Ambiguous, Conflict
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import PlacementOutcome, ReleaseAction
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec, is_admitted, is_rejected
from holdfast.model.template import Template
from holdfast.store.contract import Committed, Compare, Remove, Txn


async def put_slot(cell: Cell, name: str, cpu: str, node: str = "n1") -> None:
    await cell.put(
        RecoverySlot(ObjectMeta(name=name, uid=f"uid-{name}"), RecoverySlotSpec("b", node, resources={"cpu": cpu}))
    )


async def test_slot_that_fits_is_admitted_and_counted(cell: Cell) -> None:
    await cell.lead()
    await put_slot(cell, "h1", "6")
    await cell.authority.tick()
    assert is_admitted(cell.every(RecoverySlot)[0])
    cell.check_ledger()
    refused = await cell.place(await cell.replica("firm", template={"resources": {"cpu": "4"}}))
    assert refused.reason == "InsufficientCpu" and refused.facts["recoveryReserved"] == {"cpu": "6"}


async def test_slot_that_does_not_fit_is_refused_and_not_counted(cell: Cell) -> None:
    await cell.lead()
    assert (
        await cell.place(await cell.replica("firm", template={"resources": {"cpu": "4"}}))
    ).result is PlacementOutcome.ACCEPTED
    await put_slot(cell, "h1", "6")
    await cell.authority.tick()
    (hold,) = cell.every(RecoverySlot)
    assert is_rejected(hold) and "cpu by" in hold.status.admission.message
    cell.check_ledger()


async def test_concurrent_slots_and_binds_keep_capacity_rule(cell: Cell) -> None:
    await cell.lead()
    replicas = [await cell.replica(f"r-{i}", template={"resources": {"cpu": "1"}}) for i in range(8)]
    for number in range(4):
        await put_slot(cell, f"h{number}", "2")
    await asyncio.gather(*(cell.place(r) for r in replicas), cell.authority.tick())
    cell.check_ledger()
    account = cell.authority.ledger.nodes["n1"]
    assert account.firm.get("cpu", 0) + account.recovery_reserved().get("cpu", 0) <= account.capacity["cpu"]


async def test_slot_consumer_is_set_with_claim_and_cleared_after_release(cell: Cell) -> None:
    await cell.put(RecoveryBudget(ObjectMeta(name="b"), RecoveryBudgetSpec(region="east")))
    await cell.grant(grant_class=GrantClass.RECOVERY)
    await cell.lead()
    await put_slot(cell, "h1", "2")
    await cell.authority.tick()
    one = await cell.replica("r-0", template={"resources": {"cpu": "2"}}, purpose=Purpose.RECOVERY)
    assert (await cell.place(one)).result is PlacementOutcome.ACCEPTED
    assert cell.every(RecoverySlot)[0].status.consumer.replica_uid == one.uid, "in the same commit as the claim"
    cell.check_ledger()
    placed = cell.get_replica("r-0")
    await cell.release(placed, ReleaseAction.STOP)
    await cell.acknowledge(placed.status.placement.binding)
    await cell.release(placed, ReleaseAction.FREE)
    await cell.authority.tick()
    assert cell.every(RecoverySlot)[0].status.consumer is None
    cell.check_ledger()


@pytest.mark.parametrize("again", [True, False])
async def test_slot_deleted_during_unanswered_admission_leaves_ledger(
    cell: Cell, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slots are admitted in one unanswered commit. Before the outcome is read back, one slot is deleted, and
    recreated on another node."""
    await cell.node("n2")
    await cell.lead(run=True)
    await put_slot(cell, "h1", "2")
    await put_slot(cell, "h2", "3")
    answered, key = cell.store.commit, kind_of(RecoverySlot).store_key("", "h2")

    async def unanswered(txn: Txn) -> Committed:
        done = await answered(txn)
        if any(write.key == key for write in txn.writes):
            monkeypatch.undo()
            await yield_to_loop()
            await cell.remove(next(hold for hold in cell.every(RecoverySlot) if hold.metadata.name == "h2"))
            if again:
                await put_slot(cell, "h2", "3", "n2")
            await yield_to_loop()
            raise Ambiguous("no answer; it happened")
        return done

    monkeypatch.setattr(cell.store, "commit", unanswered)
    await cell.authority.tick()
    await yield_to_loop()
    cell.check_ledger()
    await cell.authority.tick()
    assert [hold.spec.node for hold in cell.every(RecoverySlot) if is_admitted(hold)] == ["n1", "n2"][: 1 + again]
    cell.check_ledger()


@pytest.mark.parametrize("first", ["draw", "end"])
@pytest.mark.parametrize("later", range(8))
async def test_slot_is_either_consumed_or_deleted(cell: Cell, first: str, later: int) -> None:
    """A slot is deleted at its observed revision, as its controller does, while a claim that consumes it is being
    committed: no claim refers to a deleted slot."""
    await cell.put(RecoveryBudget(ObjectMeta(name="b"), RecoveryBudgetSpec(region="east")))
    await cell.grant(grant_class=GrantClass.RECOVERY)
    await cell.lead(run=True)
    await put_slot(cell, "h1", "2")
    await cell.authority.tick()
    (seen,) = cell.every(RecoverySlot)
    one = await cell.replica("r-0", template={"resources": {"cpu": "2"}}, purpose=Purpose.RECOVERY)
    key = kind_of(RecoverySlot).store_key("", "h1")

    async def end() -> bool:
        try:
            await cell.objects.commit(None, Txn((Compare(key, seen.revision),), (Remove(key),)))
        except Conflict:
            return False
        return True

    async def after(work: Coroutine[Any, Any, Any]) -> Any:
        await yield_to_loop(later)
        return await work

    drawing, ending = cell.place(one), end()
    both = (drawing, after(ending)) if first == "draw" else (after(drawing), ending)
    answer, ended = await asyncio.gather(*both)
    assert answer.result is PlacementOutcome.ACCEPTED
    drawn = [name for claim in cell.every(Reservation) for name in claim.spec.recovery_slots]
    left = [h.metadata.name for h in cell.every(RecoverySlot)]
    await yield_to_loop()
    assert drawn == ([] if ended else ["h1"]) and left == drawn
    cell.check_ledger()


@pytest.mark.parametrize(("reclaimable", "taken"), [(True, True), (False, False)])
async def test_recovery_without_preemption_evicts_only_reclaimable_work(
    cell: Cell, reclaimable: bool, taken: bool
) -> None:
    await cell.put(RecoveryBudget(ObjectMeta(name="b"), RecoveryBudgetSpec(region="east")))
    await cell.grant(grant_class=GrantClass.RECOVERY)
    await cell.lead()
    template = {"resources": {"cpu": "7"}}
    low = await cell.replica("low", template=template, reclaimable=reclaimable, priority=50)
    assert (await cell.place(low)).result is PlacementOutcome.ACCEPTED
    await cell.put(
        Assignment(
            ObjectMeta(name="web.us-east.normal", namespace=TENANT, generation=1),
            AssignmentSpec(workload="web", workload_uid="w", region="us-east", revision="1", template=Template()),
        )
    )
    high = await cell.replica("high", template=template, purpose=Purpose.RECOVERY, priority=9)
    answer = await cell.place(high, victims=("low.1",))
    assert (answer.reason == Reason.WAITING_FOR_VICTIMS) is taken, answer
    if not taken:
        assert answer.reason == Reason.VICTIM_NOT_ALLOWED and "is not reclaimable" in answer.message
    cell.check_ledger()


async def test_nomination_that_consumes_a_slot_becomes_firm_on_a_node_full_of_slots(cell: Cell) -> None:
    """Its slot is its own room: counted against it as well, the replica would evict one victim after another."""
    await cell.put(RecoveryBudget(ObjectMeta(name="b"), RecoveryBudgetSpec(region="east")))
    await cell.grant(grant_class=GrantClass.RECOVERY)
    await cell.lead()
    await put_slot(cell, "h1", "4")
    await put_slot(cell, "h2", "4")
    await cell.authority.tick()
    template = {"resources": {"cpu": "4"}}
    lent, other = [await cell.replica(name, template=template, reclaimable=True) for name in ("lent", "other")]
    for replica in (lent, other):
        assert (await cell.place(replica)).result is PlacementOutcome.ACCEPTED
    high = await cell.replica("high", template=template, purpose=Purpose.RECOVERY)
    await cell.reserve(cell.item(high, victims=("lent.1",)), bind=False)
    (nomination,) = cell.every(Reservation)
    assert nomination.status.phase is ReservationPhase.NOMINATED and nomination.spec.recovery_slots == ("h1",)
    placed = cell.get_replica("lent")
    await cell.release(placed, ReleaseAction.STOP)
    await cell.acknowledge("lent.1")
    await cell.release(placed, ReleaseAction.FREE)
    await cell.authority.tick()
    (promoted,) = cell.every(Reservation)
    assert promoted.status.phase is ReservationPhase.FIRM and promoted.spec.recovery_slots == ("h1",)
    account = cell.authority.ledger.nodes["n1"]
    assert account.recovery_reserved() == {"cpu": 4000} and not account.overcommitted()
    cell.check_ledger()
