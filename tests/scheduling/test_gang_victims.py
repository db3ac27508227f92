"""A gang among the victims of a preemption: it keeps its minimum, or it leaves as a whole and all its members count."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import factories
from tests.authority.cell import TENANT
from tests.controllers.virtual import until
from tests.insight.test_replay import assert_all_replay
from tests.scheduling.test_preemption import assigned, nodes, planned, request, waiting
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.model.assignment import Assignment
from holdfast.model.binding import (
    Binding,
    BindingSpec,
    Intent,
    Reservation,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.placement_api import ReleaseAction
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, Phase, Replica, TrafficBlock
from holdfast.model.template import Template
from holdfast.model.workload import Gang
from holdfast.model.writes import SetStatus
from holdfast.scheduling.eviction import preempted, release
from holdfast.scheduling.plan import RequestPlan


def bound(name: str, node: int, cpu: int = 4, *, gang_min: int = 0, **fields: Any) -> Binding:
    spec = BindingSpec(
        replica=name,
        intent=Intent(replica_uid=name, template_hash="h", attempt=1),
        node=f"n{node}",
        template=Template(command=("x",)),
        workload=name.rpartition("-")[0],
        resources={"cpu": str(cpu)},
        max_unavailable=fields.pop("max_unavailable", 100),
        gang_min=gang_min,
        **fields,
    )
    return Binding(metadata=factories.meta(f"{name}.1", "acme"), spec=spec)


def outcome(there: list[Binding], cpu: int = 4, *, count: int = 4, evictions: int = 1000, **spec: Any) -> RequestPlan:
    return planned(nodes(count), there, request(cpu, **spec), evictions=evictions).request_plans[0]


def victims(made: RequestPlan) -> list[str]:
    return sorted(victim for proposal in made.proposals for victim in proposal.victims)


def test_single_replica_is_evicted_before_a_gang_that_would_break() -> None:
    ring = [bound(f"ring-{n}", n, gang_min=3) for n in range(3)]
    made = outcome([*ring, bound("low-0", 3, priority=4)])
    assert (victims(made), made.evictions) == (["acme/low-0.1"], 1)


def test_two_replicas_are_evicted_before_a_gang_of_three() -> None:
    ring = [bound("ring-0", 0, 2, gang_min=3), bound("ring-1", 1, gang_min=3), bound("ring-2", 2, gang_min=3)]
    low = [bound("low-0", 0, 1), bound("low-1", 0, 1)]
    made = outcome([*ring, *low], cpu=2, count=3)
    assert (victims(made), made.evictions) == (["acme/low-0.1", "acme/low-1.1"], 2)


def test_gang_above_its_minimum_loses_one_member() -> None:
    made = outcome([bound(f"ring-{n}", n, gang_min=2) for n in range(3)], count=3)
    assert len(victims(made)) == made.evictions == 1


def test_broken_gang_counts_as_a_whole_against_the_evictions_left() -> None:
    ring = [bound(f"ring-{n}", n, gang_min=3) for n in range(3)]
    made = outcome(ring, count=3, evictions=3)
    assert (len(victims(made)), made.evictions) == (1, 3)
    refused = outcome(ring, count=3, evictions=2)
    assert not refused.proposals
    assert refused.refusals[-1].reason == Reason.NO_VICTIMS


def test_gang_with_a_member_that_may_not_leave_is_not_broken() -> None:
    stronger = [bound("ring-0", 0, gang_min=2), bound("ring-1", 1, gang_min=2, priority=9)]
    assert not outcome(stronger, count=2).proposals
    budget = [bound(f"ring-{n}", n, gang_min=2, max_unavailable=1) for n in range(2)]
    assert not outcome(budget, count=2).proposals, "the budget of one does not cover the gang of two"


def test_second_victim_of_a_gang_that_is_broken_already_costs_nothing_more() -> None:
    ring = [bound(f"ring-{n}", n, gang_min=3) for n in range(3)]
    made = outcome(ring, count=3, replicas=2, evictions=4)
    assert (len(victims(made)), made.evictions) == (2, 3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_preemption_leaves_no_gang_below_its_minimum_uncounted(data: st.DataObject) -> None:
    there: list[Binding] = []
    for number in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.integers(1, 4))
        minimum = data.draw(st.sampled_from([0, 1, size, size]))
        there += [
            bound(f"g{number}-{n}", data.draw(st.integers(0, 2)), data.draw(st.integers(1, 2)), gang_min=minimum)
            for n in range(size)
        ]
    left = data.draw(st.integers(1, 6))
    made = outcome(there, data.draw(st.integers(1, 5)), count=3, evictions=left, replicas=data.draw(st.integers(1, 3)))
    named = set(victims(made))
    gone = set(named)
    for workload in {b.spec.workload for b in there}:
        members = {f"acme/{b.metadata.name}" for b in there if b.spec.workload == workload}
        minimum = next(b.spec.gang_min for b in there if b.spec.workload == workload)
        if members & named and len(members - named) < minimum:
            gone |= members
    assert len(gone) <= made.evictions <= left


# The rest of the gang leaves


def ring_of(count: int, minimum: int, serving: int = 0) -> tuple[Assignment, list[Replica]]:
    source = factories.assignment()
    source = msgspec.structs.replace(
        source, spec=msgspec.structs.replace(source.spec, gang=Gang(min_available=minimum), replicas=count)
    )
    made = []
    for number in range(count):
        name = factories.replica(number, source).metadata.name
        status = factories.serving_status(name=name) if number < serving else factories.bound_status(name=name)
        made.append(factories.replica(number, source, status=status))
    return source, made


def nomination(*named: Replica) -> Reservation:
    names = tuple(f"{r.metadata.namespace}/{r.status.placement.binding}" for r in named)
    intent = Intent(replica_uid="hi", template_hash="h", attempt=1)
    spec = ReservationSpec(replica="hi", intent=intent, node="n1", victims=names, priority=9)
    return Reservation(factories.meta("hi.1", "acme"), spec, ReservationStatus(phase=ReservationPhase.NOMINATED))


@pytest.mark.parametrize(("minimum", "leave"), [(3, True), (2, False)])
def test_rest_of_a_broken_gang_is_evicted_with_the_victim(minimum: int, leave: bool) -> None:
    source, ring = ring_of(3, minimum)
    item = nomination(ring[0])
    view = factories.cache_of(source, *ring, item, factories.node(), *map(factories.binding, ring))
    decided = [release.decide(member.key, view, 1.0) for member in ring]
    evicted = [write for out in decided for write in out.writes if isinstance(write, SetStatus)]
    assert len(evicted) == (3 if leave else 1)
    assert {write.blocks["release"].reason for write in evicted} == {Reason.PREEMPTED}
    woken = set(preempted.woken_by_reservation(item, None, view))
    assert woken == {member.key for member in (ring if leave else ring[:1])}


def test_gang_beyond_its_disruption_budget_stays_as_a_whole() -> None:
    """The budget of one covers the victim, but not the two members that would leave with it."""
    source, ring = ring_of(3, 3, serving=3)
    view = factories.cache_of(source, *ring, nomination(ring[0]), factories.node())
    assert [preempted.preemption_reason(member, view) for member in ring] == [None, None, None]
    source, ring = ring_of(3, 2, serving=3)
    view = factories.cache_of(source, *ring, nomination(ring[0]), factories.node())
    assert [preempted.preemption_reason(member, view) is not None for member in ring] == [True, False, False]


def test_preempted_gang_leaves_as_a_whole_and_waits_for_room_for_all() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await assigned(region, "ring", gang=Gang(min_available=3))
        await waiting(region, "ring", 3, gang=Gang(min_available=3))
        await until(lambda: len(region.bound()) == 3)
        assert {binding.spec.gang_min for binding in cell.every(Binding)} == {3}
        await assigned(region, "hi", may_preempt=True, priority=9)
        await waiting(region, "hi", 1, priority=9, may_preempt=True)
        await until(lambda: any(r.spec.victims for r in cell.every(Reservation)))
        view = factories.cache_of(*cell.every(Replica), *cell.every(Reservation), *cell.every(Assignment))
        leaving = {r.metadata.name: preempted.preemption_reason(r, view) for r in cell.every(Replica)}
        reasons = [found[2] for found in leaving.values() if found is not None]
        assert len(reasons) == 3
        assert sum("with the rest of its gang" in said for said in reasons) == 2
        for name in (name for name, found in leaving.items() if found is not None):
            replica = cell.get_replica(name)
            await cell.release(replica, ReleaseAction.STOP)
            await cell.acknowledge(replica.status.placement.binding)
            await cell.release(replica, ReleaseAction.FREE)
        await until(lambda: "hi-0" in region.bound())
        await asyncio.sleep(30.0)
        assert set(region.bound()) == {"hi-0"}, "two of three nodes are free, too few for the gang"
        await assert_all_replay(cell.objects)

    in_region(test, chores=True)


def test_nomination_that_breaks_a_gang_beyond_its_budget_is_refused() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await assigned(region, "ring", gang=Gang(min_available=2))
        await waiting(region, "ring", 2, gang=Gang(min_available=2))
        await until(lambda: len(region.bound()) == 2)
        await region.scheduler.stop()
        for number in range(2):
            now = cell.get_replica(f"ring-{number}")
            status = msgspec.structs.replace(
                now.status,
                execution=ExecutionBlock(attempt=1, phase=Phase.RUNNING, ready=True),
                traffic=TrafficBlock(serving=True, attempt=1),
            )
            await cell.put(msgspec.structs.replace(now, status=status))
        high = await cell.replica("high", priority=9, template={"resources": {"cpu": "6"}})
        where = cell.get_replica("ring-0").status.placement.node
        (refused,) = await cell.reserve(cell.item(high, where, victims=(f"{TENANT}/ring-0.1",)))
        assert refused.reason == Reason.VICTIM_NOT_ALLOWED
        assert "disruption budget of" in refused.message

    in_region(test, chores=True)
