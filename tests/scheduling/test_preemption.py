"""Preemption: victim choice against brute force, and the complete flow with a real authority."""

from __future__ import annotations

import asyncio
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import factories
from tests.authority.cell import TENANT
from tests.controllers.virtual import until
from tests.scheduling.test_replay import all_the_same
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.model.assignment import Assignment, AssignmentSpec, Purpose
from holdfast.model.binding import (
    Binding,
    BindingSpec,
    CapacityClass,
    DesiredRunState,
    Intent,
    Reservation,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.decision import Decision
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Node
from holdfast.model.placement_api import ReleaseAction
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, Phase, Replica, TrafficBlock
from holdfast.model.scheduler_policy import PolicyRules, PreemptionRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.model.writes import SetStatus
from holdfast.scheduling.eviction import preempted, release
from holdfast.scheduling.plan import SchedulePlan, plan, requirements_of
from holdfast.scheduling.snapshot.builder import build_snapshot

Low = tuple[int, int, int, bool]
"""Node number, CPUs, priority, reclaimable."""


def binding(number: int, low: Low, *, workload: str = "", budget: int = 100) -> Binding:
    node, cpu, priority, reclaimable = low
    return Binding(
        metadata=factories.meta(f"low-{number}.1", "acme"),
        spec=BindingSpec(
            replica=f"low-{number}", intent=Intent(replica_uid=f"low-{number}", template_hash="h", attempt=1),
            node=f"n{node}", template=Template(command=("x",)), workload=workload or f"low-{number}",
            resources={"cpu": str(cpu)}, priority=priority, max_unavailable=budget,
            capacity_class=CapacityClass.RECLAIMABLE if reclaimable else CapacityClass.FIRM,
        ),
    )  # fmt: skip


def request(cpu: int, *, priority: int = 5, replicas: int = 1, **spec: Any) -> SchedulingRequest:
    template = Template(command=("x",), resources={"cpu": str(cpu)})
    members = tuple(RequestMember(f"hi-{i}", f"hi-{i}") for i in range(replicas))
    given_spec = {"may_preempt": True, "priority": priority, **spec}
    return SchedulingRequest(
        metadata=factories.meta("hi", "acme"),
        spec=SchedulingRequestSpec(
            workload="hi", assignment="hi", revision="1", template=template, members=members, **given_spec
        ),
    )


def planned(nodes: list[Node], lows: list[Binding], asked: SchedulingRequest, **more: Any) -> SchedulePlan:
    ask = requirements_of(asked, evictions_left=more.pop("evictions", 1000))
    return plan(build_snapshot("us-east", [*nodes, *lows]), [ask], more.pop("rules", PolicyRules()), 0.0, 7)


def nodes(count: int, cpu: int = 4) -> list[Node]:
    return [factories.node(f"n{i}", capacity={"cpu": str(cpu), "memory": "64Gi"}) for i in range(count)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 7), st.booleans()), min_size=1, max_size=9),
    st.integers(1, 6),
)
def test_preemption_victims_are_cheapest_sufficient_set(drawn: list[Low], cpu: int) -> None:
    room = {i: 6 for i in range(3)}
    lows = []
    for low in drawn:
        if room[low[0]] >= low[1]:
            room[low[0]] -= low[1]
            lows.append(low)
    made = planned(nodes(3, 6), [binding(i, low) for i, low in enumerate(lows)], request(cpu)).request_plans[0]
    best: tuple[int, int, int] | None = None
    for node, free in room.items():
        if free >= cpu:
            best = (0, 0, 0)
            break
        weaker = [i for i, low in enumerate(lows) if low[0] == node and low[2] < 5]
        for size in range(1, len(weaker) + 1):
            for chosen in combinations(weaker, size):
                firm_room = 6 - sum(low[1] for i, low in enumerate(lows) if low[0] == node and not low[3])
                firm_room += sum(lows[i][1] for i in chosen if not lows[i][3])
                if free + sum(lows[i][1] for i in chosen) >= cpu and firm_room >= cpu:
                    priorities = [lows[i][2] for i in chosen]
                    cost = (size, max(priorities), sum(priorities))
                    best = cost if best is None else min(best, cost)
    if best is None:
        assert made.unplaced
        assert Reason.NO_VICTIMS in [r.reason for r in made.refusals]
        return
    (proposal,) = made.proposals
    priorities = [lows[int(v.removeprefix("acme/low-").removesuffix(".1"))][2] for v in proposal.victims]
    assert (len(priorities), max(priorities, default=0), sum(priorities)) == best


