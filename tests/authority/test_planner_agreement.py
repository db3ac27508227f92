"""Validation, planner and authority agree, over random worlds.

- Whatever validation accepts and the planner places, the authority accepts on unchanged state.
- Whatever validation accepts can be placed on some node. If no node could ever take it, validation refuses it.
"""

from __future__ import annotations

import asyncio
import random
from itertools import product
from typing import Any

import msgspec
import pytest
from tests import factories
from tests.authority.cell import TENANT, Cell

from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.binding import Binding, BindingSpec, Intent, Reservation
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Device, Node
from holdfast.model.placement_api import PlacementOutcome, ReleaseAction, ReserveItem
from holdfast.model.placement_rules import (
    AffinityRule,
    Expression,
    NodeTerm,
    Operator,
    PlacementRules,
    SpreadRule,
    Taint,
    TaintEffect,
    Toleration,
    matches_expression,
)
from holdfast.model.replica import Replica, ReplicaSpec
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Port, Protocol, Template, template_hash
from holdfast.model.workload import Gang, Workload, WorkloadSpec, validate_workload
from holdfast.scheduling.plan import Proposal, RequestPlan, plan, requirements_of
from holdfast.scheduling.snapshot.builder import build_snapshot

SEEDS = range(160)
PORTS = (0, 0, 20001, 20002, 8080)
APPS = ("db", "web", "cache")


def draw_template(rng: random.Random, app: str) -> Template:
    gpu = rng.choice((None, None, None, "300m", "1", "2", "1500m"))
    resources: dict[str, str | int | float] = {"cpu": rng.choice(("500m", "1", "2")), **({"gpu": gpu} if gpu else {})}
    ports = tuple(
        Port(f"p{n}", rng.choice(PORTS), rng.choice((Protocol.TCP, Protocol.TCP, Protocol.UDP)))
        for n in range(rng.choice((0, 0, 1, 2, 3)))
    )
    models = rng.choice(((), ("x",))) if gpu else ()
    return Template(command=("x",), resources=resources, ports=ports, gpu_models=models, labels={"app": app})


def draw_placement(rng: random.Random) -> PlacementRules:
    def some(*choices: Any) -> Any:
        return rng.choice(choices) if rng.random() < 0.5 else choices[0]

    return PlacementRules(
        zones=some((), ("a", "b")),
        node_selector=some({}, {"disk": "ssd"}),
        expressions=some(
            (),
            (Expression("rack", Operator.GT, ("3",)),),
            (Expression("rack", Operator.GT, ("3",)), Expression("rack", Operator.LT, ("4",))),
            (Expression("disk", Operator.NOT_IN, ("ssd",)),),
            (Expression("rack", Operator.GT, ("+-5",)),),
        ),
        node_terms=some(
            (),
            (NodeTerm((Expression("disk", Operator.IN, ("ssd",)),)), NodeTerm((Expression("rack", Operator.EXISTS),))),
        ),
        tolerations=some((), (Toleration(key="dirty", exists=True),)),
        spread=some(
            (),
            (SpreadRule(topology="zone"),),
            (SpreadRule(topology="node"),),
            (SpreadRule(max_skew=2),),
            (SpreadRule(topology=rng.choice(("rack", "disk")), max_skew=2),),
            (SpreadRule(topology=rng.choice(("zone", "node", "disk")), max_skew=2, min_domains=rng.randint(2, 4)),),
        ),
        affinity=some(
            (),
            (AffinityRule(workload_labels={"app": rng.choice(APPS)}, topology=rng.choice(("node", "zone", "disk"))),),
            (
                AffinityRule(
                    workload_labels={"app": rng.choice(APPS)}, topology=rng.choice(("node", "zone", "disk")), apart=True
                ),
            ),
            (AffinityRule(workload_labels={"app": "db"}), AffinityRule(workload_labels={"app": "db"}, apart=True)),
            (AffinityRule(expressions=(Expression("app", Operator.IN, ("db", "web")),), topology="zone"),),
            (AffinityRule(expressions=(Expression("app", Operator.NOT_IN, ("db",)),), apart=True),),
            (
                AffinityRule(
                    workload_labels={"app": rng.choice(APPS)},
                    topology=rng.choice(("node", "zone", "disk")),
                    apart=rng.random() < 0.5,
                    own_replicas=True,
                ),
            ),
        ),
    )


