"""Preemption that removes anti-affinity and spread, against brute force over all sets of victims."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import factories
from tests.scheduling.test_plan_reference import ReferencePlanner

from holdfast.model.binding import Binding, BindingSpec, DesiredRunState, Intent
from holdfast.model.node import Node
from holdfast.model.placement_rules import AffinityRule, PlacementRules, SpreadRule
from holdfast.model.quantity import amounts
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduling.plan import RequestPlan, plan, requirements_of
from holdfast.scheduling.snapshot.builder import build_snapshot

APART_X = AffinityRule(workload_labels={"app": "x"}, apart=True)
APART_X_ZONE = msgspec.structs.replace(APART_X, topology="zone")
APART_WEB = AffinityRule(workload_labels={"app": "web"}, apart=True)
APART_WEB_ZONE = msgspec.structs.replace(APART_WEB, topology="zone")
APART_X_RACK = msgspec.structs.replace(APART_X, topology="rack")
APART_WEB_RACK = msgspec.structs.replace(APART_WEB, topology="rack")
OWN = AffinityRule(workload_labels={"app": "web"}, apart=True, own_replicas=True)


def bound(number: int, node: str, app: str, **fields: Any) -> Binding:
    spec = BindingSpec(
        replica=f"b{number}",
        intent=Intent(replica_uid=f"b{number}", template_hash="h", attempt=1),
        node=node,
        template=Template(labels={"app": app}),
        workload=app,
        resources={"cpu": fields.pop("cpu", "1")},
        max_unavailable=100,
        **fields,
    )
    return Binding(metadata=factories.meta(f"b{number}.1", "acme"), spec=spec)


def labelled(node: Node, labels: dict[str, str]) -> Node:
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))


def web(rules: PlacementRules, cpu: str = "1", members: int = 1) -> SchedulingRequest:
    spec = SchedulingRequestSpec(
        workload="web",
        assignment="web",
        revision="1",
        template=Template(command=("serve",), resources={"cpu": cpu}, labels={"app": "web"}),
        placement=rules,
        members=tuple(RequestMember(f"web-{n}", f"web-{n}") for n in range(members)),
        priority=5,
        may_preempt=True,
    )
    return SchedulingRequest(factories.meta("web", "acme"), spec)


def planned(nodes: list[Node], bindings: list[Binding], request: SchedulingRequest) -> RequestPlan:
    asks = [requirements_of(request, evictions_left=100)]
    return plan(build_snapshot("here", [*nodes, *bindings]), asks, PolicyRules(), 0.0, 1).request_plans[0]


def claims_of(bindings: list[Binding], without: tuple[Binding, ...] = ()) -> list[dict[str, Any]]:
    return [
        {
            "node": b.spec.node,
            "amounts": amounts(b.spec.resources),
            "ports": (),
            "workload": b.spec.workload,
            "reclaimable": False,
            "labels": b.spec.template.labels,
            "devices": (),
            "stopping": b.spec.desired is DesiredRunState.STOP,
            "apart": b.spec.anti_affinity,
        }
        for b in bindings
        if b not in without
    ]


def fewest_victims(nodes: list[Node], bindings: list[Binding], needs: dict[str, Any]) -> int | None:
    """Size of the smallest set of weaker replicas of one node without which the replica fits there."""
    for size in range(len(bindings) + 1):
        for node in nodes:
            weaker = [
                b
                for b in bindings
                if b.spec.node == node.metadata.name and b.spec.priority < 5 and b.spec.desired is DesiredRunState.RUN
            ]
            for victims in combinations(weaker, size):
                left = ReferencePlanner(nodes, claims_of(bindings, victims), ())
                if left.feasible(node, needs) and left.spread_ok(node, needs):
                    return size
    return None


@st.composite
def worlds(draw: Any) -> tuple[list[Node], list[Binding], SchedulingRequest]:
    nodes = [
        labelled(
            factories.node(f"n{n}", zone=draw(st.sampled_from("ab")), capacity={"cpu": "4", "memory": "8Gi"}),
            draw(st.sampled_from([{}, {"rack": "1"}, {"rack": "2"}])),
        )
        for n in range(draw(st.integers(1, 4)))
    ]
    bindings = [
        bound(
            number,
            draw(st.sampled_from(nodes)).metadata.name,
            draw(st.sampled_from(["x", "y", "web"])),
            priority=draw(st.sampled_from([0, 1, 1, 9])),
            desired=draw(st.sampled_from([DesiredRunState.RUN] * 5 + [DesiredRunState.STOP])),
            anti_affinity=draw(st.sampled_from([(), (), (APART_WEB,), (APART_WEB_ZONE,), (APART_WEB_RACK,)])),
        )
        for number in range(draw(st.integers(1, 8)))
    ]
    rules = PlacementRules(
        affinity=draw(st.sampled_from([(), (APART_X,), (APART_X_ZONE,), (APART_X_RACK,), (OWN,), (APART_X, OWN)])),
        spread=draw(
            st.sampled_from(
                [(), (SpreadRule(),), (SpreadRule(topology="node"),), (SpreadRule(topology="rack", min_domains=2),)]
            )
        ),
    )
    return nodes, bindings, web(rules, draw(st.sampled_from(["1", "2", "3"])))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_preemption_finds_the_fewest_victims_that_satisfy_every_rule(
    world: tuple[list[Node], list[Binding], SchedulingRequest],
) -> None:
    nodes, bindings, request = world
    template = request.spec.template
    needs: dict[str, Any] = {
        "amounts": amounts(template.resources),
        "placement": request.spec.placement,
        "labels": template.labels,
        "reclaimable": False,
        "workload": "web",
        "models": (),
        "ports": [],
    }
    expected = fewest_victims(nodes, bindings, needs)
    made = planned(nodes, bindings, request)
    found = [len(p.victims) for p in made.proposals]
    assert found == ([] if expected is None else [expected])
    for proposal in made.proposals:
        node = next(n for n in nodes if n.metadata.name == proposal.node)
        victims = tuple(b for b in bindings if f"acme/{b.metadata.name}" in proposal.victims)
        left = ReferencePlanner(nodes, claims_of(bindings, victims), ())
        assert left.feasible(node, needs) and left.spread_ok(node, needs)


def two_nodes() -> list[Node]:
    return [factories.node(f"n{n}", zone="ab"[n], capacity={"cpu": "8", "memory": "8Gi"}) for n in range(2)]


def test_weaker_neighbours_that_the_rule_keeps_apart_are_evicted() -> None:
    apart = PlacementRules(affinity=(APART_X,))
    there = [bound(0, "n0", "x"), bound(1, "n0", "x"), bound(2, "n0", "y"), bound(3, "n1", "x", priority=9)]
    (proposal,) = planned(two_nodes(), there, web(apart)).proposals
    assert (proposal.node, proposal.victims) == ("n0", ("acme/b0.1", "acme/b1.1"))


def test_weaker_replica_whose_rule_keeps_the_preemptor_off_is_evicted() -> None:
    there = [
        bound(0, "n0", "quiet", anti_affinity=(APART_WEB,)),
        bound(1, "n0", "y"),
        bound(2, "n1", "quiet", anti_affinity=(APART_WEB,), priority=9),
    ]
    (proposal,) = planned(two_nodes(), there, web(PlacementRules())).proposals
    assert (proposal.node, proposal.victims) == ("n0", ("acme/b0.1",))


def test_neighbour_elsewhere_in_the_zone_or_stopping_is_no_victim() -> None:
    apart = PlacementRules(affinity=(APART_X_ZONE,), zones=("a",))
    nodes = [factories.node(n, zone="a", capacity={"cpu": "8", "memory": "8Gi"}) for n in ("n0", "n1")]
    assert not planned(nodes, [bound(0, "n0", "x"), bound(1, "n1", "x")], web(apart)).proposals
    stopping = bound(1, "n0", "x", desired=DesiredRunState.STOP)
    assert not planned(nodes, [bound(0, "n0", "x"), stopping], web(apart)).proposals
    (proposal,) = planned(nodes, [bound(0, "n0", "x")], web(apart)).proposals
    assert (proposal.node, proposal.victims) == ("n0", ("acme/b0.1",))


def test_weaker_replica_of_the_same_workload_is_evicted_for_spread() -> None:
    """Node n1 is full of stronger work, so the next replica of web must go to n0, where an older one is weaker."""
    spread = PlacementRules(spread=(SpreadRule(topology="node"),))
    there = [bound(0, "n0", "web"), bound(1, "n0", "y"), bound(2, "n1", "strong", cpu="8", priority=9)]
    (proposal,) = planned(two_nodes(), there, web(spread)).proposals
    assert (proposal.node, proposal.victims) == ("n0", ("acme/b0.1",))


def test_members_of_one_request_do_not_share_the_domain_that_an_eviction_opened() -> None:
    rules = PlacementRules(affinity=(APART_X, OWN))
    made = planned(two_nodes(), [bound(0, "n0", "x"), bound(1, "n1", "x")], web(rules, members=3))
    assert sorted((p.node, p.victims) for p in made.proposals) == [("n0", ("acme/b0.1",)), ("n1", ("acme/b1.1",))]
