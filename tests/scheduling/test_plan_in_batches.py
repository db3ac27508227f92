"""A plan of several requests equals the plans of each on a snapshot that assumes the proposals before it.

Replay depends on this: a Decision records the snapshot of its batch, and replay assumes the earlier Decisions.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import factories
from tests.scheduling.test_plan_reference import node_lists, old_bindings, request_lists, rule_sets

from holdfast.model.binding import claim_name
from holdfast.model.node import Node
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules, ScoreName, WeightedScore
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Port, Template
from holdfast.scheduling.plan import RequestPlan, plan, requirements_of
from holdfast.scheduling.snapshot import ClaimKey, SnapshotBuilder

DYNAMIC, IN_RANGE, OUT_OF_RANGE = Port("d"), Port("f", 20001), Port("g", 8080)


@st.composite
def nodes_with_few_ports(draw: Any) -> list[Node]:
    ranges = st.sampled_from([(20001, 20002), (20001, 20004), (20000, 31999)])
    made = []
    for node in draw(node_lists()):
        spec = msgspec.structs.replace(node.spec, port_range=draw(ranges))
        if draw(st.booleans()):
            spec = msgspec.structs.replace(spec, taints=(), unschedulable=False)
        made.append(msgspec.structs.replace(node, spec=spec))
    return made


@st.composite
def requests_with_ports(draw: Any) -> list[SchedulingRequest]:
    ports = st.sampled_from([(DYNAMIC,), (IN_RANGE,), (OUT_OF_RANGE,), (DYNAMIC, IN_RANGE), ()])
    made = []
    for request in draw(request_lists()):
        spec = request.spec
        template = msgspec.structs.replace(spec.template, ports=draw(ports))
        if draw(st.booleans()):  # requests that many nodes can run meet on the same ports
            template = msgspec.structs.replace(template, resources={"cpu": "100m"}, gpu_models=())
            spec = msgspec.structs.replace(spec, placement=PlacementRules())
        preempts = draw(st.sampled_from([False, False, True]))
        spec = msgspec.structs.replace(spec, template=template, may_preempt=preempts, priority=5 if preempts else 0)
        made.append(msgspec.structs.replace(request, spec=spec))
    return made


def assume(builder: SnapshotBuilder, made: RequestPlan) -> None:
    requirements = made.requirements
    for proposal in made.proposals:
        key = ClaimKey(requirements.namespace, claim_name(proposal.member.name, proposal.member.attempt))
        builder.assume(key, requirements.claim(proposal.node, proposal.member, proposal.devices, proposal.victims))


def check_batch(
    data: st.DataObject, nodes: list[Node], requests: list[SchedulingRequest], rules: PolicyRules, seed: int
) -> None:
    builder = SnapshotBuilder("here")
    for item in (*nodes, *data.draw(old_bindings(nodes))):
        builder.upsert(item)
    asked = [requirements_of(request, evictions_left=4) for request in requests]
    together = plan(builder.freeze(1), asked, rules, 0.0, seed).request_plans
    for made in together:
        alone = plan(builder.freeze(1), [made.requirements], rules, 0.0, seed).request_plans[0]
        assert alone == made
        assume(builder, made)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), nodes_with_few_ports(), requests_with_ports(), rule_sets, st.integers(0, 3))
def test_plan_of_several_requests_equals_plans_on_assumed_proposals(
    data: st.DataObject, nodes: list[Node], requests: list[SchedulingRequest], rules: PolicyRules, seed: int
) -> None:
    check_batch(data, nodes, requests, rules, seed)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), nodes_with_few_ports(), requests_with_ports(), st.integers(0, 3))
def test_plan_of_several_requests_by_gpu_shape_equals_plans_on_assumed_proposals(
    data: st.DataObject, nodes: list[Node], requests: list[SchedulingRequest], seed: int
) -> None:
    by_shape = PolicyRules(scores=(WeightedScore(name=ScoreName.GPU_SHAPE, weight=1),))
    check_batch(data, nodes, requests, by_shape, seed)


def test_fixed_port_in_range_waits_until_assumed_dynamic_ports_have_numbers() -> None:
    """The authority may give the assumed replica the number that the fixed port needs."""
    builder = SnapshotBuilder("here")
    builder.upsert(factories.node("n1", port_range=(20001, 20004)))
    dynamic, fixed = (
        SchedulingRequest(
            factories.meta(name, "acme"),
            SchedulingRequestSpec(
                workload=name,
                assignment=name,
                revision="1",
                template=Template(command=("serve",), resources={"cpu": "1"}, ports=(port,)),
                members=(RequestMember(name, f"uid-{name}"),),
            ),
        )
        for name, port in (("dynamic", DYNAMIC), ("fixed", IN_RANGE))
    )
    first = plan(builder.freeze(1), [requirements_of(dynamic)], PolicyRules(), 0.0, 1).request_plans[0]
    assume(builder, first)
    refused = plan(builder.freeze(1), [requirements_of(fixed)], PolicyRules(), 0.0, 1).request_plans[0]
    assert [refusal.reason for refusal in refused.refusals] == [Reason.PORT_IN_USE]
    for proposal in first.proposals:
        key = ClaimKey("acme", claim_name(proposal.member.name, proposal.member.attempt))
        claim = first.requirements.claim("n1", proposal.member, (), ())
        builder.assume(key, msgspec.structs.replace(claim, open_ports=0, ports=(20002,)))
    assert plan(builder.freeze(1), [requirements_of(fixed)], PolicyRules(), 0.0, 1).request_plans[0].proposals