def draw_workload(rng: random.Random, name: str) -> Workload:
    spec = WorkloadSpec(
        replicas=rng.randint(1, 4), template=draw_template(rng, rng.choice(APPS)), placement=draw_placement(rng)
    )
    if rng.random() < 0.2:
        spec = msgspec.structs.replace(spec, gang=Gang(min_available=rng.randint(1, spec.replicas)))
    return Workload(metadata=ObjectMeta(name=name, namespace=TENANT), spec=spec)


async def draw_nodes(rng: random.Random, cell: Cell) -> None:
    for number in range(rng.randint(2, 6)):
        devices = tuple(Device(f"g{i}", model=rng.choice(("x", "y"))) for i in range(rng.choice((0, 0, 1, 3))))
        await cell.node(f"n{number}", zone=rng.choice("abc"))
        low = rng.choice((20000, 20001, 30000))
        await cell.change_node(
            f"n{number}",
            capacity={"cpu": str(rng.randint(2, 6)), "memory": "64Gi"},
            devices=devices,
            port_range=(low, low + rng.randint(0, 4)),
            taints=rng.choice(((), (), (Taint("dirty"),), (Taint("slow", effect=TaintEffect.PREFER_NO_SCHEDULE),))),
            unschedulable=rng.random() < 0.1,
        )
        node = cell.get_node(f"n{number}")
        labels = rng.choice(({}, {"disk": "ssd"}, {"disk": "hdd", "rack": "4"}, {"rack": "1_000"}))
        await cell.put(msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels)))


async def create(cell: Cell, workload: Workload, *, step: int, priority: int) -> SchedulingRequest:
    """More replicas of the workload, and their SchedulingRequest."""
    spec, name = workload.spec, workload.metadata.name
    members = []
    for number in range(spec.replicas):
        replica = f"{name}-{step}{number}"
        replica_spec = ReplicaSpec(
            workload=name,
            workload_uid=name,
            assignment=name,
            revision="1",
            template=spec.template,
            placement=spec.placement,
            priority=priority,
        )
        await cell.put(Replica(ObjectMeta(name=replica, namespace=TENANT), replica_spec))
        members.append(RequestMember(name=replica, uid=cell.get_replica(replica).uid, attempt=1))
    request = SchedulingRequestSpec(
        workload=name,
        assignment=name,
        revision="1",
        template=spec.template,
        placement=spec.placement,
        members=tuple(members),
        priority=priority,
        may_preempt=priority > 0,
        gang=spec.gang,
    )
    made = SchedulingRequest(ObjectMeta(name=name, namespace=TENANT), request)
    if spec.gang is not None:
        assigned = AssignmentSpec(
            workload=name,
            workload_uid=name,
            region="us-east",
            revision="1",
            template=spec.template,
            gang=spec.gang,
            priority=priority,
            may_preempt=priority > 0,
        )
        await cell.put(Assignment(ObjectMeta(name=name, namespace=TENANT), assigned))
        await cell.put(made)
    return made


def item_of(request: SchedulingRequest, proposal: Proposal) -> ReserveItem:
    intent = Intent(proposal.member.uid, template_hash(request.spec.template), proposal.member.attempt)
    return ReserveItem(
        TENANT, proposal.member.name, intent, proposal.node, devices=proposal.devices, victims=proposal.victims
    )


async def plan_and_reserve(
    cell: Cell, rng: random.Random, requests: list[SchedulingRequest]
) -> tuple[list[RequestPlan], list[str]]:
    """Plans the requests together and sends the proposals, one call per request or one for all. Returns refusals."""
    state = [*cell.every(Node), *cell.every(Binding), *cell.every(Reservation)]
    asks = [requirements_of(request, evictions_left=100) for request in requests]
    plans = plan(
        build_snapshot("us-east", state), asks, PolicyRules(), cell.clock.now(), rng.randint(0, 9)
    ).request_plans
    items = [[item_of(r, p) for p in made.proposals] for r, made in zip(requests, plans, strict=True)]
    if rng.random() < 0.5:
        items = [[item for some in items for item in some]]
    refused = []
    for some in items:
        answers = await cell.reserve(*some) if some else []
        refused += [
            f"{item.replica} on {item.node}: {answer.reason} {answer.message}"
            for item, answer in zip(some, answers, strict=True)
            if answer.result is not PlacementOutcome.ACCEPTED
        ]
    cell.check_ledger()
    return list(plans), refused


