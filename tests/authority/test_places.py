"""Recovery places count only after the authority found them to fit, and never race a bind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.authority.cell import TENANT, Cell, turns

from holdfast.model.assignment import Assignment, AssignmentSpec, Purpose
from holdfast.model.binding import Reservation
from holdfast.model.errors import Ambiguous, Conflict
from holdfast.model.hold import Hold, HoldSpec, is_kept, is_refused
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement import ReleaseAction, Result
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec
from holdfast.model.template import Template
from holdfast.store.contract import Committed, Compare, Remove, Txn


async def wish(cell: Cell, name: str, cpu: str, node: str = "n1") -> None:
    await cell.put(Hold(ObjectMeta(name=name, uid=f"uid-{name}"), HoldSpec("b", node, resources={"cpu": cpu})))


async def test_a_wish_that_fits_is_kept_and_then_counts(cell: Cell) -> None:
    await cell.lead()
    await wish(cell, "h1", "6")
    await cell.authority.tick()
    assert is_kept(cell.every(Hold)[0])
    cell.check_ledger()
    refused = await cell.place(await cell.replica("firm", template={"resources": {"cpu": "4"}}))
    assert refused.reason == "InsufficientCpu" and refused.facts["held"] == {"cpu": "6"}


async def test_a_wish_that_does_not_fit_is_refused_and_counts_for_nothing(cell: Cell) -> None:
    await cell.lead()
    assert (
        await cell.place(await cell.replica("firm", template={"resources": {"cpu": "4"}}))
    ).result is Result.ACCEPTED
    await wish(cell, "h1", "6")
    await cell.authority.tick()
    (hold,) = cell.every(Hold)
    assert is_refused(hold) and "cpu by" in hold.status.kept.message
    cell.check_ledger()


async def test_wishes_and_binds_race_and_the_rule_holds(cell: Cell) -> None:
    await cell.lead()
    replicas = [await cell.replica(f"r-{i}", template={"resources": {"cpu": "1"}}) for i in range(8)]
    for number in range(4):
        await wish(cell, f"h{number}", "2")
    await asyncio.gather(*(cell.place(r) for r in replicas), cell.authority.tick())
    cell.check_ledger()
    account = cell.authority.ledger.nodes["n1"]
    assert account.firm.get("cpu", 0) + account.held().get("cpu", 0) <= account.capacity["cpu"]


async def test_a_draw_is_said_on_the_place_and_taken_back_with_the_claim(cell: Cell) -> None:
    await cell.put(RecoveryBudget(ObjectMeta(name="b"), RecoveryBudgetSpec(region="east")))
    await cell.grant(grant_class=GrantClass.RECOVERY)
    await cell.lead()
    await wish(cell, "h1", "2")
    await cell.authority.tick()
    one = await cell.replica("r-0", template={"resources": {"cpu": "2"}}, purpose=Purpose.RECOVERY)
    assert (await cell.place(one)).result is Result.ACCEPTED
    assert cell.every(Hold)[0].status.draw.replica_uid == one.uid, "with the claim, and not a moment later"
    cell.check_ledger()
    placed = cell.get_replica("r-0")
    await cell.release(placed, ReleaseAction.STOP)
    await cell.acknowledge(placed.status.placement.binding)
    await cell.release(placed, ReleaseAction.FREE)
    await cell.authority.tick()
    assert cell.every(Hold)[0].status.draw is None
    cell.check_ledger()


@pytest.mark.parametrize("again", [True, False])
async def test_a_place_given_up_while_its_keeping_is_unanswered_does_not_count_for_ever(
    cell: Cell, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two places are kept in one commit, whose answer is lost. Before that is found out one of them has been given up,
    and is asked for again elsewhere under its name."""
    await cell.node("n2")
    await cell.lead(run=True)
    await wish(cell, "h1", "2")
    await wish(cell, "h2", "3")
    answered, key = cell.store.commit, kind_of(Hold).store_key("", "h2")

    async def unanswered(txn: Txn) -> Committed:
        done = await answered(txn)
        if any(write.key == key for write in txn.writes):
            monkeypatch.undo()
            await turns()
            await cell.remove(next(hold for hold in cell.every(Hold) if hold.metadata.name == "h2"))
            if again:
                await wish(cell, "h2", "3", "n2")
            await turns()
            raise Ambiguous("no answer; it happened")
        return done

    monkeypatch.setattr(cell.store, "commit", unanswered)
    await cell.authority.tick()
    await turns()
    cell.check_ledger()
    await cell.authority.tick()
    assert [hold.spec.node for hold in cell.every(Hold) if is_kept(hold)] == ["n1", "n2"][: 1 + again]
    cell.check_ledger()


@pytest.mark.parametrize("first", ["draw", "end"])
@pytest.mark.parametrize("later", range(8))
async def test_a_place_is_drawn_or_given_up_and_never_both(cell: Cell, first: str, later: int) -> None:
    """A place is given up by the revision that was seen, as the hold controller does, while a claim that draws it is on
    its way to the store: no claim is left with a place that is gone."""
    await cell.put(RecoveryBudget(ObjectMeta(name="b"), RecoveryBudgetSpec(region="east")))
    await cell.grant(grant_class=GrantClass.RECOVERY)
    await cell.lead(run=True)
    await wish(cell, "h1", "2")
    await cell.authority.tick()
    (seen,) = cell.every(Hold)
    one = await cell.replica("r-0", template={"resources": {"cpu": "2"}}, purpose=Purpose.RECOVERY)
    key = kind_of(Hold).store_key("", "h1")

    async def end() -> bool:
        try:
            await cell.objects.commit(None, Txn((Compare(key, seen.revision),), (Remove(key),)))
        except Conflict:
            return False
        return True

    async def after(work: Coroutine[Any, Any, Any]) -> Any:
        await turns(later)
        return await work

    drawing, ending = cell.place(one), end()
    both = (drawing, after(ending)) if first == "draw" else (after(drawing), ending)
    answer, ended = await asyncio.gather(*both)
    assert answer.result is Result.ACCEPTED
    drawn = [name for claim in cell.every(Reservation) for name in claim.spec.holds]
    left = [h.metadata.name for h in cell.every(Hold)]
    await turns()
    assert drawn == ([] if ended else ["h1"]) and left == drawn
    cell.check_ledger()


@pytest.mark.parametrize(("reclaimable", "taken"), [(True, True), (False, False)])
async def test_only_work_on_loan_makes_way_for_recovery_that_may_not_preempt(
    cell: Cell, reclaimable: bool, taken: bool
) -> None:
    await cell.put(RecoveryBudget(ObjectMeta(name="b"), RecoveryBudgetSpec(region="east")))
    await cell.grant(grant_class=GrantClass.RECOVERY)
    await cell.lead()
    template = {"resources": {"cpu": "7"}}
    low = await cell.replica("low", template=template, reclaimable=reclaimable, rank=50)
    assert (await cell.place(low)).result is Result.ACCEPTED
    await cell.put(
        Assignment(
            ObjectMeta(name="web.us-east.normal", namespace=TENANT, generation=1),
            AssignmentSpec(workload="web", workload_uid="w", region="us-east", revision="1", template=Template()),
        )
    )
    high = await cell.replica("high", template=template, purpose=Purpose.RECOVERY, rank=9)
    answer = await cell.place(high, victims=("low.1",))
    assert (answer.reason == Reason.WAITING_FOR_VICTIMS) is taken, answer
    if not taken:
        assert answer.reason == Reason.VICTIM_NOT_ALLOWED and "is not reclaimable" in answer.message
    cell.check_ledger()
