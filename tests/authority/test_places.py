"""Recovery places count only after the authority found them to fit, and never race a bind."""

from __future__ import annotations

import asyncio

from tests.authority.cell import Cell

from holdfast.model.assignment import Purpose
from holdfast.model.hold import Hold, HoldSpec, is_kept, is_refused
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement import Result
from holdfast.model.quota import GrantClass
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec


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
    await cell.authority.tick()
    assert cell.every(Hold)[0].status.draw.replica_uid == one.uid
    cell.check_ledger()
