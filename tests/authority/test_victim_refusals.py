"""The authority refuses victims that the proposer may not evict, and reserves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.authority.cell import TENANT, Cell
from tests.factories import assignment, meta

from holdfast.model.assignment import Purpose
from holdfast.model.binding import Reservation
from holdfast.model.placement_api import PlacementOutcome, PlacementResult, ReleaseAction

LARGE: dict[str, Any] = {"resources": {"cpu": "6"}}


async def propose(cell: Cell, *victims: str, name: str = "high", **spec: Any) -> PlacementResult:
    high = await cell.replica(name, **{"template": LARGE, "priority": 10, **spec})
    (answer,) = await cell.reserve(cell.item(high, victims=victims), bind=False)
    return answer


def is_refused(answer: PlacementResult, message: str) -> bool:
    return (answer.result, answer.reason) == (PlacementOutcome.REJECTED, "VictimNotAllowed") and message in (
        answer.message
    )


async def place(cell: Cell, name: str, node: str = "n1", **spec: Any) -> None:
    low = await cell.replica(name, template=LARGE, **spec)
    assert (await cell.place(low, node)).result is PlacementOutcome.ACCEPTED


async def test_victim_on_another_node_is_refused(cell: Cell) -> None:
    await cell.node("n2")
    await place(cell, "low", "n2")
    assert is_refused(await propose(cell, "low.1"), "it is on node n2")
    assert not cell.authority.ledger.account("n1").claims


async def test_victim_of_another_nomination_is_refused(cell: Cell) -> None:
    await place(cell, "low")
    assert (await propose(cell, "low.1")).reason == "WaitingForVictims"
    assert is_refused(await propose(cell, "low.1", name="higher", priority=20), "it is a victim of another claim")
    assert len(cell.every(Reservation)) == 1


async def test_reservation_that_is_not_bound_is_no_victim(cell: Cell) -> None:
    low = await cell.replica("low", template=LARGE)
    await cell.reserve(cell.item(low), bind=False)
    assert is_refused(await propose(cell, "low.1"), "it is not bound")


@pytest.mark.parametrize("purpose", [Purpose.NORMAL, Purpose.RECOVERY])
async def test_class_that_may_not_preempt_takes_only_reclaimable_work_and_only_for_recovery(
    cell: Cell, purpose: Purpose
) -> None:
    await place(cell, "low")
    item = assignment("web", "us-east", namespace=TENANT, may_preempt=False)
    await cell.put(type(item)(metadata=meta("web.us-east.normal", TENANT), spec=item.spec))
    answer = await propose(cell, "low.1", purpose=purpose)
    expected = "it is not reclaimable" if purpose is Purpose.RECOVERY else "may not preempt"
    assert is_refused(answer, expected)


async def test_claim_of_a_removed_replica_is_evicted_whatever_its_priority(cell: Cell) -> None:
    """Nobody is left whose priority could be compared; the claim only waits for its task to end."""
    low = await cell.replica("low", template=LARGE, priority=100)
    await cell.place(low)
    await cell.remove(low)
    answer = await propose(cell, "low.1")
    assert answer.reason == "WaitingForVictims"
    assert cell.binding("low.1") is not None


async def test_victims_that_are_gone_already_are_not_judged(cell: Cell) -> None:
    low = await cell.replica("low", template=LARGE, priority=100)
    await cell.place(low)
    await cell.acknowledge("low.1")
    await cell.release(low, ReleaseAction.FREE)
    assert (await propose(cell, "low.1")).result is PlacementOutcome.ACCEPTED


async def test_protected_quota_counts_what_open_nominations_will_evict(cell: Cell) -> None:
    """Rival has two replicas of 4 CPUs and 4 protected CPUs: one may be evicted by others, not both."""
    await cell.grant("rival", protected={"cpu": "4"})
    half: dict[str, Any] = {"resources": {"cpu": "4"}}
    for name in ("one", "two"):
        assert (await cell.place(await cell.replica(name, tenant="rival", template=half))).binding == f"{name}.1"
    assert (await propose(cell, "rival/one.1", template=half)).reason == "WaitingForVictims"
    refused = await propose(cell, "rival/two.1", name="higher", priority=20, template=half)
    assert is_refused(refused, "the quota of tenant rival protects 4 cpu here")
    lost = cell.binding("one.1", "rival")
    assert lost is not None
    await cell.remove(lost)
    refused = await propose(cell, "rival/two.1", name="other", priority=25, template=half)
    assert is_refused(refused, "protects 4 cpu"), "a victim whose record was lost is not usage any more"
    await cell.put(lost)
    await cell.release(cell.get_replica("one", "rival"), ReleaseAction.STOP)
    again = await propose(cell, "rival/two.1", name="highest", priority=30, template=half)
    assert is_refused(again, "protects 4 cpu"), "a victim that stops already is not usage any more"


async def test_own_tenant_is_not_protected_from_itself(cell: Cell) -> None:
    await cell.grant(protected={"cpu": "6"})
    await place(cell, "low")
    assert (await propose(cell, "low.1")).reason == "WaitingForVictims"


async def test_tenant_without_protected_quota_leaves_that_of_the_next_victim_in_force(cell: Cell) -> None:
    """Both victims are needed; the first one's tenant has no grant here, or nothing protected."""
    await cell.grant("rival", protected={"cpu": "4"})
    await cell.grant("unprotected")
    half: dict[str, Any] = {"resources": {"cpu": "4"}}
    for tenant in ("unprotected", "rival"):
        assert (await cell.place(await cell.replica("one", tenant=tenant, template=half))).binding == "one.1"
    whole: dict[str, Any] = {"resources": {"cpu": "8"}}
    refused = await propose(cell, "unprotected/one.1", "rival/one.1", template=whole)
    assert is_refused(refused, "the quota of tenant rival protects 4 cpu here")
    assert not [claim for claim in cell.authority.ledger.claims.values() if claim.nominated]


async def test_victim_whose_claim_is_gone_counts_for_no_protected_quota(cell: Cell) -> None:
    """An open nomination names it still; the usage that remains is counted without it, once."""
    await cell.grant("rival", protected={"cpu": "2"})
    for name in ("one", "two"):
        await cell.place(await cell.replica(name, tenant="rival", template={"resources": {"cpu": "2"}}))
    answer = await propose(cell, "rival/one.1", template={"resources": {"cpu": "5"}})
    assert answer.reason == "WaitingForVictims"
    one = cell.get_replica("one", "rival")
    await cell.release(one, ReleaseAction.STOP)
    await cell.acknowledge("one.1", tenant="rival")
    await cell.release(one, ReleaseAction.FREE)
    assert "rival/one.1" not in cell.authority.ledger.claims
    again = await propose(cell, "rival/two.1", name="higher", priority=20, template={"resources": {"cpu": "5"}})
    assert is_refused(again, "the quota of tenant rival protects 2 cpu here")