async def run_world(seed: int) -> tuple[int, list[str]]:
    rng = random.Random(seed)
    cell = await Cell.open()
    try:
        await cell.grant()
        await cell.lead()
        await draw_nodes(rng, cell)
        placed, refused = 0, []
        known: list[Workload] = []
        for step in range(4):
            workloads = [draw_workload(rng, f"w{step}{n}") for n in range(rng.randint(1, 4))]
            accepted = [w for w in workloads if not list(validate_workload(w, None))]
            scaled_up = [w for w in known if rng.random() < 0.5]
            known += [w for w in accepted if w.spec.gang is None]
            priority = rng.choice((0, 5)) if step else 0
            requests = [await create(cell, w, step=step, priority=priority) for w in (*scaled_up, *accepted)]
            plans, found = await plan_and_reserve(cell, rng, requests)
            placed += sum(len(p.proposals) for p in plans)
            refused += found
            for binding in cell.every(Binding):
                if rng.random() < 0.25:
                    await cell.release(cell.get_replica(binding.spec.replica), ReleaseAction.STOP)
        return placed, refused
    finally:
        await cell.close()


@pytest.mark.parametrize("part", range(4))
def test_authority_accepts_what_the_planner_places_on_unchanged_state(part: int) -> None:
    total = 0
    for seed in SEEDS[part::4]:
        placed, refused = asyncio.run(run_world(seed))
        assert not refused, (seed, refused)
        total += placed
    assert total > 100, "the worlds place too little to prove anything"


def suited_labels(rules: PlacementRules) -> dict[str, str]:
    """Labels that satisfy the rules of an accepted workload, tried out of a small universe."""
    disks, racks = (None, "ssd", "hdd", "other"), (None, *map(str, range(-9, 10)))
    for disk, rack in product(disks, racks):
        labels = {key: value for key, value in (("disk", disk), ("rack", rack)) if value is not None}
        selected = all(labels.get(key) == value for key, value in rules.node_selector.items()) and all(
            topology in ("zone", "node", *labels)
            for topology in (*(r.topology for r in rules.spread), *(r.topology for r in rules.affinity))
        )
        alternatives = [term.expressions for term in rules.node_terms] or [()]
        if selected and any(
            all(matches_expression(e, labels) for e in (*rules.expressions, *term)) for term in alternatives
        ):
            return labels
    raise AssertionError(f"no labels satisfy {rules}")


@pytest.mark.parametrize("part", range(2))
def test_accepted_workload_fits_on_nodes_made_for_it(part: int) -> None:
    """Every accepted replica is placed on some node of an empty, fitting cluster beside the neighbours it needs."""
    accepted = 0
    for seed in range(part, 600, 2):
        rng = random.Random(seed)
        workload = draw_workload(rng, "new")
        if list(validate_workload(workload, None)):
            continue
        accepted += 1
        rules, template = workload.spec.placement, workload.spec.template
        nodes = [node_for(f"n{n}", zone, rules, template) for n, zone in enumerate(("a", "a", "b", "b", "c", "c") * 2)]
        near = [dict(rule.workload_labels) or {"app": "db"} for rule in rules.affinity if not rule.apart]
        neighbours = [neighbour(f"x-{n}-{i}", f"n{n}", labels) for i, labels in enumerate(near) for n in (0, 1, 2, 3)]
        member = RequestMember(name="new-0", uid="new-0")
        spec = SchedulingRequestSpec(
            workload="new", assignment="new", revision="1", template=template, placement=rules, members=(member,)
        )
        ask = requirements_of(SchedulingRequest(ObjectMeta(name="new", namespace=TENANT), spec))
        (made,) = plan(build_snapshot("us-east", [*nodes, *neighbours]), [ask], PolicyRules(), 0.0, 1).request_plans
        assert made.proposals, (seed, workload.spec, made.refusals)
    assert 100 < accepted < 300, "some workloads must be accepted and some refused"


def node_for(name: str, zone: str, rules: PlacementRules, template: Template) -> Node:
    devices = tuple(Device(f"g{i}", model=next(iter(template.gpu_models), "y")) for i in range(4))
    made = factories.node(name, zone=zone, capacity={"cpu": "16", "memory": "64Gi"}, devices=devices)
    labels = suited_labels(rules)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels))


def neighbour(name: str, node: str, labels: dict[str, str]) -> Binding:
    spec = BindingSpec(
        replica=name,
        intent=Intent(replica_uid=name, template_hash="h", attempt=1),
        node=node,
        template=Template(labels=labels),
        workload=name,
        resources={"cpu": "1"},
    )
    return Binding(metadata=ObjectMeta(name=f"{name}.1", namespace=TENANT, uid=name), spec=spec)
