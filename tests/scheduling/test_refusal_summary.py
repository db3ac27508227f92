"""Every pending reason is explained with its counts, next owner, next retry and the smallest change that helps."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import factories

import holdfast
from holdfast.insight.timeline import Evidence, Timeline, replica_timeline, request_timeline
from holdfast.insight.why_not import SuggestedFix, WhyNotQuery, cluster_level_fix
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.meta import Condition, Object
from holdfast.model.node import ContactState, Device, FenceBlock, Node, Quarantine
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_rules import AffinityRule, PlacementRules, SpreadRule, Taint
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import FilterExpression, PolicyRules
from holdfast.model.scheduling_request import (
    RefusalCount,
    RequestMember,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.template import DriverName, Port, Template
from holdfast.model.workload import Gang
from holdfast.scheduling.plan import plan, requirements_of
from holdfast.scheduling.refusal_summary import retry_events
from holdfast.scheduling.snapshot.builder import build_snapshot

CPU = {"cpu": "1", "memory": "1Gi"}


def request(resources: dict[str, str] | None = None, template: dict[str, Any] | None = None, **spec: Any) -> Any:
    shape = Template(command=("x",), resources=resources or CPU, **(template or {}))
    members = tuple(RequestMember(f"m{i}", f"m{i}") for i in range(spec.pop("count", 1)))
    return SchedulingRequest(
        factories.meta("web", "acme"),
        SchedulingRequestSpec(workload="web", assignment="web", revision="1", template=shape, members=members, **spec),
    )


def placed(name: str, node: str = "n1", **spec: Any) -> Binding:
    shape = spec.pop("template", Template(command=("x",), labels=spec.pop("labels", {})))
    return Binding(
        factories.meta(f"{name}.1", "acme"),
        BindingSpec(
            replica=name, intent=Intent(replica_uid=name, template_hash="h", attempt=1), node=node, template=shape,
            workload=spec.pop("workload", name), **{"resources": {"cpu": "1"}, **spec},
        ),
    )  # fmt: skip


def fenced() -> Node:
    node = factories.node()
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, fence=FenceBlock(fenced_epoch=1)))


def reconciling() -> Node:
    node = factories.node()
    ran = msgspec.structs.replace(node.status.execution, reconciled=False)
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, execution=ran))


def quarantined() -> Node:
    node = factories.node()
    ran = msgspec.structs.replace(node.status.execution, quarantine=Quarantine(reason="StartError"))
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, execution=ran))


def terminating() -> Node:
    node = factories.node()
    meta = msgspec.structs.replace(node.metadata, deletion_timestamp="2026-01-01T00:00:00Z", finalizers=("x",))
    return msgspec.structs.replace(node, metadata=meta)


def avoiding() -> Override:
    scope = OverrideScope(region="us-east", zone="z")
    acting = OverrideStatus(phase="Active", expires_at="2027-01-01T00:00:00Z")
    spec = OverrideSpec(OverrideKind.AVOID_ZONE, scope, reason="cooling failed")
    return Override(factories.meta("too-warm"), spec, acting)


NODE = factories.node()
Case = tuple[list[Object], Any, str]
"""Objects, request, and a part of the suggested fix."""

FROM_NODES: dict[Reason, Callable[[], Case]] = {
    Reason.NODE_UNREACHABLE: lambda: ([factories.node(contact=ContactState.EXPIRED)], request(), "restart the agent"),
    Reason.NODE_CORDONED: lambda: ([factories.node(unschedulable=True)], request(), "uncordon node n1"),
    Reason.NODE_DRAINING: lambda: ([factories.node(drain=True)], request(), "end the drain of node n1"),
    Reason.NODE_TERMINATING: lambda: ([terminating()], request(), "register node n1 again"),
    Reason.NODE_FENCED: lambda: ([fenced()], request(), "until the agent of node n1 registers"),
    Reason.NODE_RECONCILING: lambda: ([reconciling()], request(), "wait until the agent of node n1 has"),
    Reason.NODE_QUARANTINED: lambda: ([quarantined()], request(), "repair node n1"),
    Reason.NODE_EXCLUDED_BY_OVERRIDE: lambda: ([NODE, avoiding()], request(), "end override too-warm"),
    Reason.DRIVER_MISSING: lambda: ([NODE], request(template={"driver": DriverName.OCI}), "driver"),
    Reason.INSUFFICIENT_CPU: lambda: (
        [NODE, placed("a", resources={"cpu": "7500m"})], request(), "free 500m cpu on node n1, or ask for 500m",
    ),
    Reason.INSUFFICIENT_MEMORY: lambda: (
        [NODE], request({"cpu": "1", "memory": "64Gi"}), "ask for at most 32Gi memory instead of 64Gi",
    ),
    Reason.INSUFFICIENT_RESOURCE: lambda: ([NODE], request({**CPU, "example.com/fpga": "1"}), "example.com/fpga"),
    Reason.INSUFFICIENT_DEVICES: lambda: (
        [factories.node(devices=(Device("g0", model="A"),))],
        request({**CPU, "gpu": "1"}, {"gpu_models": ("B",)}), "free 1 gpu of model B on node n1",
    ),
    Reason.PORT_IN_USE: lambda: (
        [NODE, placed("a", ports={"http": 80})], request(template={"ports": (Port(name="http", port=80),)}), "port 0",
    ),
    Reason.PORTS_EXHAUSTED: lambda: (
        [factories.node(port_range=(30000, 30000)), placed("a", ports={"http": 30000})],
        request(template={"ports": (Port(name="http"),)}), "widen the port range of node n1",
    ),
    Reason.RESIDENCY_VIOLATED: lambda: (
        [NODE], request(placement=PlacementRules(regions=("eu-west",))), "allow region us-east",
    ),
    Reason.TENANCY_VIOLATED: lambda: ([factories.node(tenant="bank")], request(), "node n1 belongs to bank"),
    Reason.ZONE_NOT_ALLOWED: lambda: ([NODE], request(placement=PlacementRules(zones=("y",))), "add zone z to"),
    Reason.POOL_NOT_ALLOWED: lambda: ([NODE], request(placement=PlacementRules(pools=("gpu",))), "placement.pools"),
    Reason.LABELS_DO_NOT_MATCH: lambda: (
        [NODE], request(placement=PlacementRules(node_selector={"disk": "ssd"})), "label node n1",
    ),
    Reason.TAINT_NOT_TOLERATED: lambda: (
        [factories.node(taints=(Taint(key="special"),))], request(), "tolerate the taint",
    ),
    Reason.SPREAD_VIOLATED: lambda: (
        [NODE, factories.node("n2"), placed("a", workload="web"), factories.node("n3", zone="y", unschedulable=False,
         capacity={"cpu": "1m", "memory": "1Mi"})],
        request(placement=PlacementRules(spread=(SpreadRule(),))), "",
    ),
    Reason.AFFINITY_NOT_MET: lambda: (
        [NODE], request(placement=PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}),))),
        "affinity rule first",
    ),
    Reason.ANTI_AFFINITY_VIOLATED: lambda: (
        [NODE, placed("db", labels={"app": "db"})],
        request(placement=PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}, apart=True),))),
        "anti-affinity rule preferred",
    ),
    Reason.NO_NODES: lambda: ([], request(), "add a node"),
    Reason.GANG_INCOMPLETE: lambda: (
        [NODE], request({"cpu": "5", "memory": "1Gi"}, gang=Gang(min_available=2), count=2), "minAvailable",
    ),
    Reason.NO_VICTIMS: lambda: (
        [NODE, placed("a", resources={"cpu": "8"}, priority=9)],
        request(priority=5, may_preempt=True), "raise the priority",
    ),
    Reason.PREEMPTION_BUDGET_SPENT: lambda: (
        [NODE, placed("a", resources={"cpu": "8"})], request(priority=5, may_preempt=True, count=1), "wait a minute",
    ),
    Reason.EXPRESSION_REFUSED: lambda: ([NODE], request(), "change the policy's filter expression"),
}  # fmt: skip

BEYOND = (
    Reason.NO_GRANT, Reason.QUOTA_EXCEEDED, Reason.GRANT_EXPIRED, Reason.WAITING, Reason.VICTIM_NOT_ALLOWED,
    Reason.NOT_ALLOWED_WHILE_PARTITIONED, Reason.DEVICE_IN_USE, Reason.NODE_NOT_FOUND, Reason.ALREADY_CLAIMED,
)  # fmt: skip


def told(asked: SchedulingRequest, reasons: tuple[RefusalCount, ...], cure: SuggestedFix | None = None) -> Timeline:
    status = SchedulingRequestStatus(
        pending=1, attempts=3, position=2, reasons=reasons, retry_on=retry_events(r.reason for r in reasons),
        next_retry_at="2026-01-01T00:00:07.000000Z",
    )  # fmt: skip
    stored = msgspec.structs.replace(asked, status=status)
    return request_timeline(stored, Evidence(request=stored, suggested_fix=cure, position=2, queue_length=9))


@pytest.mark.parametrize("reason", FROM_NODES)
def test_timeline_of_planner_refusal_has_reason_fix_and_next_retry(reason: Reason) -> None:
    objects, asked, helps = FROM_NODES[reason]()
    rules = PolicyRules()
    if reason is Reason.EXPRESSION_REFUSED:
        rules = PolicyRules(filter_expressions=(FilterExpression(name="none", expression="false"),))
    snapshot = build_snapshot("us-east", objects)
    evictions = 0 if reason is Reason.PREEMPTION_BUDGET_SPENT else 100
    made = plan(snapshot, [requirements_of(asked, evictions_left=evictions)], rules, 0.0, 1).request_plans[0]
    assert made.unplaced
    assert reason in [r.reason for r in made.refusals]
    cure = WhyNotQuery(snapshot, requirements_of(asked), rules, 0.0).suggested_fix()
    story = told(asked, made.refusals, cure)
    assert any(reason.value in line for line in story.reasons)
    assert helps in story.suggested_fix and story.suggested_fix
    assert (story.next_owner, story.position, story.queue_length) == ("scheduler", 2, 9)
    assert story.next_retry_at == "2026-01-01T00:00:07.000000Z" and story.retry_on


@pytest.mark.parametrize("reason", BEYOND)
def test_timeline_of_authority_refusal_has_reason_and_fix(reason: Reason) -> None:
    story = told(request(), (RefusalCount(reason=reason, nodes=1, message="as the authority said"),))
    assert reason.value in story.reasons[0] and "as the authority said" in story.reasons[0]
    assert story.suggested_fix == cluster_level_fix(reason, "acme") != ""


@pytest.mark.parametrize("kind", [Reason.DEADLINE_AT_RISK, Reason.DEADLINE_MISSED])
def test_timeline_of_late_request_shows_deadline_condition(kind: Reason) -> None:
    late = Condition(type=kind.value, status="True", reason=kind.value, message="the deadline is noon")
    asked = request()
    stored = msgspec.structs.replace(asked, status=SchedulingRequestStatus(pending=1, conditions=(late,)))
    story = request_timeline(stored, Evidence(request=stored))
    assert story.reasons == (f"{kind.value}: the deadline is noon",)


EXPLAINED = {
    *FROM_NODES, *BEYOND, Reason.DEADLINE_AT_RISK, Reason.DEADLINE_MISSED, Reason.WAITING_FOR_VICTIMS,
    Reason.WAITING_FOR_GANG,
}  # fmt: skip
REFUSING = ("scheduling/filters/*.py", "scheduling/plan/*.py", "scheduling/purse.py", "authority/*.py")
NOT_WAITED_WITH = {
    Reason.UNSCHEDULABLE: "a summary; the specific reason is listed beside it",
    Reason.REPLICA_NOT_FOUND: "the member is dropped",
    Reason.REPLICA_TERMINATING: "the member is dropped",
    Reason.TEMPLATE_CHANGED: "the member is dropped",
    Reason.STALE_ATTEMPT: "the attempt is read, and the member is proposed again at once",
    Reason.INTENT_MISMATCH: "the committed claim is adopted",
    Reason.RESERVATION_EXPIRED: "response to a bind, not to a proposal",
    Reason.RESERVATION_MISSING: "response to a bind, not to a proposal",
    Reason.OWNER_DELETED: "reason of a release",
    Reason.STOP_NOT_CONFIRMED: "response to a release",
    Reason.LEASE_EXPIRED: "response to a heartbeat",
    Reason.SLOT_ADMITTED: "about recovery slots",
    Reason.SLOTS_UNSCHEDULABLE: "about recovery slots",
    Reason.NOT_LEADER: "the call fails; the request waits for the authority (Waiting)",
    Reason.RESTORE_IN_PROGRESS: "the call fails; the request waits for the authority (Waiting)",
}
"""Reasons of planner and authority that never keep a request pending."""


def test_every_suggested_fix_has_an_explained_reason() -> None:
    from holdfast.insight import why_not

    assert set(why_not._FIXES) | set(why_not._CLUSTER_FIXES) <= EXPLAINED


def test_every_refusal_reason_in_source_is_explained_or_exempt() -> None:
    source = Path(holdfast.__file__).parent
    found = {
        getattr(Reason, name)
        for pattern in REFUSING
        for file in source.glob(pattern)
        for name in re.findall(r"\bReason\.([A-Z_]+)\b", file.read_text())
    }
    assert not found - EXPLAINED - set(NOT_WAITED_WITH), "explain the reason, or add it to the exemptions"
    assert not EXPLAINED & set(NOT_WAITED_WITH)


def test_suggested_fix_of_impossible_request_names_nearest_node() -> None:
    asked = request({"cpu": "100", "memory": "1Gi"}, placement=PlacementRules(node_selector={"disk": "ssd"}))
    snapshot = build_snapshot("us-east", [NODE, factories.node("n2", capacity={"cpu": "64", "memory": "1Gi"})])
    cure = WhyNotQuery(snapshot, requirements_of(asked), PolicyRules(), 0.0).suggested_fix()
    assert cure.node == "n2", "the nearest miss"
    assert "ask for at most 64 cpu instead of 100" in cure.text and "label node n2" in cure.text


def test_why_not_lists_all_blockers_of_a_node() -> None:
    asked = request({"cpu": "100", "memory": "64Gi"}, placement=PlacementRules(zones=("y",)))
    verdict = WhyNotQuery(build_snapshot("us-east", [NODE]), requirements_of(asked), PolicyRules(), 0.0).explain_node(
        "n1"
    )
    assert verdict is not None
    found = [o.reason for o in verdict.blockers]
    assert found == [Reason.ZONE_NOT_ALLOWED, Reason.INSUFFICIENT_CPU, Reason.INSUFFICIENT_MEMORY]
    assert (
        WhyNotQuery(build_snapshot("us-east", [NODE]), requirements_of(asked), PolicyRules(), 0.0).explain_node("other")
        is None
    )


def test_why_not_of_feasible_node_reports_score_and_rank() -> None:
    snapshot = build_snapshot("us-east", [NODE, factories.node("n2"), placed("a", resources={"cpu": "6"})])
    verdict = WhyNotQuery(snapshot, requirements_of(request()), PolicyRules(), 0.0).explain_node("n1")
    assert verdict is not None and not verdict.blockers
    assert (verdict.position, verdict.feasible, verdict.best) == (2, 2, "n2")
    assert verdict.score == sum(s.value * s.weight for s in verdict.scores) < verdict.best_score


def test_timeline_of_serving_replica_is_ordered() -> None:
    replica = factories.replica(0, status=factories.serving_status())
    story = replica_timeline(replica, Evidence())
    assert (story.stage, story.next_owner) == ("Serving", "nobody")
    assert [e.stage for e in story.events] == ["Queued", "Ready", "Serving"]


def test_anti_affinity_of_placed_replica_excludes_later_replica() -> None:
    """A placed replica with an anti-affinity rule keeps matching replicas off its node."""
    rule = AffinityRule(workload_labels={"app": "noisy"}, apart=True)
    there = placed("quiet", anti_affinity=(rule,))
    noisy = request(template={"labels": {"app": "noisy"}})
    nodes = [NODE, factories.node("n2", zone="z2")]
    made = plan(
        build_snapshot("us-east", [*nodes, there]), [requirements_of(noisy)], PolicyRules(), 0.0, 1
    ).request_plans[0]
    assert [p.node for p in made.proposals] == ["n2"]
    assert made.refusals[0].reason == Reason.ANTI_AFFINITY_VIOLATED
    quiet = request(placement=PlacementRules(affinity=(rule,)), count=1)
    both = plan(
        build_snapshot("us-east", [NODE]),
        [requirements_of(quiet), requirements_of(other_noisy())],
        PolicyRules(),
        0.0,
        1,
    )
    assert both.request_plans[0].proposals and both.request_plans[1].unplaced, "also within one plan"


def other_noisy() -> SchedulingRequest:
    noisy = request(template={"labels": {"app": "noisy"}})
    spec = msgspec.structs.replace(noisy.spec, workload="noisy", members=(RequestMember("n", "n"),))
    return SchedulingRequest(factories.meta("noisy", "acme"), spec)
