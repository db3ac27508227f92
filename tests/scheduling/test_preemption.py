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
from tests.insight.test_replay import assert_all_replay
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
from holdfast.model.template import Port, Template
from holdfast.model.writes import SetStatus
from holdfast.scheduling.eviction import preempted, release
from holdfast.scheduling.plan import SchedulePlan, plan, requirements_of
from holdfast.scheduling.snapshot.builder import build_snapshot

VictimSpec = tuple[int, int, int, bool]
"""Node number, CPUs, priority, reclaimable."""


def binding(number: int, victim_spec: VictimSpec, *, workload: str = "", budget: int = 100) -> Binding:
    node, cpu, priority, reclaimable = victim_spec
    return Binding(
        metadata=factories.meta(f"low-{number}.1", "acme"),
        spec=BindingSpec(
            replica=f"low-{number}",
            intent=Intent(replica_uid=f"low-{number}", template_hash="h", attempt=1),
            node=f"n{node}",
            template=Template(command=("x",)),
            workload=workload or f"low-{number}",
            resources={"cpu": str(cpu)},
            priority=priority,
            max_unavailable=budget,
            capacity_class=CapacityClass.RECLAIMABLE if reclaimable else CapacityClass.FIRM,
        ),
    )


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


def planned(
    nodes: list[Node], low_priority: list[Binding], request_item: SchedulingRequest, **more: Any
) -> SchedulePlan:
    ask = requirements_of(request_item, evictions_left=more.pop("evictions", 1000))
    return plan(build_snapshot("us-east", [*nodes, *low_priority]), [ask], more.pop("rules", PolicyRules()), 0.0, 7)


def nodes(count: int, cpu: int = 4) -> list[Node]:
    return [factories.node(f"n{i}", capacity={"cpu": str(cpu), "memory": "64Gi"}) for i in range(count)]


@st.composite
def full_nodes(draw: Any) -> tuple[list[Binding], list[tuple[int, int, int, bool, str]], int, int, bool]:
    """One node full of weaker replicas: bindings, their (cpu, memory, priority, owns port 80, workload), and a request
    of cpu, memory and perhaps port 80. Each workload may lose one replica."""
    drawn = draw(
        st.lists(
            st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.sampled_from(["a", "b", "c", "d"])),
            min_size=1,
            max_size=8,
        )
    )
    port_owner = draw(st.integers(0, len(drawn) - 1))
    rows = [
        (cpu, memory, priority, n == port_owner, workload) for n, (cpu, memory, priority, workload) in enumerate(drawn)
    ]
    bindings = []
    for number, (cpu, memory, priority, owns, workload) in enumerate(rows):
        made = binding(number, (0, cpu, priority, False), workload=workload, budget=1)
        spec = msgspec.structs.replace(
            made.spec, resources={"cpu": str(cpu), "memory": f"{memory}Gi"}, ports={"http": 80} if owns else {}
        )
        bindings.append(msgspec.structs.replace(made, spec=spec))
    return bindings, rows, draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.booleans())


@settings(max_examples=300, deadline=None)
@given(full_nodes())
def test_victims_are_the_best_set_found_by_exhaustive_search(drawn: Any) -> None:
    bindings, rows, cpu, memory, wants_port = drawn
    capacity = {"cpu": str(sum(r[0] for r in rows)), "memory": f"{sum(r[1] for r in rows)}Gi"}
    item = request(cpu)
    template = msgspec.structs.replace(
        item.spec.template,
        resources={"cpu": str(cpu), "memory": f"{memory}Gi"},
        ports=(Port(name="http", port=80),) if wants_port else (),
    )
    item = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, template=template))
    made = planned([factories.node("n0", capacity=capacity)], bindings, item).request_plans[0]
    best = min(
        (
            (len(chosen), max(rows[i][2] for i in chosen), sum(rows[i][2] for i in chosen))
            for size in range(1, len(rows) + 1)
            for chosen in combinations(range(len(rows)), size)
            if sum(rows[i][0] for i in chosen) >= cpu
            and sum(rows[i][1] for i in chosen) >= memory
            and (not wants_port or any(rows[i][3] for i in chosen))
            and len({rows[i][4] for i in chosen}) == len(chosen)
        ),
        default=None,
    )
    if best is None:
        assert not made.proposals
        return
    priority = {f"acme/low-{n}.1": row[2] for n, row in enumerate(rows)}
    victims = [priority[name] for name in made.proposals[0].victims]
    assert (len(victims), max(victims), sum(victims)) == best


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=33, max_size=45), st.integers(8, 20))
def test_fewest_victims_are_found_among_more_than_32_replicas(drawn: list[tuple[int, int]], cpu: int) -> None:
    """One replica in nine is large; the others are small. The fewest victims are those of an exhaustive search."""
    sizes = [(size if large == 9 else 1) for size, large in drawn]
    bindings = [binding(n, (0, size, 0, False)) for n, size in enumerate(sizes)]
    made = planned([factories.node("n0", capacity={"cpu": str(sum(sizes)), "memory": "1Gi"})], bindings, request(cpu))
    freed, fewest = 0, 0
    for size in sorted(sizes, reverse=True):
        if freed >= cpu:
            break
        freed, fewest = freed + size, fewest + 1
    proposals = made.request_plans[0].proposals
    assert [len(p.victims) for p in proposals] == ([fewest] if fewest <= 16 else [])


