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
from holdfast.insight.remedies import cluster_level_fix
from holdfast.insight.timeline import Evidence, Timeline, replica_timeline, request_timeline
from holdfast.insight.why_not import SuggestedFix, WhyNotQuery
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.meta import Condition, Object
from holdfast.model.node import ContactState, Device, FenceBlock, Node, Quarantine
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_rules import AffinityRule, PlacementRules, SpreadRule, Taint
from holdfast.model.quantity import Amount
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import FilterExpression, PolicyRules
from holdfast.model.scheduling_request import (
    RefusalCount,
    RequestMember,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.template import DriverName, NetworkMode, Port, Template
from holdfast.model.template_volume import ClaimVolume, HostPathVolume, TemplateVolume
from holdfast.model.volume import Volume, VolumeSpec
from holdfast.model.workload import Gang
from holdfast.scheduling.plan import plan, requirements_of
from holdfast.scheduling.refusal_summary import pending_summary, retry_events
from holdfast.scheduling.snapshot.builder import build_snapshot

CPU: dict[str, Amount] = {"cpu": "1", "memory": "1Gi"}


def request(resources: dict[str, Amount] | None = None, template: dict[str, Any] | None = None, **spec: Any) -> Any:
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
            replica=name,
            intent=Intent(replica_uid=name, template_hash="h", attempt=1),
            node=node,
            template=shape,
            workload=spec.pop("workload", name),
            **{"resources": {"cpu": "1"}, **spec},
        ),
    )


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


def avoid_override() -> Override:
    scope = OverrideScope(region="us-east", zone="z")
    acting = OverrideStatus(phase="Active", expires_at="2027-01-01T00:00:00Z")
    spec = OverrideSpec(OverrideKind.AVOID_ZONE, scope, reason="cooling failed")
    return Override(factories.meta("too-warm"), spec, acting)


NODE = factories.node()
CLAIM = {"volumes": (TemplateVolume(name="d", mount_path="/d", claim=ClaimVolume("d", "1Gi")),)}


def volume(node: str, **more: Any) -> Volume:
    spec = VolumeSpec(claim="d", workload="web", replica="m0", node=node, size="1Gi")
    return Volume(factories.meta("d.m0", "acme", **more), spec)


