"""Leases and fences: epochs, durability before the answer, and how long the grantor waits."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.authority.cell import WHO, Cell, turns

from holdfast.authority import rejoin
from holdfast.model import limits
from holdfast.model.errors import Unavailable
from holdfast.model.lease_page import LeasePage
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import NodeStatus
from holdfast.model.placement import RenewItem, RenewRequest, Result
from holdfast.model.term import INCARNATION, Term, TermSpec


async def test_registering_gives_out_epochs_before_the_node_exists(cell: Cell) -> None:
    first = await cell.renew("new", 0)
    assert (first.result, first.epoch, first.ttl_seconds) == (Result.ACCEPTED, 1, 15.0)
    assert (await cell.renew("new", 1)).epoch == 1
    assert (await cell.renew("new", 0)).epoch == 2
    old = await cell.renew("new", 1)
    assert (old.result, old.reason, old.facts["current"]) == (Result.REJECTED, "NodeFenced", 2)
    assert (await cell.renew("new", 9)).reason == "NodeFenced"
    assert (await cell.renew("never", 1)).reason == "NodeFenced"


async def test_a_restored_region_gives_epochs_that_none_of_its_former_lives_gave(cell: Cell) -> None:
    """An agent holds every epoch for over that it was ever fenced at, also after the backup was taken."""
    await cell.put(Term(metadata=ObjectMeta(name=INCARNATION), spec=TermSpec(holder=rejoin.JOINED, term=3)))
    for node in ("n1", "unknown to the backup"):
        assert (await cell.renew(node, 1)).reason == "NodeFenced"
        given = (await cell.renew(node, 0)).epoch
        assert given == 3 * limits.EPOCHS_PER_INCARNATION + 1
        assert (await cell.renew(node, given)).epoch == given


async def test_many_renewals_share_one_commit_and_a_page_holds_500(cell: Cell) -> None:
    before = cell.store.commits
    asked = asyncio.create_task(
        cell.authority.renew(WHO, RenewRequest(tuple(RenewItem(f"m-{i:04d}", 0) for i in range(1200))))
    )
    more = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n1", 1),))))
    await turns(3)
    assert not asked.done() and cell.store.commits == before
    await cell.authority._heartbeats.flush()
    answers = (await asked).answers
    assert all(a.epoch == 1 for a in answers) and (await more).answers[0].epoch == 1
    assert cell.store.commits == before + 1
    pages = cell.every(LeasePage)
    assert sorted(len(p.spec.leases) for p in pages) == [201, 500, 500]


async def test_an_overdue_node_is_fenced_and_cannot_renew(cell: Cell) -> None:
    await cell.lead(run=True)
    await cell.clock.advance(10)
    assert (await cell.renew("n1", 1)).result is Result.ACCEPTED
    await cell.clock.advance(19.9)  # TTL 15 * 1.01 + 5 = 20.15 after the renewal
    assert cell.get_node().status.fence.fenced_epoch == 0
    await cell.clock.advance(2)
    fence = cell.get_node().status.fence
    assert (fence.fenced_epoch, fence.reason) == (1, "LeaseLapsed") and fence.at
    refused = await cell.renew("n1", 1)
    assert (refused.reason, refused.facts["floor"]) == ("NodeFenced", 1)
    assert (await cell.renew("n1", 0)).epoch == 2
    await cell.clock.advance(5)
    assert cell.get_node().status.fence.fenced_epoch == 1


async def test_a_fence_outlasts_its_node_and_the_authority(cell: Cell) -> None:
    """An operator removes the fenced node, another authority takes over, and the agent makes the node anew."""
    await cell.lead(run=True)
    await cell.clock.advance(22)
    node = cell.get_node()
    assert node.status.fence.fenced_epoch == 1
    assert cell.every(LeasePage)[0].spec.leases["n1"].ttl_s == 0.0, "in the same commit"
    await cell.remove(node)
    await cell.lead(run=True)
    await cell.put(msgspec.structs.replace(node, metadata=ObjectMeta(name="n1"), status=NodeStatus()))
    refused = await cell.renew("n1", 1)
    assert (refused.result, refused.reason) == (Result.REJECTED, "NodeFenced"), "it would renew what counts as over"
    assert (await cell.renew("n1", 0)).epoch == 2


async def test_a_fence_of_before_ends_its_lease_too(cell: Cell) -> None:
    """Fenced by an authority that left the lease as it was."""
    await cell.change_node(fence=1)
    await cell.lead(run=True)
    await cell.clock.advance(22)
    assert cell.every(LeasePage)[0].spec.leases["n1"].ttl_s == 0.0


async def test_an_epoch_is_above_all_that_the_agent_knows_to_be_over(cell: Cell) -> None:
    """The region may have forgotten them: it keeps the leases of removed nodes for a day."""
    asked = RenewRequest((RenewItem("n9", 0, above=7), RenewItem("n8", 0, above=2**200), RenewItem("n1", 1, above=7)))
    waiting = asyncio.create_task(cell.authority.renew(WHO, asked))
    await turns(2)
    await cell.authority.tick()
    answers = (await waiting).answers
    assert [a.epoch for a in answers] == [8, limits.EPOCH_MAX + 1, 1]


async def test_a_new_authority_waits_a_full_ttl_before_it_fences(cell: Cell) -> None:
    """The node was silent for long before the takeover; only the time since the takeover counts."""
    await cell.clock.advance(100)
    await cell.lead(run=True)
    await cell.clock.advance(19.9)
    assert cell.get_node().status.fence.fenced_epoch == 0
    await cell.clock.advance(2)
    assert cell.get_node().status.fence.fenced_epoch == 1


async def test_a_renewal_in_the_same_tick_comes_before_the_fence(cell: Cell) -> None:
    await cell.clock.advance(60)
    waiting = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n1", 1),))))
    await turns(2)
    await cell.authority.tick()
    assert (await waiting).answers[0].result is Result.ACCEPTED
    assert cell.get_node().status.fence.fenced_epoch == 0


async def test_a_wall_clock_that_steps_fences_nobody(cell: Cell) -> None:
    await cell.lead(run=True)
    cell.clock.wall_s += 86_400
    await cell.clock.advance(5)
    assert cell.get_node().status.fence.fenced_epoch == 0


async def test_losing_the_lead_refuses_those_who_wait(cell: Cell) -> None:
    waiting = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n1", 1),))))
    await turns(2)
    cell.authority.stop()
    with pytest.raises(Unavailable):
        await waiting


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_renewal_without_an_answer_is_read_back(cell: Cell, fault: str) -> None:
    await cell.lead(run=True)
    cell.store.faults = [fault]
    waiting = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n2", 0),))))
    await cell.clock.advance(2)
    assert (await waiting).answers[0].epoch == 1
    assert cell.authority.lease_epoch("n2") == 1
    await cell.lead()
    assert cell.authority.lease_epoch("n2") == 1


async def test_many_nodes_are_fenced_together_and_one_that_moved_is_left_for_later(cell: Cell) -> None:
    for index in range(20):
        await cell.node(f"m-{index}")
    await cell.lead(run=True)
    before = cell.store.commits
    await cell.clock.advance(23)
    assert all(n.status.fence.fenced_epoch == 1 for n in map(cell.get_node, (f"m-{i}" for i in range(20))))
    assert cell.store.commits <= before + 3


async def test_renewals_have_a_moment_to_gather_and_a_node_that_registers_a_shorter_one(cell: Cell) -> None:
    """Every commit saved is one less for each of its readers; whoever registers can do nothing before the answer."""
    await cell.lead(run=True)
    registered = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("new", 0),))))
    await turns(3)
    await cell.clock.advance(0.26)
    assert (await registered).answers[0].epoch == 1
    first = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n1", 1),))))
    await turns(3)
    await cell.clock.advance(0.9)
    second = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("new", 1),))))
    await turns(3)
    assert not first.done()
    await cell.clock.advance(0.11)
    assert [(await asked).answers[0].result for asked in (first, second)] == [Result.ACCEPTED] * 2
    leases = cell.every(LeasePage)[0].spec.leases
    assert leases["n1"].renewed_at_s == leases["new"].renewed_at_s
