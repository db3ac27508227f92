"""core/v1 Node and Pod as `kubectl cordon`, `drain` and `describe node` expect them. Views; not stored. Pure.

A core Node has all fields of the holdfast.dev Node plus those that Kubernetes clients read. A Pod is the view of a
Binding. Its uid disappears with the Binding, which is what `kubectl drain` waits for.
"""

from __future__ import annotations

import msgspec

from holdfast.model.binding import Binding
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.meta import API_VERSION, ApiStruct, Condition, Object, ObjectMeta, OwnerReference, visible_default
from holdfast.model.node import ContactState, Node, NodeSpec, NodeStatus, node_capacity
from holdfast.model.quantity import amounts_text
from holdfast.model.replica import Phase


class NodeAddress(ApiStruct, frozen=True):
    type: str
    address: str


class NodeSystemInfo(ApiStruct, frozen=True):
    machine_id: str = msgspec.field(default="", name="machineID")
    kubelet_version: str = visible_default("")
    operating_system: str = visible_default("linux")


class NodeCondition(Condition, frozen=True):
    """A condition with the agent's last heartbeat, which `kubectl describe node` shows."""

    last_heartbeat_time: str = ""


class CoreNodeStatus(NodeStatus, frozen=True):
    """The status of the Node plus the fields of core/v1."""

    conditions: tuple[NodeCondition, ...] = ()
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeSystemInfo = msgspec.field(default_factory=NodeSystemInfo)


class CoreNode(Object, frozen=True):
    """A Node for Kubernetes clients. nodes.holdfast.dev is the same without the core/v1 fields."""

    spec: NodeSpec
    status: CoreNodeStatus = msgspec.field(default_factory=CoreNodeStatus)


class ContainerResources(ApiStruct, frozen=True):
    requests: dict[str, str] = {}


class Container(ApiStruct, frozen=True):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    resources: ContainerResources = msgspec.field(default_factory=ContainerResources)


class PodSpec(ApiStruct, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    termination_grace_period_seconds: int = 0


class PodStatus(ApiStruct, frozen=True):
    phase: str = visible_default("Running")


class Pod(Object, frozen=True):
    """Read-only view of a Binding. `kubectl get replicas` shows the replicas themselves."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


_PHASES = {Phase.SUCCEEDED: "Succeeded", Phase.FAILED: "Failed", Phase.STOPPED: "Succeeded"}


def core_node_of(node: Node) -> CoreNode:
    capacity = {name: str(value) for name, value in amounts_text(node_capacity(node)).items()}
    reporting = node.status.contact.state is ContactState.LIVE
    ready = NodeCondition(
        type="Ready",
        status="True" if reporting else "Unknown",
        reason=node.status.contact.reason or "AgentNotReporting",
        message="the agent reports" if reporting else "the agent does not report",
        last_transition_time=node.status.contact.since or node.metadata.creation_timestamp,
    )
    own = {f.name: getattr(node.status, f.name) for f in msgspec.structs.fields(NodeStatus)}
    others = (c for c in node.status.conditions if c.type != "Ready")
    own["conditions"] = (*(NodeCondition(**msgspec.structs.asdict(c)) for c in others), ready)
    status = CoreNodeStatus(
        **own,
        capacity=capacity,
        allocatable=capacity,
        addresses=(NodeAddress("InternalIP", node.spec.address),),
        node_info=NodeSystemInfo(kubelet_version=f"holdfast-{node.status.execution.agent_version or 'unknown'}"),
    )
    return CoreNode(metadata=node.metadata, spec=node.spec, status=status)


def with_heartbeat_time(view: CoreNode, at: str) -> CoreNode:
    """The view with the time of the last heartbeat in every condition."""
    conditions = tuple(msgspec.structs.replace(c, last_heartbeat_time=at) for c in view.status.conditions)
    return msgspec.structs.replace(view, status=msgspec.structs.replace(view.status, conditions=conditions))


def node_from_core(written: CoreNode, before: Node | None) -> Node:
    """The Node that a core/v1 update writes. Uncordon also ends a drain, as `holdfast node uncordon` does."""
    spec = written.spec
    if before is not None and before.spec.unschedulable and not spec.unschedulable:
        spec = msgspec.structs.replace(spec, drain=False, drain_seconds=0.0)
    status = before.status if before is not None else NodeStatus()
    return Node(metadata=written.metadata, spec=spec, status=status)


def pod_of(binding: Binding) -> Pod:
    spec, meta = binding.spec, binding.metadata
    owner = OwnerReference(
        api_version=API_VERSION, kind="Replica", name=spec.replica, uid=spec.intent.replica_uid, controller=True
    )
    requests = {name: str(value) for name, value in spec.resources.items() if name in ("cpu", "memory")}
    container = Container(
        name="work", image=spec.template.bundle, command=spec.template.command, resources=ContainerResources(requests)
    )
    return Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            owner_references=(owner,),
            labels={LABEL_WORKLOAD: spec.workload, "holdfast.dev/replica": spec.replica},
        ),
        spec=PodSpec(
            node_name=spec.node,
            containers=(container,),
            termination_grace_period_seconds=int(spec.template.termination_grace_seconds),
        ),
        status=PodStatus(phase=_PHASES.get(binding.status.phase, "Running") if binding.status.phase else "Running"),
    )