DELETED = {"deletion_timestamp": "2026-01-01T00:00:00Z", "finalizers": ("x",)}
HOST_PATH = TemplateVolume(name="m", mount_path="/models", host_path=HostPathVolume("/srv/models"))
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
    Reason.NODE_EXCLUDED_BY_OVERRIDE: lambda: ([NODE, avoid_override()], request(), "end override too-warm"),
    Reason.DRIVER_MISSING: lambda: ([NODE], request(template={"driver": DriverName.OCI}), "driver"),
    Reason.HOST_PATH_NOT_ALLOWED: lambda: ([NODE], request(template={"volumes": (HOST_PATH,)}), "volume_paths"),
    Reason.INSUFFICIENT_CPU: lambda: (
        [NODE, placed("a", resources={"cpu": "7500m"})],
        request(),
        "ask for at most 500m cpu instead of 1; or: free 500m cpu on node n1",
    ),
    Reason.INSUFFICIENT_MEMORY: lambda: (
        [NODE],
        request({"cpu": "1", "memory": "64Gi"}),
        "ask for at most 32Gi memory instead of 64Gi",
    ),
    Reason.INSUFFICIENT_RESOURCE: lambda: ([NODE], request({**CPU, "example.com/fpga": "1"}), "example.com/fpga"),
    Reason.INSUFFICIENT_DEVICES: lambda: (
        [factories.node(devices=(Device("g0", model="A"),))],
        request({**CPU, "gpu": "1"}, {"gpu_models": ("B",)}),
        "free 1 gpu of model B on node n1",
    ),
    Reason.INSUFFICIENT_STORAGE: lambda: ([NODE], request(template=CLAIM), "add a node with"),
    Reason.VOLUME_ON_OTHER_NODE: lambda: (
        [factories.node(), factories.node("n2", capacity={"cpu": "1m", "memory": "1Gi"}), volume("n2")],
        request(template=CLAIM),
        "",
    ),
    Reason.VOLUME_NODE_LOST: lambda: (
        [NODE, factories.node("n2", unschedulable=True), volume("n2")],
        request(template=CLAIM),
        "bring the node that holds the volume back",
    ),
    Reason.VOLUME_TERMINATING: lambda: (
        [NODE, volume("n1", **DELETED)],
        request(template=CLAIM),
        "wait until the Volume",
    ),
    Reason.PORT_IN_USE: lambda: (
        [NODE, placed("a", ports={"http": 80})],
        request(template={"ports": (Port(name="http", port=80),)}),
        "port 0",
    ),
    Reason.PORTS_EXHAUSTED: lambda: (
        [factories.node(port_range=(30000, 30000)), placed("a", ports={"http": 30000})],
        request(template={"ports": (Port(name="http"),)}),
        "widen the port range of node n1",
    ),
    Reason.RESIDENCY_VIOLATED: lambda: (
        [NODE],
        request(placement=PlacementRules(regions=("eu-west",))),
        "allow region us-east",
    ),
    Reason.TENANCY_VIOLATED: lambda: ([factories.node(tenant="bank")], request(), "node n1 belongs to bank"),
    Reason.ZONE_NOT_ALLOWED: lambda: ([NODE], request(placement=PlacementRules(zones=("y",))), "add zone z to"),
    Reason.POOL_NOT_ALLOWED: lambda: ([NODE], request(placement=PlacementRules(pools=("gpu",))), "placement.pools"),
    Reason.LABELS_DO_NOT_MATCH: lambda: (
        [NODE],
        request(placement=PlacementRules(node_selector={"disk": "ssd"})),
        "label node n1",
    ),
    Reason.TAINT_NOT_TOLERATED: lambda: (
        [factories.node(taints=(Taint(key="special"),))],
        request(),
        "tolerate the taint",
    ),
    Reason.SPREAD_VIOLATED: lambda: (
        [
            NODE,
            factories.node("n2"),
            placed("a", workload="web"),
            factories.node("n3", zone="y", unschedulable=False, capacity={"cpu": "1m", "memory": "1Mi"}),
        ],
        request(placement=PlacementRules(spread=(SpreadRule(),))),
        "",
    ),
    Reason.AFFINITY_NOT_MET: lambda: (
        [NODE],
        request(placement=PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}),))),
        "affinity rule first",
    ),
    Reason.ANTI_AFFINITY_VIOLATED: lambda: (
        [NODE, placed("db", labels={"app": "db"})],
        request(placement=PlacementRules(affinity=(AffinityRule(workload_labels={"app": "db"}, apart=True),))),
        "anti-affinity rule preferred",
    ),
    Reason.NO_NODES: lambda: ([], request(), "add a node"),
    Reason.GANG_INCOMPLETE: lambda: (
        [NODE],
        request({"cpu": "5", "memory": "1Gi"}, gang=Gang(min_available=2), count=2),
        "minAvailable",
    ),
    Reason.NO_VICTIMS: lambda: (
        [NODE, placed("a", resources={"cpu": "8"}, priority=9)],
        request(priority=5, may_preempt=True),
        "raise the priority",
    ),
    Reason.VICTIMS_WITHIN_BUDGET: lambda: (
        [NODE, *(placed(f"a{n}", workload="a", resources={"cpu": "4"}, max_unavailable=1) for n in range(2))],
        request({"cpu": "7", "memory": "1Gi"}, priority=5, may_preempt=True),
        "raise maxUnavailable",
    ),
    Reason.TOO_MANY_VICTIMS: lambda: (
        [NODE, *(placed(f"a{n}", resources={"cpu": "400m"}) for n in range(20))],
        request({"cpu": "7", "memory": "1Gi"}, priority=5, may_preempt=True),
        "ask for less",
    ),
    Reason.PREEMPTION_BUDGET_SPENT: lambda: (
        [NODE, placed("a", resources={"cpu": "8"})],
        request(priority=5, may_preempt=True, count=1),
        "wait a minute",
    ),
    Reason.EXPRESSION_REFUSED: lambda: ([NODE], request(), "change the policy's filter expression"),
}

BEYOND = (
    Reason.NO_GRANT,
    Reason.QUOTA_EXCEEDED,
    Reason.GRANT_EXPIRED,
    Reason.WAITING,
    Reason.VICTIM_NOT_ALLOWED,
    Reason.NOT_ALLOWED_WHILE_PARTITIONED,
    Reason.DEVICE_IN_USE,
    Reason.NODE_NOT_FOUND,
    Reason.ALREADY_CLAIMED,
    Reason.VOLUME_IN_USE,
    Reason.VOLUME_NOT_BOUND,
)


