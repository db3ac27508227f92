"""Each filter alone: refused nodes, reason and message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.model.binding import Binding, BindingSpec, CapacityClass, DeviceClaim, Intent
from holdfast.model.meta import Object
from holdfast.model.node import ContactState, Device, Node
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_rules import (
    AffinityRule,
    Expression,
    Operator,
    PlacementRules,
    SpreadRule,
    Taint,
    TaintEffect,
    Toleration,
)
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec, RecoverySlotStatus, SlotConsumer
from holdfast.model.scheduler_policy import FilterName, PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import DriverName, Port, Template
from holdfast.scheduling.plan import RequestPlan, plan, requirements_of
from holdfast.scheduling.refusal_summary import pending_summary, retry_events
from holdfast.scheduling.snapshot.builder import build_snapshot

NOW = 1_800_000_000.0


def request(replicas: int = 1, *, namespace: str = "acme", template: Any = None, **spec: Any) -> SchedulingRequest:
    given = {"command": ("x",), "resources": {"cpu": "1"}, **(template or {})}
    members = tuple(RequestMember(name=f"web-{i}", uid=f"u{i}") for i in range(replicas))
    spec = {"workload": "web", **spec}
    return SchedulingRequest(
        metadata=factories.meta("web", namespace),
        spec=SchedulingRequestSpec(
            assignment="web.here.normal", revision="1", template=Template(**given), members=members, **spec
        ),
    )


def planned(nodes: list[Object], asked: SchedulingRequest, rules: PolicyRules | None = None) -> RequestPlan:
    return plan(build_snapshot("here", nodes), [requirements_of(asked)], rules or PolicyRules(), NOW, 1).request_plans[
        0
    ]


def refused(nodes: list[Object], asked: SchedulingRequest, rules: PolicyRules | None = None) -> dict[str, int]:
    return {r.reason: r.nodes for r in planned(nodes, asked, rules).refusals}


def labelled(name: str, labels: dict[str, str], **spec: Any) -> Node:
    item = factories.node(name, **spec)
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, labels=labels))


def bound(name: str, node: str, *, workload: str = "db", labels: Any = None, **spec: Any) -> Binding:
    return Binding(
        metadata=factories.meta(f"{name}.1", "acme"),
        spec=BindingSpec(
            replica=name, intent=Intent(replica_uid=f"uid-{name}", template_hash="h", attempt=1), node=node,
            template=Template(labels=labels or {}), workload=workload, **spec,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (factories.node("n", unschedulable=True), Reason.NODE_CORDONED),
        (factories.node("n", drain=True), Reason.NODE_DRAINING),
        (factories.node("n", contact=ContactState.EXPIRED), Reason.NODE_UNREACHABLE),
        (factories.node("n", epoch=0), Reason.NODE_FENCED),
        (factories.node("n", drivers=("hollow",)), Reason.DRIVER_MISSING),
        (factories.node("n", tenant="acme"), Reason.TENANCY_VIOLATED),
        (factories.node("n", taints=(Taint(key="a"),)), Reason.TAINT_NOT_TOLERATED),
        (factories.node("n", taints=(Taint(key="a", effect=TaintEffect.NO_EXECUTE),)), Reason.TAINT_NOT_TOLERATED),
        (factories.node("n", taints=(Taint(key="a", effect=TaintEffect.PREFER_NO_SCHEDULE),)), None),
        (factories.node("n", capacity={"cpu": "500m", "memory": "1Gi"}), Reason.INSUFFICIENT_CPU),
    ],
)
def test_filter_by_node_state_gives_expected_reason(node: Node, reason: Reason | None) -> None:
    assert refused([node], request()) == ({reason: 1} if reason else {})


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (PlacementRules(regions=("here",)), None),
        (PlacementRules(regions=("there",)), Reason.RESIDENCY_VIOLATED),
        (PlacementRules(excluded_regions=("here",)), Reason.RESIDENCY_VIOLATED),
        (PlacementRules(residency=("eu",)), Reason.RESIDENCY_VIOLATED),
        (PlacementRules(zones=("other",)), Reason.ZONE_NOT_ALLOWED),
        (PlacementRules(zones=("z",)), None),
        (PlacementRules(pools=("gpu",)), Reason.POOL_NOT_ALLOWED),
        (PlacementRules(node_selector={"disk": "ssd"}), None),
        (PlacementRules(node_selector={"disk": "hdd"}), Reason.LABELS_DO_NOT_MATCH),
        (PlacementRules(node_selector={"none": "x"}), Reason.LABELS_DO_NOT_MATCH),
        (PlacementRules(expressions=(Expression("disk", Operator.IN, ("hdd", "ssd")),)), None),
        (PlacementRules(expressions=(Expression("disk", Operator.NOT_IN, ("ssd",)),)), Reason.LABELS_DO_NOT_MATCH),
        (PlacementRules(expressions=(Expression("none", Operator.NOT_IN, ("ssd",)),)), None),
        (PlacementRules(expressions=(Expression("disk", Operator.EXISTS),)), None),
        (PlacementRules(expressions=(Expression("disk", Operator.DOES_NOT_EXIST),)), Reason.LABELS_DO_NOT_MATCH),
        (PlacementRules(expressions=(Expression("cores", Operator.GT, ("8",)),)), None),
        (PlacementRules(expressions=(Expression("cores", Operator.LT, ("8",)),)), Reason.LABELS_DO_NOT_MATCH),
        (PlacementRules(tolerations=(Toleration(key="a", value="1"),)), None),
    ],
)
def test_filter_by_placement_rules_gives_expected_reason(rules: PlacementRules, reason: Reason | None) -> None:
    node = labelled("n", {"disk": "ssd", "cores": "16"})
    assert refused([node], request(placement=rules)) == ({reason: 1} if reason else {})


def test_residency_without_matching_region_tag_is_violated() -> None:
    asked = request(placement=PlacementRules(residency=("eu", "ch")))
    assert not refused([factories.node(), factories.region("here", residency=("ch",))], asked)
    assert refused([factories.node(), factories.region("here", residency=("us",))], asked) == {
        Reason.RESIDENCY_VIOLATED: 1
    }


def test_dedicated_tenant_uses_only_its_own_nodes() -> None:
    nodes = [factories.node("mine", tenant="acme"), factories.node("shared"), factories.node("theirs", tenant="rival")]
    made = planned(nodes, request(2, dedicated=True))
    assert {p.node for p in made.proposals} == {"mine"}
    assert {p.node for p in planned(nodes, request(2)).proposals} == {"shared"}


ACTING = OverrideStatus(phase="Active", expires_at="2099-01-01T00:00:00Z")
LAPSED = OverrideStatus(phase="Active", expires_at="2020-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("scope", "status", "avoided"),
    [
        (OverrideScope(region="here", zone="z"), ACTING, True),
        (OverrideScope(region="here", zone="z"), LAPSED, False),
        (OverrideScope(region="here", zone="y"), ACTING, False),
        (OverrideScope(region="there", zone="z"), ACTING, False),
        (OverrideScope(region="here", zone="z"), OverrideStatus(phase="Ended"), False),
        (OverrideScope(region="here", zone="z", tenant="rival"), ACTING, False),
    ],
)
def test_avoid_zone_override_excludes_nodes_in_scope(
    scope: OverrideScope, status: OverrideStatus, avoided: bool
) -> None:
    meta = factories.meta("o", creation_timestamp="2027-01-15T07:59:59Z")
    override = Override(meta, OverrideSpec(OverrideKind.AVOID_ZONE, scope, "smoke in the hall"), status)
    made = planned([factories.node("n"), override], request())
    assert bool(made.unplaced) is avoided
    if avoided:
        assert made.refusals[0].message == "override o: smoke in the hall"


def test_firm_work_avoids_recovery_slots_and_reclaimable_work_uses_them() -> None:
    """Firm work does not use capacity of recovery slots; reclaimable work may use it."""
    node = factories.node("n", capacity={"cpu": "8", "memory": "32Gi"})
    hold = RecoverySlot(factories.meta("h"), RecoverySlotSpec(budget="b", node="n", resources={"cpu": "4"}))
    loose = bound("loose", "n", resources={"cpu": "3"}, capacity_class=CapacityClass.RECLAIMABLE)
    firm = bound("firm", "n", resources={"cpu": "1"})

    def fit(*items: Object, reclaimable: bool) -> int:
        return len(planned([node, *items], request(20, reclaimable=reclaimable)).proposals)

    assert fit(reclaimable=False) == 8
    assert fit(hold, reclaimable=False) == 4
    assert fit(hold, reclaimable=True) == 8
    assert fit(hold, firm, reclaimable=False) == 3
    assert fit(hold, firm, loose, reclaimable=False) == 3, "the reclaimable work fits into the recovery slot"
    assert fit(firm, loose, reclaimable=True) == 4
    drawn = msgspec.structs.replace(hold, status=RecoverySlotStatus(consumer=SlotConsumer(replica_uid="x")))
    assert fit(drawn, reclaimable=False) == 8, "a consumed slot is counted as its claim"


def test_binding_with_released_quota_still_uses_node_capacity() -> None:
    node = factories.node("n", capacity={"cpu": "2", "memory": "32Gi"})
    lost = bound("web-0", "n", workload="web", resources={"cpu": "2"}, quota_released=True)
    assert refused([node, lost], request()) == {Reason.INSUFFICIENT_CPU: 1}


def test_gpus_are_chosen_by_share_and_model() -> None:
    node = factories.node("n", devices=(Device("a", model="x"), Device("b", model="y"), Device("c", model="x")))
    shared = bound("s", "n", resources={"gpu": "300m"}, devices=(DeviceClaim("a", 300),))

    def devices(gpu: str, *models: str) -> list[tuple[str, int]]:
        made = planned([node, shared], request(template={"resources": {"gpu": gpu}, "gpu_models": models}))
        return [(d.id, d.milli) for p in made.proposals for d in p.devices]

    assert devices("1") == [("b", 1000)]
    assert devices("2") == [("b", 1000), ("c", 1000)]
    assert devices("3") == []
    assert devices("1", "x") == [("c", 1000)]
    assert devices("700m") == [("a", 700)], "on the device with the least left over"
    assert devices("800m", "x") == [("c", 800)]
    made = planned([node, shared], request(template={"resources": {"gpu": "3"}}))
    assert made.refusals[0].reason == Reason.INSUFFICIENT_DEVICES
    assert made.refusals[0].message == "needs 3 gpu, best free 2 on node n"


def test_fixed_port_taken_or_dynamic_ports_exhausted_refuses_node() -> None:
    node = factories.node("n", port_range=(20000, 20002))
    fixed = request(2, template={"ports": (Port("http", 8080),)})
    made = planned([node], fixed)
    assert len(made.proposals) == 1
    assert {r.reason for r in made.refusals} == {Reason.PORT_IN_USE}
    assert refused([node, bound("x", "n", ports={"a": 8080})], fixed) == {Reason.PORT_IN_USE: 1}
    many = request(5, template={"ports": (Port("a"), Port("b"))})
    made = planned([node], many)
    assert len(made.proposals) == 1
    assert made.refusals[0].reason == Reason.PORTS_EXHAUSTED


def test_zone_spread_ignores_unschedulable_zones() -> None:
    nodes = [
        factories.node("a", zone="a"),
        factories.node("b", zone="b"),
        factories.node("c", zone="c", unschedulable=True),
    ]
    rules = PlacementRules(spread=(SpreadRule(topology="zone", max_skew=1),))
    made = planned(nodes, request(6, placement=rules))
    assert sorted(p.node for p in made.proposals) == ["a", "a", "a", "b", "b", "b"]
    full = factories.node("b", zone="b", capacity={"cpu": "1", "memory": "1Gi"})
    made = planned([nodes[0], full], request(6, placement=rules))
    assert sorted(p.node for p in made.proposals) == ["a", "a", "b"], "a full zone limits the others"
    assert {r.reason: r.nodes for r in made.refusals} == {Reason.SPREAD_VIOLATED: 1, Reason.INSUFFICIENT_CPU: 1}


def test_affinity_rules_select_nodes_near_or_apart() -> None:
    nodes = [factories.node("a", zone="a"), factories.node("a2", zone="a"), factories.node("b", zone="b")]
    there = bound("db-0", "a", labels={"app": "db"})

    def places(**rule: Any) -> set[str]:
        rules = PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}, **rule),))
        return {p.node for p in planned([*nodes, there], request(6, placement=rules)).proposals}

    assert places() == {"a"}
    assert places(topology="zone") == {"a", "a2"}
    assert places(apart=True) == {"a2", "b"}
    assert places(apart=True, topology="zone") == {"b"}
    assert places(preferred=True) == {"a", "a2", "b"}


def test_policy_without_filters_keeps_mandatory_filters() -> None:
    bare = PolicyRules(filters=())
    assert not refused([factories.node("n", taints=(Taint(key="a"),))], request(), bare)
    assert refused([factories.node("n", unschedulable=True)], request(), bare) == {Reason.NODE_CORDONED: 1}
    assert refused([factories.node("n")], request(placement=PlacementRules(zones=("q",))), bare) == {
        Reason.ZONE_NOT_ALLOWED: 1
    }
    assert refused([factories.node("n")], request(template={"resources": {"cpu": "99"}}), bare)
    only = PolicyRules(filters=(FilterName.TAINTS,))
    assert refused([factories.node("n", taints=(Taint(key="a"),))], request(), only) == {Reason.TAINT_NOT_TOLERATED: 1}


def test_refusal_counts_name_nodes_requirement_and_nearest_miss() -> None:
    nodes = [
        factories.node("full", capacity={"cpu": "1", "memory": "1Gi"}),
        factories.node("nearly", capacity={"cpu": "2500m", "memory": "1Gi"}),
        factories.node("dirty", capacity={"cpu": "9", "memory": "1Gi"}, taints=(Taint(key="old", value="yes"),)),
    ]
    made = planned(nodes, request(2, template={"resources": {"cpu": "4"}}))
    first, second = made.refusals
    assert (first.reason, first.nodes, first.examples) == (Reason.INSUFFICIENT_CPU, 2, ("full", "nearly"))
    assert first.message == "needs 4 cpu, best free 2500m on node nearly"
    assert second.message == "does not tolerate old=yes:NoSchedule"
    assert pending_summary(made.refusals, 2).startswith("2 replicas pending: 2 nodes InsufficientCpu (needs 4 cpu")
    assert [e.reason for e in made.decision_entries()] == [Reason.INSUFFICIENT_CPU] * 2
    assert planned([], request()).refusals[0].reason == Reason.NO_NODES
    asked = request(template={"driver": DriverName.OCI, "bundle": "/b"})
    assert planned(nodes[:1], asked).refusals[0].message == "needs the oci driver"


def test_retry_events_follow_refusal_reasons() -> None:
    assert "GrantChanged" in retry_events([Reason.QUOTA_EXCEEDED])
    assert "CapacityFreed" in retry_events([Reason.INSUFFICIENT_CPU])
    assert "CapacityFreed" not in retry_events([Reason.LABELS_DO_NOT_MATCH])
    assert "ReplicaPlaced" in retry_events([Reason.AFFINITY_NOT_MET])
    assert {"NodeAdded", "PolicyChanged"} <= set(retry_events([]))
