"""Gangs with a real authority: members reserve, one compare-and-swap commits the gang, then members are bound."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.authority.cell import TENANT, WHO
from tests.controllers.virtual import until
from tests.insight.test_replay import assert_all_replay
from tests.scheduling.test_preemption import assigned, waiting
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.authority import bind_preconditions
from holdfast.model import limits
from holdfast.model.binding import Binding, Reservation
from holdfast.model.kinds import kind_of
from holdfast.model.placement_api import BindItem, BindRequest, PlacementOutcome, ReleaseAction, ReserveRequest
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest
from holdfast.model.workload import Gang
from holdfast.store.objects import Objects


async def history_of(objects: Objects, after: int) -> list[tuple[bool, int]]:
    """(committed, bound) after every change since a revision, in order."""
    seen: list[tuple[bool, int]] = []
    committed, bound = False, 0
    head = objects.head(kind_of(Binding))
    async for changes in objects.store_of(kind_of(Binding)).watch("", after=after):
        for change in changes:
            if change.key.startswith(kind_of(Binding).prefix):
                bound += (change.entry is not None) - (change.previous is not None)
            if change.key.startswith(kind_of(SchedulingRequest).prefix) and change.entry is not None:
                committed = committed or b"committedAt" in change.entry.value
            seen.append((committed, bound))
        if changes[-1].revision >= head:
            return seen
    return seen


def test_gang_members_are_bound_only_after_gang_commit() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await assigned(region, "ring", gang=Gang(min_available=6))
        before = cell.objects.head(kind_of(Binding))
        await waiting(region, "ring", 6, cpu="3", gang=Gang(min_available=6))
        await until(lambda: len(region.bound()) == 6)
        stored = region.stored("ring")
        assert stored.status.gang is not None and stored.status.gang.members == 6
        steps = await history_of(cell.objects, before)
        assert all(committed for committed, bound in steps if bound), "no member is bound before the commit"
        assert (True, 6) in steps
        await assert_all_replay(cell.objects)

    in_region(test, chores=True)


def test_gang_that_does_not_fit_reserves_nothing() -> None:
    async def test(region: Region) -> None:
        await assigned(region, "ring", gang=Gang(min_available=7))
        await waiting(region, "ring", 7, cpu="3", gang=Gang(min_available=7))
        await until(lambda: bool(region.stored("ring").status.reasons))
        assert region.stored("ring").status.reasons[0].reason == Reason.GANG_INCOMPLETE
        await asyncio.sleep(30.0)
        assert not region.bound() and not region.cell.every(Reservation)
        await region.cell.node("n9")
        await until(lambda: len(region.bound()) == 7)

    in_region(test, chores=True)


def test_incomplete_gang_reservation_releases_all_members() -> None:
    """A proposer with a stale view: one refused member makes all members refused."""

    async def test(region: Region) -> None:
        cell = region.cell
        await region.scheduler.stop()
        await assigned(region, "ring", gang=Gang(min_available=3))
        await waiting(region, "ring", 3, cpu="3", gang=Gang(min_available=3))
        members = [cell.get_replica(f"ring-{i}") for i in range(3)]
        items = (cell.item(members[0], "n0"), cell.item(members[1], "n1"), cell.item(members[2], "gone"))
        answers = (await cell.authority.reserve(WHO, ReserveRequest(items))).results
        assert [a.result for a in answers] == [PlacementOutcome.REJECTED] * 3
        assert answers[0].reason == Reason.GANG_INCOMPLETE and answers[0].facts == {"reserved": 2, "needed": 3}
        assert not cell.every(Reservation) and not cell.every(Binding)
        assert [r.status.placement.attempt for r in cell.every(Replica)] == [2, 2, 1]

    in_region(test, chores=True)


def test_bind_of_single_gang_member_is_rejected() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await region.scheduler.stop()
        await assigned(region, "ring", gang=Gang(min_available=2))
        await waiting(region, "ring", 2, cpu="3", gang=Gang(min_available=2))
        one = cell.get_replica("ring-0")
        item = cell.item(one, "n0")
        await cell.authority.reserve(WHO, ReserveRequest((item,), bind=False))
        bind = BindRequest((BindItem(TENANT, "ring-0", item.intent),))
        (answer,) = (await cell.authority.bind(WHO, bind)).results
        assert answer.result is PlacementOutcome.REJECTED

    in_region(test, chores=True)


def test_lost_member_of_committed_gang_is_replaced_alone() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await assigned(region, "ring", gang=Gang(min_available=3))
        await waiting(region, "ring", 3, cpu="3", gang=Gang(min_available=3))
        await until(lambda: len(region.bound()) == 3)
        lost = cell.get_replica("ring-0")
        stored = region.stored("ring")
        await cell.remove(stored)
        await cell.acknowledge("ring-0.1")
        await cell.release(lost, ReleaseAction.FREE)
        assert len(region.bound()) == 2
        spec = msgspec.structs.replace(stored.spec, members=(RequestMember("ring-0", lost.uid, 2),))
        meta = msgspec.structs.replace(stored.metadata, uid="", name="ring-again")
        await cell.put(SchedulingRequest(meta, spec))
        await until(lambda: len(region.bound()) == 3)

    in_region(test, chores=True)


def test_bound_members_of_old_revision_do_not_complete_new_gang() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await assigned(region, "ring", gang=Gang(min_available=3))
        await waiting(region, "ring", 3, cpu="3", gang=Gang(min_available=3))
        await until(lambda: len(region.bound()) == 3)
        newer = []
        for i in (3, 4, 5):  # the next revision does not fit beside the old one
            made = await cell.replica(f"ring-{i}", template={"resources": {"cpu": "7"}})
            item = msgspec.structs.replace(made.spec, workload="ring", assignment="ring", revision="2")
            await cell.put(msgspec.structs.replace(made, spec=item))
            newer.append(cell.get_replica(f"ring-{i}"))
        old = region.stored("ring")
        members = tuple(RequestMember(r.metadata.name, r.uid) for r in newer)
        spec = msgspec.structs.replace(old.spec, revision="2", template=newer[0].spec.template, members=members)
        meta = msgspec.structs.replace(old.metadata, uid="", name="ring-2", resource_version="")
        await cell.put(SchedulingRequest(meta, spec))
        await until(lambda: region.stored("ring-2").status.pending == 3)
        assert region.stored("ring-2").status.reasons[0].reason == Reason.GANG_INCOMPLETE
        assert [
            bind_preconditions.bound_members(cell.authority._state, cell.get_replica(name))
            for name in ("ring-0", "ring-3")
        ] == [3, 0], "the authority counts members per revision"
        assert len(region.bound()) == 3

    in_region(test, chores=True)


def test_two_gangs_with_room_for_one_bind_exactly_one() -> None:
    async def test(region: Region) -> None:
        for name in ("left", "right"):
            await assigned(region, name, gang=Gang(min_available=4))
            await waiting(region, name, 4, cpu="3", gang=Gang(min_available=4))
        await until(lambda: len(region.bound()) == 4)
        await asyncio.sleep(60.0)
        names = {name.rsplit("-", 1)[0] for name in region.bound()}
        assert len(names) == 1 and len(region.bound()) == 4, "one complete gang, and no member of the other"

    in_region(test, chores=True)


def test_gang_larger_than_batch_is_bound_after_commit() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        count = limits.PLACEMENT_BATCH_MAX + 44
        await assigned(region, "wide", gang=Gang(min_available=count))
        before = cell.objects.head(kind_of(Binding))
        await waiting(region, "wide", count, cpu="50m", gang=Gang(min_available=count))
        await until(lambda: len(region.bound()) == count)
        steps = await history_of(cell.objects, before)
        assert all(committed for committed, bound in steps if bound)

    in_region(test, chores=True)


@pytest.mark.parametrize("faults", [["before"], ["after"], ["", "before"], ["", "after"], ["", "", "before"]])
def test_gang_with_unanswered_commits_is_bound_as_a_whole(faults: list[str]) -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await assigned(region, "ring", gang=Gang(min_available=4))
        before = cell.objects.head(kind_of(Binding))
        cell.store.faults = list(faults)
        await waiting(region, "ring", 4, cpu="3", gang=Gang(min_available=4))
        await until(lambda: len(region.bound()) == 4)
        steps = await history_of(cell.objects, before)
        assert all(committed for committed, bound in steps if bound)

    in_region(test, chores=True)


def test_gang_reserved_as_a_whole_stays_bound_after_leader_change() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await region.scheduler.stop()
        await assigned(region, "ring", gang=Gang(min_available=2))
        await waiting(region, "ring", 2, cpu="3", gang=Gang(min_available=2))
        cell.authority.stop()
        await cell.lead()
        first, second = (cell.item(cell.get_replica(f"ring-{i}"), f"n{i}") for i in range(2))
        refused = (await cell.authority.reserve(WHO, ReserveRequest((first,)))).results[0]
        assert refused.reason == Reason.GANG_INCOMPLETE, "a single member is released"
        again = cell.item(cell.get_replica("ring-0"), "n0")
        answers = (await cell.authority.reserve(WHO, ReserveRequest((again, second)))).results
        assert [a.result for a in answers] == [PlacementOutcome.ACCEPTED] * 2
        assert len(region.bound()) == 2
        cell.authority.stop()
        await cell.lead(run=True)
        assert len(region.bound()) == 2

    in_region(test)
