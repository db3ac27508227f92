"""Objects for tests, as a cell returns them: with name, uid and revision."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

import msgspec

from holdfast.controllers.cache import Cache
from holdfast.model.assignment import Assignment, AssignmentSpec, AssignmentStatus, assignment_name
from holdfast.model.binding import Binding, BindingSpec, Intent, claim_name
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import ContactBlock, ContactState, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.override import ACTIVE, Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.region import HealthState, Region, RegionHealth, RegionReport, RegionSpec, RegionStatus
from holdfast.model.replica import (
    ExecutionBlock,
    Phase,
    PlacementBlock,
    Replica,
    ReplicaSpec,
    ReplicaStatus,
    TrafficBlock,
    replica_name,
)
from holdfast.model.template import Port, Template, template_hash
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Batch, Rollout, Workload, WorkloadSpec, WorkloadType

T = TypeVar("T", bound=Object)
_revisions = itertools.count(1)
TEMPLATE = Template(command=("serve",), resources={"cpu": "500m", "memory": "1Gi"}, ports=(Port(name="http"),))


def meta(name: str, namespace: str = "", **more: Any) -> ObjectMeta:
    revision = next(_revisions)
    fields = {"uid": f"uid-{namespace}-{name}", "generation": 1, "creation_timestamp": "2026-01-01T00:00:00Z", **more}
    return ObjectMeta(name=name, namespace=namespace, resource_version=str(revision), **fields)


def cache_of(*items: Object) -> Cache:
    cache = Cache()
    for item in items:
        cache.put(item)
    return cache


def with_new_revision(item: T, **changes: Any) -> T:
    """The same object at a newer revision, with changes at its top level."""
    newer = msgspec.structs.replace(item.metadata, resource_version=str(next(_revisions)))
    return msgspec.structs.replace(item, **{"metadata": newer, **changes})


def tenant(name: str = "acme") -> Tenant:
    return Tenant(metadata=meta(name))


def priority(name: str = "standard", rank: int = 0, **spec: Any) -> PriorityClass:
    return PriorityClass(metadata=meta(name), spec=PriorityClassSpec(priority=rank, **spec))


def region(
    name: str,
    *,
    residency: tuple[str, ...] = (),
    cpu: str = "16",
    state: HealthState = HealthState.HEALTHY,
    cost: int = 100,
) -> Region:
    report = RegionReport(
        at="2026-01-01T00:00:00Z", sequence=1, nodes=2, live_nodes=2, capacity={"cpu": cpu, "memory": "64Gi"}
    )
    return Region(
        metadata=meta(name),
        spec=RegionSpec(zones=(f"{name}-a", f"{name}-b"), residency=residency, cost=cost),
        status=RegionStatus(report=report, health=RegionHealth(state=state, last_sequence=1)),
    )


def workload(
    name: str = "api", namespace: str = "acme", *, replicas: int = 3, finalizers: tuple[str, ...] = (), **spec: Any
) -> Workload:
    spec = {"template": TEMPLATE, "replicas": replicas, **spec}
    return Workload(
        metadata=meta(name, namespace, finalizers=finalizers or ("holdfast.dev/assignments",)),
        spec=WorkloadSpec(**spec),
    )


def assignment(
    name: str = "api",
    where: str = "us-east",
    *,
    namespace: str = "acme",
    replicas: int = 3,
    template: Template = TEMPLATE,
    status: AssignmentStatus | None = None,
    rollout: Rollout | None = None,
    **spec: Any,
) -> Assignment:
    return Assignment(
        metadata=meta(assignment_name(name, where), namespace),
        spec=AssignmentSpec(
            workload=name,
            workload_uid=f"uid-{namespace}-{name}",
            region=where,
            replicas=replicas,
            revision=template_hash(template),
            template=template,
            workload_generation=1,
            rollout=rollout or Rollout(),
            **spec,
        ),
        status=status or AssignmentStatus(),
    )


def batch_assignment(completions: int, parallelism: int, **more: Any) -> Assignment:
    batch = Batch(completions=completions, parallelism=parallelism, backoff_limit=more.pop("backoff_limit", 6))
    return assignment(type=WorkloadType.BATCH, batch=batch, replicas=parallelism, **more)


def replica(
    ordinal: int = 0,
    of: Assignment | None = None,
    *,
    status: ReplicaStatus | None = None,
    terminating: bool = False,
    revision: str = "",
) -> Replica:
    source = of or assignment()
    spec = source.spec
    name = replica_name(spec.workload, spec.region, ordinal, spec.purpose)
    fields: dict[str, Any] = {"finalizers": ("holdfast.dev/release",)}
    if terminating:
        fields["deletion_timestamp"] = "2026-01-01T00:00:10Z"
    return Replica(
        metadata=meta(name, source.metadata.namespace, **fields),
        spec=ReplicaSpec(
            workload=spec.workload,
            workload_uid=spec.workload_uid,
            assignment=source.metadata.name,
            ordinal=ordinal,
            type=spec.type,
            revision=revision or spec.revision,
            template=spec.template,
            placement=PlacementRules(),
            exclusive=spec.exclusive,
            purpose=spec.purpose,
        ),
        status=status or ReplicaStatus(),
    )


def bound_status(node: str = "n1", *, name: str = "x", attempt: int = 1, **more: Any) -> ReplicaStatus:
    claim = claim_name(name, attempt)
    placement = PlacementBlock(attempt=attempt, node=node, zone="z", reservation=claim, binding=claim, epoch=attempt)
    return ReplicaStatus(placement=placement, **more)


def serving_status(
    node: str = "n1", *, name: str = "x", attempt: int = 1, serving: bool = True, **more: Any
) -> ReplicaStatus:
    execution = ExecutionBlock(
        attempt=attempt,
        phase=Phase.RUNNING,
        ready=True,
        address="127.0.0.1",
        ports={"http": 20000},
        ready_since="2026-01-01T00:00:05.000000Z",
    )
    traffic = TrafficBlock(serving=serving, attempt=attempt, since="") if serving else None
    return bound_status(node, name=name, attempt=attempt, execution=execution, traffic=traffic, **more)


def binding(of: Replica, node: str = "n1", *, node_epoch: int = 1, **more: Any) -> Binding:
    placement = of.status.placement
    intent = Intent(replica_uid=of.uid, template_hash=of.spec.revision, attempt=placement.attempt)
    status = more.pop("status", None)
    item = Binding(
        metadata=meta(placement.binding, of.metadata.namespace),
        spec=BindingSpec(
            replica=of.metadata.name,
            intent=intent,
            node=node,
            template=of.spec.template,
            workload=of.spec.workload,
            node_epoch=node_epoch,
            **more,
        ),
    )
    return msgspec.structs.replace(item, status=status) if status is not None else item


def confirm_deletion(region: str, *, tenant: str = "", workload: str = "") -> Override:
    """A ConfirmDeletion override that is in force."""
    scope = OverrideScope(region=region, tenant=tenant, workload=workload)
    spec = OverrideSpec(kind=OverrideKind.CONFIRM_DELETION, scope=scope, approver="another")
    status = OverrideStatus(phase=ACTIVE, expires_at="2036-01-01T00:00:00.000000Z")
    return Override(metadata=meta(f"confirm-{region}-{tenant}-{workload}"), spec=spec, status=status)


def node(name: str = "n1", *, epoch: int = 1, contact: ContactState = ContactState.LIVE, **spec: Any) -> Node:
    spec = {"zone": "z", "capacity": {"cpu": "8", "memory": "32Gi"}, **spec}
    status = NodeStatus(contact=ContactBlock(state=contact), execution=NodeExecution(epoch=epoch, reconciled=True))
    return Node(metadata=meta(name), spec=NodeSpec(**spec), status=status)
