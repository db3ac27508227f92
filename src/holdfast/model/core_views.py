"""core/v1 Node and Pod as `kubectl cordon`, `drain` and `describe node` expect them. Views; not stored. Pure.

A core Node has all fields of the holdfast.dev Node plus those that Kubernetes clients read. A Pod is the view of a
Binding. Its uid disappears with the Binding, which is what `kubectl drain` waits for.
"""

from __future__ import annotations

import msgspec

from holdfast.model.binding import Binding
from holdfast.model.image import with_digest
from holdfast.model.labels import LABEL_ARCHITECTURE, LABEL_HOSTNAME, LABEL_OS, LABEL_WORKLOAD, LABEL_ZONE
from holdfast.model.meta import API_VERSION, ApiStruct, Condition, Object, ObjectMeta, OwnerReference, visible_default
from holdfast.model.node import ContactState, Node, NodeImage, NodeSpec, NodeStatus, NodeSystem, node_capacity
from holdfast.model.quantity import amounts_text
from holdfast.model.replica import Phase
from holdfast.model.task_programs import MAIN_PROGRAM
from holdfast.model.template import listening_ports, udp_ports


def _shown(name: str) -> str:
    """A text that is written even if it is empty, under a name that Kubernetes chose."""
    made: str = msgspec.field(default_factory=lambda: "", name=name)
    return made


class NodeAddress(ApiStruct, frozen=True):
    type: str
    address: str


class NodeSystemInfo(ApiStruct, frozen=True):
    """Every field is always written: the typed clients of Python, Java and Rust refuse a Node that lacks one."""

    machine_id: str = _shown("machineID")
    system_uuid: str = _shown("systemUUID")
    boot_id: str = _shown("bootID")
    kernel_version: str = _shown("kernelVersion")
    os_image: str = _shown("osImage")
    container_runtime_version: str = _shown("containerRuntimeVersion")
    kubelet_version: str = _shown("kubeletVersion")
    kube_proxy_version: str = _shown("kubeProxyVersion")
    operating_system: str = _shown("operatingSystem")
    architecture: str = _shown("architecture")


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


class ContainerResources(ApiStruct, frozen=True):
    requests: dict[str, str] = {}


class ContainerPort(ApiStruct, frozen=True):
    """A port of the task, so that `kubectl port-forward` can use its name. `hostPort` is the node's."""

    name: str
    container_port: int
    protocol: str = "TCP"
    host_port: int = 0


class Container(ApiStruct, frozen=True):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    resources: ContainerResources = msgspec.field(default_factory=ContainerResources)
    args: tuple[str, ...] = ()
    restart_policy: str = ""
    ports: tuple[ContainerPort, ...] = ()
    """`restartPolicy: Always` in `initContainers` is a sidecar, as in Kubernetes."""


class PodSpec(ApiStruct, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    termination_grace_period_seconds: int = 0


class ContainerStatus(ApiStruct, frozen=True):
    name: str
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")


class PodStatus(ApiStruct, frozen=True):
    phase: str = visible_default("Running")
    container_statuses: tuple[ContainerStatus, ...] = ()


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


def pod_of(binding: Binding) -> Pod:
    spec, meta = binding.spec, binding.metadata
    owner = OwnerReference(
        api_version=API_VERSION, kind="Replica", name=spec.replica, uid=spec.intent.replica_uid, controller=True
    )
    requests = {name: str(value) for name, value in spec.resources.items() if name in ("cpu", "memory")}
    image = spec.template.image or spec.template.bundle
    ran = (
        ContainerStatus(MAIN_PROGRAM, image, with_digest(image, spec.template.image_digest))
        if spec.template.image
        else None
    )
    udp = udp_ports(spec.template)
    container = Container(
        name=MAIN_PROGRAM,
        image=image,
        command=spec.template.command,
        resources=ContainerResources(requests),
        ports=tuple(
            ContainerPort(name, inside, "UDP" if name in udp else "TCP", spec.ports[name])
            for name, inside in listening_ports(spec.template, spec.ports).items()
        ),
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
            init_containers=(
                *(Container(name=one.name, command=one.command, args=one.args) for one in spec.template.init_tasks),
                *(
                    Container(name=one.name, command=one.command, args=one.args, restart_policy="Always")
                    for one in spec.template.sidecars
                ),
            ),
            termination_grace_period_seconds=int(spec.template.termination_grace_seconds),
        ),
        status=PodStatus(
            phase=_PHASES.get(binding.status.phase, "Running") if binding.status.phase else "Running",
            container_statuses=(ran,) if ran is not None else (),
        ),
    )
