"""Node leases and fences: epochs, durability before the response, and the wait before fencing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.authority.cell import WHO, Cell, yield_to_loop

from holdfast.authority.heartbeats import REPORTED_EPOCH_MAX
from holdfast.model import limits
from holdfast.model.election_term import INCARNATION_TERM, RESTORE_COMPLETE, Term, TermSpec
from holdfast.model.errors import Unavailable
from holdfast.model.lease_page import LeasePage
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import NodeStatus
from holdfast.model.placement_api import PlacementOutcome, RenewItem, RenewRequest
from holdfast.store.contract import Committed, Txn


async def test_registration_issues_increasing_epochs_without_node(cell: Cell) -> None:
    first = await cell.renew("new", 0)
    assert (first.result, first.epoch, first.ttl_seconds) == (PlacementOutcome.ACCEPTED, 1, 15.0)
    assert (await cell.renew("new", 1)).epoch == 1
    assert (await cell.renew("new", 0)).epoch == 2
    old = await cell.renew("new", 1)
    assert (old.result, old.reason, old.facts["current"]) == (PlacementOutcome.REJECTED, "NodeFenced", 2)
    assert (await cell.renew("new", 9)).reason == "NodeFenced"
    assert (await cell.renew("never", 1)).reason == "NodeFenced"


async def test_restored_region_issues_epochs_above_previous_incarnations(cell: Cell) -> None:
    """An agent remembers every epoch at which it was fenced, also those after the backup."""
    await cell.put(Term(metadata=ObjectMeta(name=INCARNATION_TERM), spec=TermSpec(holder=RESTORE_COMPLETE, term=3)))
    for node in ("n1", "unknown to the backup"):
        assert (await cell.renew(node, 1)).reason == "NodeFenced"
        given = (await cell.renew(node, 0)).epoch
        assert given == 3 * limits.EPOCHS_PER_INCARNATION + 1
        assert (await cell.renew(node, given)).epoch == given


async def test_1200_renewals_are_one_commit_in_pages_of_500(cell: Cell) -> None:
    before = cell.store.commits
    renewal = asyncio.create_task(
        cell.authority.renew(WHO, RenewRequest(tuple(RenewItem(f"m-{i:04d}", 0) for i in range(1200))))
    )
    more = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n1", 1),))))
    await yield_to_loop(3)
    assert not renewal.done() and cell.store.commits == before
    await cell.authority._heartbeats.flush()
    answers = (await renewal).results
    assert all(a.epoch == 1 for a in answers) and (await more).results[0].epoch == 1
    assert cell.store.commits == before + 1
    pages = cell.every(LeasePage)
    assert sorted(len(p.spec.leases) for p in pages) == [201, 500, 500]


async def test_node_past_lease_grace_is_fenced_and_cannot_renew(cell: Cell) -> None:
    await cell.lead(run=True)
    await cell.clock.advance(10)
    assert (await cell.renew("n1", 1)).result is PlacementOutcome.ACCEPTED
    await cell.clock.advance(19.9)  # TTL 15 * 1.01 + 5 = 20.15 after the renewal
    assert cell.get_node().status.fence.fenced_epoch == 0
    await cell.clock.advance(2)
    fence = cell.get_node().status.fence
    assert (fence.fenced_epoch, fence.reason) == (1, "LeaseExpired") and fence.at
    refused = await cell.renew("n1", 1)
    assert (refused.reason, refused.facts["floor"]) == ("NodeFenced", 1)
    assert (await cell.renew("n1", 0)).epoch == 2
    await cell.clock.advance(5)
    assert cell.get_node().status.fence.fenced_epoch == 1


async def test_fence_survives_node_deletion_and_leader_change(cell: Cell) -> None:
    """An operator deletes the fenced node, another authority takes over, and the agent recreates the node."""
    await cell.lead(run=True)
    await cell.clock.advance(22)
    node = cell.get_node()
    assert node.status.fence.fenced_epoch == 1
    assert cell.every(LeasePage)[0].spec.leases["n1"].ttl_s == 0.0, "in the same commit"
    await cell.remove(node)
    await cell.lead(run=True)
    await cell.put(msgspec.structs.replace(node, metadata=ObjectMeta(name="n1"), status=NodeStatus()))
    refused = await cell.renew("n1", 1)
    assert (refused.result, refused.reason) == (PlacementOutcome.REJECTED, "NodeFenced"), (
        "the fenced epoch must not be renewed"
    )
    assert (await cell.renew("n1", 0)).epoch == 2


async def test_node_that_changes_during_its_fence_is_fenced_later_and_the_others_at_once(cell: Cell) -> None:
    await cell.node("n2")
    await cell.clock.advance(40)
    commit, changed = cell.store.commit, cell.get_node("n1")
    races = ["/nodes/n1"]

    async def commit_behind_another(txn: Txn) -> Committed:
        if races and any(write.key == races[0] for write in txn.writes):
            races.pop()
            await cell.put(changed)
        return await commit(txn)

    cell.store.commit = commit_behind_another  # type: ignore[method-assign]
    await cell.authority.tick()
    assert (cell.get_node("n1").status.fence.fenced_epoch, cell.get_node("n2").status.fence.fenced_epoch) == (0, 1)
    leases = cell.every(LeasePage)[0].spec.leases
    assert leases["n1"].ttl_s > 0 and leases["n2"].ttl_s == 0, "a lease ends in the commit of its fence alone"
    await cell.authority.tick()
    assert cell.get_node("n1").status.fence.fenced_epoch == 1


async def test_renewal_whose_lease_page_changes_meanwhile_is_decided_again(cell: Cell) -> None:
    """Another writer stores the page between the decision and the commit."""
    commit, races = cell.store.commit, [True]

    async def commit_behind_another(txn: Txn) -> Committed:
        if races and any(write.key.startswith("/leasepages/") for write in txn.writes):
            races.pop()
            await cell.put(cell.every(LeasePage)[0])
        return await commit(txn)

    cell.store.commit = commit_behind_another  # type: ignore[method-assign]
    assert (await cell.renew("n1", 1)).result is PlacementOutcome.ACCEPTED
    assert not races and cell.every(LeasePage)[0].spec.leases["n1"].epoch == 1


async def test_fence_without_ended_lease_is_completed(cell: Cell) -> None:
    """An earlier authority fenced the node and did not end its lease."""
    await cell.change_node(fence=1)
    await cell.lead(run=True)
    await cell.clock.advance(22)
    assert cell.every(LeasePage)[0].spec.leases["n1"].ttl_s == 0.0


async def test_registration_issues_epoch_above_agents_fenced_epoch(cell: Cell) -> None:
    """The region may have dropped these epochs: leases of removed nodes are kept for a day."""
    renewal = RenewRequest(
        (
            RenewItem("n9", 0, fenced_epoch=7),
            RenewItem("n8", 0, fenced_epoch=2**200),
            RenewItem("n1", 1, fenced_epoch=7),
        )
    )
    waiting = asyncio.create_task(cell.authority.renew(WHO, renewal))
    await yield_to_loop(2)
    await cell.authority.tick()
    answers = (await waiting).results
    assert [a.epoch for a in answers] == [8, REPORTED_EPOCH_MAX + 1, 1]


async def test_new_authority_waits_full_ttl_before_fencing(cell: Cell) -> None:
    """The node was out of contact before the takeover; only the time since the takeover counts."""
    await cell.clock.advance(100)
    await cell.lead(run=True)
    await cell.clock.advance(19.9)
    assert cell.get_node().status.fence.fenced_epoch == 0
    await cell.clock.advance(2)
    assert cell.get_node().status.fence.fenced_epoch == 1


async def test_renewal_in_same_tick_precedes_fence(cell: Cell) -> None:
    await cell.clock.advance(60)
    waiting = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n1", 1),))))
    await yield_to_loop(2)
    await cell.authority.tick()
    assert (await waiting).results[0].result is PlacementOutcome.ACCEPTED
    assert cell.get_node().status.fence.fenced_epoch == 0


async def test_wall_clock_step_fences_no_node(cell: Cell) -> None:
    await cell.lead(run=True)
    cell.clock.wall_s += 86_400
    await cell.clock.advance(5)
    assert cell.get_node().status.fence.fenced_epoch == 0


async def test_renewal_waiting_at_leadership_loss_is_refused(cell: Cell) -> None:
    waiting = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n1", 1),))))
    await yield_to_loop(2)
    cell.authority.stop()
    with pytest.raises(Unavailable):
        await waiting


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_unanswered_registration_commit_is_read_back(cell: Cell, fault: str) -> None:
    await cell.lead(run=True)
    cell.store.faults = [fault]
    waiting = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n2", 0),))))
    await cell.clock.advance(2)
    assert (await waiting).results[0].epoch == 1
    assert cell.authority.lease_epoch("n2") == 1
    await cell.lead()
    assert cell.authority.lease_epoch("n2") == 1


async def test_20_overdue_nodes_are_fenced_in_few_commits(cell: Cell) -> None:
    for index in range(20):
        await cell.node(f"m-{index}")
    await cell.lead(run=True)
    before = cell.store.commits
    await cell.clock.advance(23)
    assert all(n.status.fence.fenced_epoch == 1 for n in map(cell.get_node, (f"m-{i}" for i in range(20))))
    assert cell.store.commits <= before + 3


async def test_registration_flushes_sooner_than_renewals(cell: Cell) -> None:
    """Batching saves commits; a registering node cannot do anything before the response."""
    await cell.lead(run=True)
    registered = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("new", 0),))))
    await yield_to_loop(3)
    await cell.clock.advance(0.26)
    assert (await registered).results[0].epoch == 1
    first = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("n1", 1),))))
    await yield_to_loop(3)
    await cell.clock.advance(0.9)
    second = asyncio.create_task(cell.authority.renew(WHO, RenewRequest((RenewItem("new", 1),))))
    await yield_to_loop(3)
    assert not first.done()
    await cell.clock.advance(0.11)
    assert [(await renewal).results[0].result for renewal in (first, second)] == [PlacementOutcome.ACCEPTED] * 2
    leases = cell.every(LeasePage)[0].spec.leases
    assert leases["n1"].renewed_at_s == leases["new"].renewed_at_s


async def test_epoch_of_a_lost_lease_is_above_those_of_the_nodes_claims(cell: Cell) -> None:
    """The lease page was lost with a part of the store; a task may still run under the epoch of its claim."""
    for _ in range(3):
        given = (await cell.renew("n1", 0)).epoch
    node = cell.get_node()
    execution = msgspec.structs.replace(node.status.execution, epoch=given)
    await cell.put(msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, execution=execution)))
    assert (await cell.place(await cell.replica())).result is PlacementOutcome.ACCEPTED
    (claim,) = cell.authority.ledger.claims.values()
    assert claim.node_epoch == given > 1
    await cell.remove(cell.every(LeasePage)[0])
    await cell.lead()
    assert (await cell.renew("n1", 0)).epoch == given + 1