def test_equal_or_higher_priority_is_never_a_victim() -> None:
    lows = [binding(0, (0, 4, 5, False))]
    assert planned(nodes(1), lows, request(4)).request_plans[0].unplaced
    assert planned(nodes(1), lows, request(4, priority=6)).request_plans[0].proposals[0].victims == ("acme/low-0.1",)


def test_request_without_preemption_right_is_unplaced() -> None:
    lows = [binding(0, (0, 4, 0, False))]
    assert planned(nodes(1), lows, request(4, may_preempt=False)).request_plans[0].unplaced
    off = PolicyRules(preemption=PreemptionRules(enabled=False))
    assert planned(nodes(1), lows, request(4), rules=off).request_plans[0].unplaced


def test_disruption_budget_limits_firm_but_not_reclaimable_victims() -> None:
    firm = [binding(i, (i, 4, 0, False), workload="web", budget=1) for i in range(3)]
    made = planned(nodes(3), firm, request(4, replicas=3)).request_plans[0]
    assert len(made.proposals) == 1
    loose = [binding(i, (i, 4, 0, True), workload="web", budget=1) for i in range(3)]
    assert len(planned(nodes(3), loose, request(4, replicas=3)).request_plans[0].proposals) == 3


LOANED = [binding(i, (i, 4, 9, True)) for i in range(3)]
NO_PREEMPTION = PolicyRules(preemption=PreemptionRules(enabled=False))


@pytest.mark.parametrize("may_preempt", [False, True])
@pytest.mark.parametrize("evictions", [0, 1000])
@pytest.mark.parametrize("rules", [PolicyRules(), NO_PREEMPTION])
def test_recovery_reclaims_reclaimable_work_despite_preemption_limits(
    may_preempt: bool, evictions: int, rules: PolicyRules
) -> None:
    """No priority, policy or tenant budget applies: recovery objectives rely on this capacity."""
    asked = request(4, replicas=3, purpose=Purpose.RECOVERY, may_preempt=may_preempt)
    made = planned(nodes(3), LOANED, asked, rules=rules, evictions=evictions).request_plans[0]
    assert sorted(v for p in made.proposals for v in p.victims) == [f"acme/low-{i}.1" for i in range(3)]
    assert made.evictions == 0, "reclaiming does not use the tenant's eviction budget"
    ordinary = request(4, replicas=3, may_preempt=may_preempt)
    assert planned(nodes(3), LOANED, ordinary, rules=rules, evictions=evictions).request_plans[0].unplaced


def test_recovery_reclaims_before_preempting_firm_work() -> None:
    lows = [binding(0, (0, 4, 0, False)), binding(1, (1, 2, 7, True)), binding(2, (1, 2, 7, True))]
    asked = request(4, purpose=Purpose.RECOVERY)
    (proposal,) = planned(nodes(2), lows, asked).request_plans[0].proposals
    assert proposal.victims == ("acme/low-1.1", "acme/low-2.1"), "two reclaimable victims precede a firm one"
    firm = lows[:1]
    made = planned(nodes(1), firm, asked).request_plans[0]
    assert made.proposals[0].victims == ("acme/low-0.1",) and made.evictions == 1
    unarmed = planned(nodes(1), firm, request(4, purpose=Purpose.RECOVERY, may_preempt=False)).request_plans[0]
    assert unarmed.unplaced and "evicting reclaimable replicas would not free" in unarmed.refusals[-1].message


def test_preemption_beyond_eviction_budget_is_refused() -> None:
    lows = [binding(i, (i, 4, 0, True)) for i in range(3)]
    made = planned(nodes(3), lows, request(4, replicas=3), evictions=2).request_plans[0]
    assert len(made.proposals) == 2
    assert made.refusals[-1].reason == Reason.PREEMPTION_BUDGET_SPENT