def test_victims_are_found_behind_many_nodes_without_a_sufficient_set() -> None:
    """On 100 nodes the port belongs to stronger work. The only possible victims are on the last, larger-bound node."""
    cluster = nodes(101, 4)
    bindings = []
    for number in range(100):
        weak = binding(number, (number, 3, 0, False))
        strong = binding(1000 + number, (number, 1, 9, False))
        spec = msgspec.structs.replace(strong.spec, ports={"http": 80})
        bindings += [weak, msgspec.structs.replace(strong, spec=spec)]
    bindings += [binding(2000 + n, (100, 1, 1, False)) for n in range(4)]
    item = request(2)
    template = msgspec.structs.replace(item.spec.template, ports=(Port(name="http", port=80),))
    item = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, template=template))
    (proposal,) = planned(cluster, bindings, item).request_plans[0].proposals
    assert proposal.node == "n100" and len(proposal.victims) == 2


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 7), st.booleans()), min_size=1, max_size=9),
    st.integers(1, 6),
)
def test_preemption_victims_are_cheapest_sufficient_set(drawn: list[VictimSpec], cpu: int) -> None:
    free_cpu = {i: 6 for i in range(3)}
    low_priority = []
    for victim_spec in drawn:
        if free_cpu[victim_spec[0]] >= victim_spec[1]:
            free_cpu[victim_spec[0]] -= victim_spec[1]
            low_priority.append(victim_spec)
    made = planned(
        nodes(3, 6), [binding(i, victim_spec) for i, victim_spec in enumerate(low_priority)], request(cpu)
    ).request_plans[0]
    best: tuple[int, int, int] | None = None
    for node, free in free_cpu.items():
        if free >= cpu:
            best = (0, 0, 0)
            break
        weaker = [i for i, victim_spec in enumerate(low_priority) if victim_spec[0] == node and victim_spec[2] < 5]
        for size in range(1, len(weaker) + 1):
            for chosen in combinations(weaker, size):
                firm_room = 6 - sum(
                    victim_spec[1]
                    for i, victim_spec in enumerate(low_priority)
                    if victim_spec[0] == node and not victim_spec[3]
                )
                firm_room += sum(low_priority[i][1] for i in chosen if not low_priority[i][3])
                if free + sum(low_priority[i][1] for i in chosen) >= cpu and firm_room >= cpu:
                    priorities = [low_priority[i][2] for i in chosen]
                    cost = (size, max(priorities), sum(priorities))
                    best = cost if best is None else min(best, cost)
    if best is None:
        assert made.unplaced
        assert Reason.NO_VICTIMS in [r.reason for r in made.refusals]
        return
    (proposal,) = made.proposals
    priorities = [low_priority[int(v.removeprefix("acme/low-").removesuffix(".1"))][2] for v in proposal.victims]
    assert (len(priorities), max(priorities, default=0), sum(priorities)) == best


LOANED = [binding(i, (i, 4, 9, True)) for i in range(3)]
NO_PREEMPTION = PolicyRules(preemption=PreemptionRules(enabled=False))


@pytest.mark.parametrize("may_preempt", [False, True])
@pytest.mark.parametrize("evictions", [0, 1000])
@pytest.mark.parametrize("rules", [PolicyRules(), NO_PREEMPTION])
def test_recovery_reclaims_reclaimable_work_despite_preemption_limits(
    may_preempt: bool, evictions: int, rules: PolicyRules
) -> None:
    """No priority, policy or tenant budget applies: recovery objectives rely on this capacity."""
    request_item = request(4, replicas=3, purpose=Purpose.RECOVERY, may_preempt=may_preempt)
    made = planned(nodes(3), LOANED, request_item, rules=rules, evictions=evictions).request_plans[0]
    assert sorted(v for p in made.proposals for v in p.victims) == [f"acme/low-{i}.1" for i in range(3)]
    assert made.evictions == 0, "reclaiming does not use the tenant's eviction budget"
    ordinary = request(4, replicas=3, may_preempt=may_preempt)
    assert planned(nodes(3), LOANED, ordinary, rules=rules, evictions=evictions).request_plans[0].unplaced