def timeline_of(
    request_item: SchedulingRequest, reasons: tuple[RefusalCount, ...], fix: SuggestedFix | None = None
) -> Timeline:
    status = SchedulingRequestStatus(
        pending=1,
        attempts=3,
        position=2,
        reasons=reasons,
        retry_on=retry_events(r.reason for r in reasons),
        next_retry_at="2026-01-01T00:00:07.000000Z",
    )
    stored = msgspec.structs.replace(request_item, status=status)
    return request_timeline(stored, Evidence(request=stored, suggested_fix=fix, position=2, queue_length=9))


@pytest.mark.parametrize("reason", FROM_NODES)
def test_timeline_of_planner_refusal_has_reason_fix_and_next_retry(reason: Reason) -> None:
    objects, request_item, helps = FROM_NODES[reason]()
    rules = PolicyRules()
    if reason is Reason.EXPRESSION_REFUSED:
        rules = PolicyRules(filter_expressions=(FilterExpression(name="none", expression="false"),))
    snapshot = build_snapshot("us-east", objects)
    evictions = 0 if reason is Reason.PREEMPTION_BUDGET_SPENT else 100
    made = plan(snapshot, [requirements_of(request_item, evictions_left=evictions)], rules, 0.0, 1).request_plans[0]
    assert made.unplaced
    assert reason in [r.reason for r in made.refusals]
    fix = WhyNotQuery(snapshot, requirements_of(request_item), rules, 0.0).suggested_fix()
    timeline = timeline_of(request_item, made.refusals, fix)
    assert any(reason.value in line for line in timeline.reasons)
    assert helps in timeline.suggested_fix and timeline.suggested_fix
    assert (timeline.next_owner, timeline.position, timeline.queue_length) == ("scheduler", 2, 9)
    assert timeline.next_retry_at == "2026-01-01T00:00:07.000000Z" and timeline.retry_on


@pytest.mark.parametrize(
    ("node", "cpu", "helps"),
    [
        (NODE, "8", True),
        (factories.node(contact=ContactState.EXPIRED), "8", False),
        (factories.node(unschedulable=True), "8", False),
        (NODE, "64", False),
    ],
    ids=["full", "unreachable", "cordoned", "too small"],
)
def test_higher_priority_is_suggested_only_if_evictions_would_help(node: Node, cpu: str, helps: bool) -> None:
    snapshot = build_snapshot("us-east", [node, placed("a", resources={"cpu": "8"}, priority=9)])
    wanted = request({"cpu": cpu, "memory": "1Gi"}, priority=5, may_preempt=True)
    fix = WhyNotQuery(snapshot, requirements_of(wanted), PolicyRules(), 0.0).suggested_fix()
    refused = (RefusalCount(reason=Reason.NO_VICTIMS, nodes=0),)
    said = timeline_of(wanted, refused, fix).suggested_fix
    assert ("raise the priority" in said) is helps and said


def test_node_without_private_networks_is_refused_with_what_it_needs() -> None:
    private = {"driver": DriverName.OCI, "bundle": "/b", "network": NetworkMode.PRIVATE}
    for drivers, refused in ((("process", "oci"), True), (("process", "oci", "oci-network"), False)):
        snapshot = build_snapshot("us-east", [factories.node(drivers=drivers)])
        made = plan(snapshot, [requirements_of(request(template=private))], PolicyRules(), 0.0, 1).request_plans[0]
        found = [r.message for r in made.refusals if r.reason is Reason.DRIVER_MISSING]
        assert bool(made.unplaced) is refused and bool(found) is refused
        assert not refused or "needs the oci-network driver; for a network of its own a node needs root" in found[0]


@pytest.mark.parametrize("reason", BEYOND)
def test_timeline_of_authority_refusal_has_reason_and_fix(reason: Reason) -> None:
    timeline = timeline_of(request(), (RefusalCount(reason=reason, nodes=1, message="as the authority said"),))
    assert reason.value in timeline.reasons[0] and "as the authority said" in timeline.reasons[0]
    assert timeline.suggested_fix == cluster_level_fix(reason, "acme") != ""


@pytest.mark.parametrize("kind", [Reason.DEADLINE_AT_RISK, Reason.DEADLINE_MISSED])
def test_timeline_of_late_request_shows_deadline_condition(kind: Reason) -> None:
    late = Condition(type=kind.value, status="True", reason=kind.value, message="the deadline is noon")
    request_item = request()
    stored = msgspec.structs.replace(request_item, status=SchedulingRequestStatus(pending=1, conditions=(late,)))
    timeline = request_timeline(stored, Evidence(request=stored))
    assert timeline.reasons == (f"{kind.value}: the deadline is noon",)