def test_cordoned_node_has_no_preemption_victims() -> None:
    lows = [binding(0, (0, 4, 0, False))]
    cordoned = factories.node("n0", capacity={"cpu": "4", "memory": "64Gi"}, unschedulable=True)
    assert planned([cordoned], lows, request(4)).request_plans[0].unplaced


def test_two_preemptors_on_one_node_get_different_victims() -> None:
    lows = [binding(i, (0, 2, 0, False)) for i in range(2)]
    made = planned(nodes(1), lows, request(2, replicas=2)).request_plans[0]
    assert sorted(v for p in made.proposals for v in p.victims) == ["acme/low-0.1", "acme/low-1.1"]
    assert planned(nodes(1), lows, request(2, replicas=3)).request_plans[0].unplaced


class Helpful:
    """Acts as `release` and the agents for every nominated victim."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.told: list[tuple[str, str]] = []

    async def live(self) -> None:
        cell = self.region.cell
        while True:
            await asyncio.sleep(0.2)
            view = factories.cache_of(*cell.every(Replica), *cell.every(Reservation))
            for replica in cell.every(Replica):
                why = preempted.preemption_reason(replica, view)
                bound = cell.binding(replica.status.placement.binding) if why is not None else None
                if why is None or bound is None:
                    continue
                self.told.append((replica.metadata.name, why[2]))
                if bound.spec.desired is not DesiredRunState.STOP:
                    await cell.release(replica, ReleaseAction.STOP)
                await asyncio.sleep(1.0)
                await cell.acknowledge(replica.status.placement.binding)
                await cell.release(replica, ReleaseAction.FREE)


async def assigned(region: Region, name: str, **spec: Any) -> None:
    item = AssignmentSpec(workload=name, workload_uid=name, region="us-east", revision="1", template=Template(), **spec)
    await region.cell.put(Assignment(ObjectMeta(name=name, namespace=TENANT, generation=1), item))


async def waiting(region: Region, name: str, count: int, *, cpu: str = "6", **spec: Any) -> None:
    """Creates replicas of a workload and their request, as replicate does."""
    own = {k: spec[k] for k in ("priority",) if k in spec}
    replicas = []
    for i in range(count):
        made = await region.cell.replica(f"{name}-{i}", template={"resources": {"cpu": cpu}}, **own)
        item = msgspec.structs.replace(made.spec, workload=name, assignment=name)
        await region.cell.put(msgspec.structs.replace(made, spec=item))
        replicas.append(region.cell.get_replica(f"{name}-{i}"))
    members = tuple(RequestMember(r.metadata.name, r.uid) for r in replicas)
    meta = ObjectMeta(name=name, namespace=TENANT, generation=1, creation_timestamp="2026-01-01T00:00:00Z")
    await region.cell.put(
        SchedulingRequest(
            meta,
            SchedulingRequestSpec(
                workload=name,
                assignment=name,
                revision="1",
                template=replicas[0].spec.template,
                members=members,
                **spec,
            ),
        )
    )


def test_preemption_nominates_evicts_and_binds_preemptor() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await waiting(region, "low", 3)
        await until(lambda: len(region.bound()) == 3)
        helpful = Helpful(region)
        task = asyncio.create_task(helpful.live())
        await assigned(region, "hi", may_preempt=True, priority=9)
        await waiting(region, "hi", 1, priority=9, may_preempt=True)
        await until(lambda: any(r.spec.victims for r in cell.every(Reservation)))
        (held,) = [r for r in cell.every(Reservation) if r.spec.victims]
        assert held.status.phase is ReservationPhase.NOMINATED
        (victim,) = held.spec.victims
        assert victim in {f"{TENANT}/{name}.1" for name in region.bound()}, "the victim still runs"
        await until(lambda: "hi-0" in region.bound())
        assert len(region.bound()) == 3
        name, said = helpful.told[0]
        assert f"{TENANT}/{name}.1" == victim
        assert f"by {TENANT}/hi-0 (priority 9" in said
        decisions = [d for d in cell.every(Decision) if d.spec.workload == "hi"]
        assert decisions[0].spec.entries[0].victims == (victim,)
        assert decisions[0].spec.entries[0].reason == Reason.WAITING_FOR_VICTIMS
        await all_the_same(cell.objects)
        task.cancel()

    in_region(test, chores=True)


def test_victims_of_nomination_beyond_budget_all_stay() -> None:
    def serving(ordinal: int) -> Replica:
        name = factories.replica(ordinal).metadata.name
        return factories.replica(ordinal, status=factories.serving_status(name=name))

    def nomination(*victims: str) -> Reservation:
        intent = Intent(replica_uid="hi", template_hash="h", attempt=1)
        spec = ReservationSpec(replica="hi", intent=intent, node="n1", victims=victims, priority=9)
        return Reservation(factories.meta("hi.1", "acme"), spec, ReservationStatus(phase=ReservationPhase.NOMINATED))

    web = [serving(i) for i in range(3)]
    names = tuple(f"{r.metadata.namespace}/{r.status.placement.binding}" for r in web[:2])
    item = nomination(*names)
    view = factories.cache_of(*web, item)
    assert preempted.nomination_of(web[0], view) is not None
    assert preempted.preemption_reason(web[0], view) is None, "two of three victims exceed the budget of one"
    one = nomination(names[0])
    found = preempted.preemption_reason(web[0], factories.cache_of(*web, one))
    assert found is not None and found[0] is Reason.PREEMPTED


@pytest.mark.parametrize("reclaimable", [False, True])
def test_release_of_not_serving_victim_requires_its_observed_revision(reclaimable: bool) -> None:
    """A firm victim may start to serve, and then its budget applies. A reclaimable victim is evicted in any case."""
    web = factories.replica(0, status=factories.bound_status(name=factories.replica(0).metadata.name))
    web = factories.with_new_revision(web, spec=msgspec.structs.replace(web.spec, reclaimable=reclaimable))
    intent = Intent(replica_uid="hi", template_hash="h", attempt=1)
    victims = (f"acme/{web.status.placement.binding}",)
    spec = ReservationSpec(replica="hi", intent=intent, node="n1", victims=victims, priority=9)
    item = Reservation(factories.meta("hi.1", "acme"), spec, ReservationStatus(phase=ReservationPhase.NOMINATED))
    (write,) = release.decide(
        web.key, factories.cache_of(web, factories.binding(web), factories.node(), item), 1.0
    ).writes
    assert isinstance(write, SetStatus) and write.blocks["release"].reason == Reason.PREEMPTED
    assert write.if_revision == (0 if reclaimable else web.revision)


@pytest.mark.parametrize(("part", "goes"), [(None, True), (0, False), (1, True)])
def test_victim_is_evicted_only_within_disruption_share(part: int | None, goes: bool) -> None:
    """The budget covers all regions: a drain elsewhere and a preemption here share it."""
    source = factories.assignment(disruption_share=part)
    names = [factories.replica(i).metadata.name for i in range(3)]
    web = [factories.replica(i, source, status=factories.serving_status(name=names[i])) for i in range(3)]
    intent = Intent(replica_uid="hi", template_hash="h", attempt=1)
    victims = (f"acme/{web[0].status.placement.binding}",)
    spec = ReservationSpec(replica="hi", intent=intent, node="n1", victims=victims, priority=9)
    item = Reservation(factories.meta("hi.1", "acme"), spec, ReservationStatus(phase=ReservationPhase.NOMINATED))
    view = factories.cache_of(source, *web, item)
    assert (preempted.preemption_reason(web[0], view) is not None) is goes
    assert preempted.blocked_preemptions(web, view) == (0 if goes else 1), "the blocked eviction is reported"


def test_nomination_beyond_disruption_budget_is_refused_and_reserves_nothing() -> None:
    async def test(region: Region) -> None:
        cell = region.cell
        await region.scheduler.stop()
        low = [await cell.replica(f"web-{i}", template={"resources": {"cpu": "6"}}) for i in range(2)]
        for number, replica in enumerate(low):
            await cell.reserve(cell.item(replica, f"n{number}"))
            ran = ExecutionBlock(attempt=1, phase=Phase.RUNNING, ready=True)
            now = cell.get_replica(f"web-{number}")
            status = msgspec.structs.replace(
                now.status, execution=ran, traffic=TrafficBlock(serving=number == 0, attempt=1)
            )
            await cell.put(msgspec.structs.replace(now, status=status))
        high = await cell.replica("high", priority=9, template={"resources": {"cpu": "6"}})
        (refused,) = await cell.reserve(cell.item(high, "n0", victims=("web-0.1",)))
        assert refused.reason == Reason.VICTIM_NOT_ALLOWED
        assert "disruption budget of" in refused.message
        assert not [r for r in cell.every(Reservation) if r.spec.victims]
        (taken,) = await cell.reserve(cell.item(high, "n1", victims=("web-1.1",)))
        assert taken.reason == Reason.WAITING_FOR_VICTIMS, "a replica that does not serve may be evicted"

    in_region(test, chores=True)


@pytest.mark.parametrize("serves", [0, 1])
def test_nomination_refusal_names_victim_blocked_by_budget(serves: int) -> None:
    """Of two victims only the serving one is blocked. Naming the other would exclude it without need."""

    async def test(region: Region) -> None:
        cell = region.cell
        await region.scheduler.stop()
        for number in range(2):
            replica = await cell.replica(f"web-{number}", template={"resources": {"cpu": "3"}})
            await cell.reserve(cell.item(replica, "n0"))
            ran = ExecutionBlock(attempt=1, phase=Phase.RUNNING, ready=True)
            now = cell.get_replica(f"web-{number}")
            traffic = TrafficBlock(serving=number == serves, attempt=1)
            await cell.put(
                msgspec.structs.replace(now, status=msgspec.structs.replace(now.status, execution=ran, traffic=traffic))
            )
        high = await cell.replica("high", priority=9, template={"resources": {"cpu": "6"}})
        (refused,) = await cell.reserve(cell.item(high, "n0", victims=("web-0.1", "web-1.1")))
        assert refused.reason == Reason.VICTIM_NOT_ALLOWED
        assert refused.facts["victim"] == f"web-{serves}.1"

    in_region(test, chores=True)


def test_excluded_victims_are_not_nominated() -> None:
    lows = [binding(0, (0, 4, 1, False)), binding(1, (1, 4, 2, False))]
    asked = requirements_of(request(4), evictions_left=100)
    snapshot = build_snapshot("us-east", [*nodes(2), *lows])
    first = plan(snapshot, [asked], PolicyRules(), 0.0, 7).request_plans[0].proposals[0]
    assert first.victims == ("acme/low-0.1",), "the lower priority"
    spared = msgspec.structs.replace(asked, excluded_victims=("acme/low-0.1", "acme/long-gone.1"))
    other = plan(snapshot, [spared], PolicyRules(), 0.0, 7).request_plans[0].proposals[0]
    assert other.victims == ("acme/low-1.1",)
    none = msgspec.structs.replace(asked, excluded_victims=("acme/low-0.1", "acme/low-1.1"))
    assert plan(snapshot, [none], PolicyRules(), 0.0, 7).request_plans[0].unplaced


@pytest.mark.parametrize("serves", [0, 1])
def test_preemption_of_two_siblings_chooses_the_one_not_serving(serves: int) -> None:
    """One of two siblings serves, so only the other may be evicted, whatever the tie-break."""

    async def test(region: Region) -> None:
        cell = region.cell
        for number in range(2):
            low = await cell.replica(f"web-{number}", template={"resources": {"cpu": "6"}})
            await cell.reserve(cell.item(low, f"n{number}"))
            ran = ExecutionBlock(attempt=1, phase=Phase.RUNNING, ready=True)
            now = cell.get_replica(f"web-{number}")
            traffic = TrafficBlock(serving=number == serves, attempt=1)
            status = msgspec.structs.replace(now.status, execution=ran, traffic=traffic)
            await cell.put(msgspec.structs.replace(now, status=status))
        await until(lambda: len(region.informers.cache.list(Binding)) == 2)
        await assigned(region, "hi", may_preempt=True, priority=9)
        await waiting(region, "hi", 1, priority=9, may_preempt=True)
        await until(lambda: any(r.spec.victims for r in cell.every(Reservation)), within_s=10)
        (held,) = [r for r in cell.every(Reservation) if r.spec.victims]
        assert held.spec.victims == (f"{TENANT}/web-{1 - serves}.1",)
        await all_the_same(cell.objects)

    in_region(test, nodes=2, chores=True)