class VictimReleaser:
    """Acts as `release` and the agents for every nominated victim."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.preemptions: list[tuple[str, str]] = []

    async def release_victims(self) -> None:
        cell = self.region.cell
        while True:
            await asyncio.sleep(0.2)
            view = factories.cache_of(*cell.every(Replica), *cell.every(Reservation))
            for replica in cell.every(Replica):
                eviction_reason = preempted.preemption_reason(replica, view)
                bound = cell.binding(replica.status.placement.binding) if eviction_reason is not None else None
                if eviction_reason is None or bound is None:
                    continue
                self.preemptions.append((replica.metadata.name, eviction_reason[2]))
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
        releaser = VictimReleaser(region)
        task = asyncio.create_task(releaser.release_victims())
        await assigned(region, "hi", may_preempt=True, priority=9)
        await waiting(region, "hi", 1, priority=9, may_preempt=True)
        await until(lambda: any(r.spec.victims for r in cell.every(Reservation)))
        (nominated_claim,) = [r for r in cell.every(Reservation) if r.spec.victims]
        assert nominated_claim.status.phase is ReservationPhase.NOMINATED
        (victim,) = nominated_claim.spec.victims
        assert victim in {f"{TENANT}/{name}.1" for name in region.bound()}, "the victim still runs"
        await until(lambda: "hi-0" in region.bound())
        assert len(region.bound()) == 3
        name, said = releaser.preemptions[0]
        assert f"{TENANT}/{name}.1" == victim
        assert f"by {TENANT}/hi-0 (priority 9" in said
        decisions = [d for d in cell.every(Decision) if d.spec.workload == "hi"]
        assert decisions[0].spec.entries[0].victims == (victim,)
        assert decisions[0].spec.entries[0].reason == Reason.WAITING_FOR_VICTIMS
        await assert_all_replay(cell.objects)
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
        victim_spec = [await cell.replica(f"web-{i}", template={"resources": {"cpu": "6"}}) for i in range(2)]
        for number, replica in enumerate(victim_spec):
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
    low_priority = [binding(0, (0, 4, 1, False)), binding(1, (1, 4, 2, False))]
    request_item = requirements_of(request(4), evictions_left=100)
    snapshot = build_snapshot("us-east", [*nodes(2), *low_priority])
    first = plan(snapshot, [request_item], PolicyRules(), 0.0, 7).request_plans[0].proposals[0]
    assert first.victims == ("acme/low-0.1",), "the lower priority"
    spared = msgspec.structs.replace(request_item, excluded_victims=("acme/low-0.1", "acme/long-gone.1"))
    other = plan(snapshot, [spared], PolicyRules(), 0.0, 7).request_plans[0].proposals[0]
    assert other.victims == ("acme/low-1.1",)
    none = msgspec.structs.replace(request_item, excluded_victims=("acme/low-0.1", "acme/low-1.1"))
    assert plan(snapshot, [none], PolicyRules(), 0.0, 7).request_plans[0].unplaced


@pytest.mark.parametrize("serves", [0, 1])
def test_preemption_of_two_siblings_chooses_the_one_not_serving(serves: int) -> None:
    """One of two siblings serves, so only the other may be evicted, whatever the tie-break."""

    async def test(region: Region) -> None:
        cell = region.cell
        for number in range(2):
            victim_spec = await cell.replica(f"web-{number}", template={"resources": {"cpu": "6"}})
            await cell.reserve(cell.item(victim_spec, f"n{number}"))
            ran = ExecutionBlock(attempt=1, phase=Phase.RUNNING, ready=True)
            now = cell.get_replica(f"web-{number}")
            traffic = TrafficBlock(serving=number == serves, attempt=1)
            status = msgspec.structs.replace(now.status, execution=ran, traffic=traffic)
            await cell.put(msgspec.structs.replace(now, status=status))
        await until(lambda: len(region.informers.cache.list(Binding)) == 2)
        await assigned(region, "hi", may_preempt=True, priority=9)
        await waiting(region, "hi", 1, priority=9, may_preempt=True)
        await until(lambda: any(r.spec.victims for r in cell.every(Reservation)), within_s=10)
        (nominated_claim,) = [r for r in cell.every(Reservation) if r.spec.victims]
        assert nominated_claim.spec.victims == (f"{TENANT}/web-{1 - serves}.1",)
        await assert_all_replay(cell.objects)

    in_region(test, nodes=2, chores=True)