EXPLAINED = {
    *FROM_NODES,
    *BEYOND,
    Reason.DEADLINE_AT_RISK,
    Reason.DEADLINE_MISSED,
    Reason.WAITING_FOR_VICTIMS,
    Reason.WAITING_FOR_GANG,
}
REFUSING = ("scheduling/filters/*.py", "scheduling/plan/*.py", "scheduling/quota_headroom.py", "authority/*.py")
NOT_WAITED_WITH = {
    Reason.CLAIM_LOST: "the reason of a release",
    Reason.UNSCHEDULABLE: "a summary; the specific reason is listed beside it",
    Reason.REPLICA_NOT_FOUND: "the member is dropped",
    Reason.REPLICA_TERMINATING: "the member is dropped",
    Reason.REPLICA_ENDED: "the member is dropped",
    Reason.TEMPLATE_CHANGED: "the member is dropped",
    Reason.STALE_ATTEMPT: "the attempt is read, and the member is proposed again at once",
    Reason.OVERRIDE_EXPIRED: "the request is planned again without the override",
    Reason.INTENT_MISMATCH: "the committed claim is adopted",
    Reason.RESERVATION_EXPIRED: "response to a bind, not to a proposal",
    Reason.RESERVATION_MISSING: "response to a bind, not to a proposal",
    Reason.OWNER_DELETED: "reason of a release",
    Reason.CLAIM_LOST: "reason of a stop order or a release",
    Reason.STOP_NOT_CONFIRMED: "response to a release",
    Reason.LEASE_EXPIRED: "response to a heartbeat",
    Reason.SLOT_ADMITTED: "about recovery slots",
    Reason.SLOTS_UNSCHEDULABLE: "about recovery slots",
    Reason.NOT_LEADER: "the call fails; the request waits for the authority (Waiting)",
    Reason.RESTORE_IN_PROGRESS: "the call fails; the request waits for the authority (Waiting)",
}
"""Reasons of planner and authority that never keep a request pending."""


def test_every_suggested_fix_has_an_explained_reason() -> None:
    from holdfast.insight import remedies

    assert set(remedies.ON_NODE) | set(remedies.BEYOND_NODES) <= EXPLAINED


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


def test_timeline_of_serving_replica_is_ordered() -> None:
    replica = factories.replica(0, status=factories.serving_status())
    timeline = replica_timeline(replica, Evidence())
    assert (timeline.stage, timeline.next_owner) == ("Serving", "nobody")
    assert [e.stage for e in timeline.events] == ["Queued", "Ready", "Serving"]


def test_pending_summary_and_decision_entries_name_first_reason() -> None:
    too_large = requirements_of(request({"cpu": "9"}, count=2))
    made = plan(build_snapshot("us-east", [NODE]), [too_large], PolicyRules(), 0, 1)
    (refused,) = made.request_plans
    summary = pending_summary(refused.refusals, 2)
    assert summary == "2 replicas pending: 1 node InsufficientCpu (needs 9 cpu, best free 8 on node n1)"
    assert [e.reason for e in refused.decision_entries()] == [Reason.INSUFFICIENT_CPU] * 2


def test_pending_summary_counts_no_nodes_for_a_reason_that_no_node_causes() -> None:
    refusals = (
        RefusalCount(reason=Reason.QUOTA_EXCEEDED, message="exceeds the quota"),
        RefusalCount(reason=Reason.NODE_CORDONED, nodes=2),
    )
    summary = pending_summary(refusals, 1)
    assert summary == "1 replica pending: QuotaExceeded (exceeds the quota); 2 nodes NodeCordoned"


def test_retry_events_follow_refusal_reasons() -> None:
    assert "GrantChanged" in retry_events([Reason.QUOTA_EXCEEDED])
    assert "CapacityFreed" in retry_events([Reason.INSUFFICIENT_CPU])
    assert "CapacityFreed" not in retry_events([Reason.LABELS_DO_NOT_MATCH])
    assert "ReplicaPlaced" in retry_events([Reason.AFFINITY_NOT_MET])
    assert "ReplicaPlaced" in retry_events([Reason.PORT_IN_USE]), "a commit gives dynamic ports their numbers"
    assert {"NodeAdded", "PolicyChanged"} <= set(retry_events([]))
