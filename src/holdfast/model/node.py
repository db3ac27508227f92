"""Node: a machine that runs replicas. Its agent registers it; operators cordon and drain it."""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.host_paths import NodeHostPath
from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.placement_rules import Taint
from holdfast.model.quantity import GPU, WHOLE_GPU_MILLI, Amount, Amounts, amounts
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_label_key,
    check_range,
    check_resources,
    check_unique,
    forbidden,
)


class Device(ApiStruct, frozen=True):
    """A device with one owner at a time. A GPU can also be shared in thousandths."""

    id: str
    kind: str = visible_default(GPU)
    model: str = ""
    milli: int = visible_default(WHOLE_GPU_MILLI)


class NodeSpec(ApiStruct, frozen=True):
    """`capacity` does not include `gpu`, which is derived from `devices`."""

    zone: str
    pool: str = visible_default("default")
    address: str = visible_default("127.0.0.1")
    capacity: dict[str, Amount] = {}
    devices: tuple[Device, ...] = ()
    port_range: tuple[int, int] = visible_default((20000, 20999))
    taints: tuple[Taint, ...] = ()
    drivers: tuple[str, ...] = visible_default(("process",))
    unschedulable: bool = visible_default(False)
    drain: bool = False
    drain_seconds: float = 0.0
    tenant: str = ""
    host_paths: tuple[NodeHostPath, ...] = ()
    """`hostPaths` are the paths that tenants may mount as hostPath volumes.

    `drainSeconds` is the deadline of a drain, after which its status is Overdue. 0: no deadline."""


class ContactState(enum.StrEnum):
    NO_LEASE = "NoLease"
    LIVE = "Live"
    EXPIRED = "Expired"
    FENCED = "Fenced"


class ContactBlock(ApiStruct, frozen=True):
    """State of the node's lease as node-health sees it. An expired lease does not prove that tasks have stopped."""

    state: ContactState = visible_default(ContactState.NO_LEASE)
    since: str = ""
    reason: str = ""


class Quarantine(ApiStruct, frozen=True):
    """The node failed to start several workloads and accepts no new replicas until `until`."""

    reason: str
    message: str = ""
    until: str = ""


class NodeImage(ApiStruct, frozen=True):
    """An image that the node has: the names it was pulled by with the digest, and its size on disk."""

    names: tuple[str, ...]
    size_bytes: int = visible_default(0)


class NodeSystem(ApiStruct, frozen=True):
    """The node's machine, as its agent found it at start. For people and Kubernetes clients: nothing decides by it."""

    architecture: str = ""
    operating_system: str = ""
    kernel_version: str = ""
    os_image: str = ""
    machine_id: str = ""
    boot_id: str = ""
    system_uuid: str = ""


class NodeExecution(ApiStruct, frozen=True):
    """The agent's report: its lease epoch, and whether it has compared running tasks with Bindings (`reconciled`).

    `isolation` is how resource limits are enforced: cgroup2, cgroup1, rlimits or none.
    """

    epoch: int = visible_default(0)
    reconciled: bool = visible_default(False)
    running: int = visible_default(0)
    agent_version: str = ""
    cached_artifacts: tuple[str, ...] = ()
    isolation: str = ""
    quarantine: Quarantine | None = None
    message: str = ""
    sequence: int = 0
    images: tuple[NodeImage, ...] = ()
    system: NodeSystem | None = None
    scratch_limit: str = ""
    """`scratchLimit` is how sizes of scratch volumes on disk are enforced: `image` (a file system of this size, and the
    task gets "no space left") or `measured` (every few seconds, and the task is stopped).

    `sequence` numbers the agent's reports. Of one epoch, a report with a lower number than the stored one is
    refused, and so is a report of an earlier epoch: it was delayed on its way."""


def cached_digests(execution: NodeExecution) -> tuple[str, ...]:
    """Digests of what the node has cached: artifacts and images."""
    if not execution.images:
        return execution.cached_artifacts
    names = (name.partition("@")[2] for image in execution.images for name in image.names)
    return (*execution.cached_artifacts, *dict.fromkeys(digest for digest in names if digest))


class DrainPhase(enum.StrEnum):
    DRAINING = "Draining"
    OVERDUE = "Overdue"
    DRAINED = "Drained"


class BlockedReplica(ApiStruct, frozen=True):
    """A replica that a drain waits for, and the reason."""

    replica: str
    reason: str = ""
    message: str = ""


class DrainBlock(ApiStruct, frozen=True):
    """Progress of a drain, and the replicas that block it. Written by drain."""

    phase: str = ""
    remaining: int = visible_default(0)
    message: str = ""
    since: str = ""
    blocked: tuple[BlockedReplica, ...] = ()


class FenceBlock(ApiStruct, frozen=True):
    """Written by the authority. Leases of this epoch or a lower one are never renewed again."""

    fenced_epoch: int = visible_default(0)
    at: str = ""
    reason: str = ""


class NodeStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    contact: ContactBlock = msgspec.field(default_factory=ContactBlock)
    execution: NodeExecution = msgspec.field(default_factory=NodeExecution)
    drain: DrainBlock | None = None
    fence: FenceBlock = msgspec.field(default_factory=FenceBlock)


class Node(Object, frozen=True):
    spec: NodeSpec
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


def node_capacity(node: Node) -> Amounts:
    """The node's capacity in base units, including devices."""
    total = amounts(node.spec.capacity)
    gpu_milli = sum(d.milli for d in node.spec.devices if d.kind == GPU)
    if gpu_milli:
        total[GPU] = gpu_milli
    return total


def unschedulable_reason(node: Node) -> str:
    """Why the node's own state forbids new replicas; empty if it allows them."""
    if node.metadata.terminating:
        return "NodeTerminating"
    if node.spec.drain:
        return "NodeDraining"
    if node.spec.unschedulable:
        return "NodeCordoned"
    if node.status.contact.state is not ContactState.LIVE:
        return "NodeUnreachable"
    if node.status.execution.epoch <= node.status.fence.fenced_epoch:
        return "NodeFenced"
    if not node.status.execution.reconciled:
        return "NodeReconciling"
    if node.status.execution.quarantine is not None:
        return "NodeQuarantined"
    return ""


def _is_older_report(old: NodeExecution, new: NodeExecution) -> bool:
    if old is new or not new.sequence or not old.sequence:
        return False
    return (new.epoch, new.sequence) < (old.epoch, old.sequence)


def validate_node(node: Node, old: Node | None) -> Causes:
    spec = node.spec
    if old is not None and _is_older_report(old.status.execution, node.status.execution):
        yield forbidden("status.execution", "this report is older than the stored one")
    yield from check_dns_label("metadata.name", node.metadata.name)
    yield from check_dns_label("spec.zone", spec.zone)
    yield from check_dns_label("spec.pool", spec.pool)
    yield from check_resources("spec.capacity", spec.capacity, device_rules=False)
    if GPU in spec.capacity:
        yield forbidden("spec.capacity.gpu", "list each GPU in spec.devices instead")
    yield from check_unique("spec.devices", (d.id for d in spec.devices))
    for index, device in enumerate(spec.devices):
        yield from check_range(f"spec.devices[{index}].milli", device.milli, 1, WHOLE_GPU_MILLI)
    yield from check_range("spec.drainSeconds", spec.drain_seconds, 0, 7 * 86400)
    low, high = spec.port_range
    yield from check_range("spec.portRange", low, 1024, 65535)
    yield from check_range("spec.portRange", high, low, 65535)
    for index, taint in enumerate(spec.taints):
        yield from check_label_key(f"spec.taints[{index}].key", taint.key)
