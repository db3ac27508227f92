"""core/v1 Node as `kubectl cordon`, `drain` and `describe node` expect it. A view; not stored. Pure.

A core Node has all fields of the holdfast.dev Node plus those that Kubernetes clients read. Pods: `pod_view`.
"""

from __future__ import annotations

import msgspec

from holdfast.model.labels import LABEL_ARCHITECTURE, LABEL_HOSTNAME, LABEL_OS, LABEL_ZONE
from holdfast.model.meta import ApiStruct, Condition, Object
from holdfast.model.node import ContactState, Node, NodeImage, NodeSpec, NodeStatus, NodeSystem, node_capacity
from holdfast.model.quantity import amounts_text


def shown_text(name: str) -> str:
    """A text that is written even if it is empty, under a name that Kubernetes chose."""
    made: str = msgspec.field(default_factory=lambda: "", name=name)
    return made


class NodeAddress(ApiStruct, frozen=True):
    type: str
    address: str


class NodeSystemInfo(ApiStruct, frozen=True):
    """Every field is always written: the typed clients of Python, Java and Rust refuse a Node that lacks one."""

    machine_id: str = shown_text("machineID")
    system_uuid: str = shown_text("systemUUID")
    boot_id: str = shown_text("bootID")
    kernel_version: str = shown_text("kernelVersion")
    os_image: str = shown_text("osImage")
    container_runtime_version: str = shown_text("containerRuntimeVersion")
    kubelet_version: str = shown_text("kubeletVersion")
    kube_proxy_version: str = shown_text("kubeProxyVersion")
    operating_system: str = shown_text("operatingSystem")
    architecture: str = shown_text("architecture")


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
    images: tuple[NodeImage, ...] = ()


class CoreNode(Object, frozen=True):
    """A Node for Kubernetes clients. nodes.holdfast.dev is the same without the core/v1 fields."""

    spec: NodeSpec
    status: CoreNodeStatus = msgspec.field(default_factory=CoreNodeStatus)


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
        images=node.status.execution.images,
        addresses=(NodeAddress("InternalIP", node.spec.address),),
        node_info=_system_info(node),
    )
    labels = {**_node_labels(node), **node.metadata.labels}
    return CoreNode(metadata=msgspec.structs.replace(node.metadata, labels=labels), spec=node.spec, status=status)


def _system_info(node: Node) -> NodeSystemInfo:
    ran, system = node.status.execution, node.status.execution.system or NodeSystem()
    return NodeSystemInfo(
        machine_id=system.machine_id,
        system_uuid=system.system_uuid,
        boot_id=system.boot_id,
        kernel_version=system.kernel_version,
        os_image=system.os_image,
        container_runtime_version=f"holdfast://{ran.agent_version}" if ran.agent_version else "",
        kubelet_version=f"holdfast-{ran.agent_version or 'unknown'}",
        operating_system=system.operating_system or "linux",
        architecture=system.architecture,
    )


def _node_labels(node: Node) -> dict[str, str]:
    """Labels that Kubernetes clients expect on every node. Part of the view: neither stored nor matched by Holdfast."""
    system = node.status.execution.system or NodeSystem()
    found = {
        LABEL_HOSTNAME: node.metadata.name,
        LABEL_OS: system.operating_system or "linux",
        LABEL_ARCHITECTURE: system.architecture,
        LABEL_ZONE: node.spec.zone,
    }
    return {label: value for label, value in found.items() if value}


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
    kept = before.metadata.labels if before is not None else {}
    shown = _node_labels(before) if before is not None else {}
    labels = {k: v for k, v in written.metadata.labels.items() if k in kept or shown.get(k) != v}
    return Node(metadata=msgspec.structs.replace(written.metadata, labels=labels), spec=spec, status=status)
