"""Node: a machine that runs work. Its agent registers it; cordon and drain are the operator's wishes."""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
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


class Device(Part, frozen=True):
    """One exclusive thing; a GPU can also be shared in thousandths."""

    id: str
    kind: str = shown(GPU)
    model: str = ""
    milli: int = shown(WHOLE_GPU_MILLI)


class NodeSpec(Part, frozen=True):
    """`capacity` does not list devices' resources: `gpu` follows from `devices`."""

    zone: str
    pool: str = shown("default")
    address: str = shown("127.0.0.1")
    capacity: dict[str, Amount] = {}
    devices: tuple[Device, ...] = ()
    port_range: tuple[int, int] = shown((20000, 20999))
    taints: tuple[Taint, ...] = ()
    drivers: tuple[str, ...] = shown(("process",))
    unschedulable: bool = shown(False)
    drain: bool = False
    drain_seconds: float = 0.0
    tenant: str = ""
    """`drainSeconds` is how long a drain should take at most; after that it says what holds it up. 0: no deadline."""


class Contact(enum.StrEnum):
    UNSEEN = "Unseen"
    LIVE = "Live"
    LAPSED = "Lapsed"
    FENCED = "Fenced"


class ContactBlock(Part, frozen=True):
    """node-health's reading of the lease; evidence, not proof."""

    state: Contact = shown(Contact.UNSEEN)
    since: str = ""
    reason: str = ""


class Quarantine(Part, frozen=True):
    """Evidence that starts fail here whatever is started, with its end: new work stays away until then."""

    reason: str
    message: str = ""
    until: str = ""


class NodeExecution(Part, frozen=True):
    """The agent's own word: the lease epoch it runs under, and whether it has reconciled what it found running.

    `isolation` is how work is held to what it asked for: cgroup2, cgroup1, rlimits or none.
    """

    epoch: int = shown(0)
    reconciled: bool = shown(False)
    running: int = shown(0)
    agent_version: str = ""
    warm: tuple[str, ...] = ()
    isolation: str = ""
    quarantine: Quarantine | None = None
    message: str = ""


class DrainPhase(enum.StrEnum):
    DRAINING = "Draining"
    OVERDUE = "Overdue"
    DRAINED = "Drained"


class Blocked(Part, frozen=True):
    """A replica that a drain waits for, and why it stays."""

    replica: str
    reason: str = ""
    message: str = ""


class DrainBlock(Part, frozen=True):
    """drain's: how far it is, and exactly who holds it up."""

    phase: str = ""
    remaining: int = shown(0)
    message: str = ""
    since: str = ""
    blocked: tuple[Blocked, ...] = ()


class FenceBlock(Part, frozen=True):
    """Committed by the authority: leases of this epoch or below are never renewed again."""

    fenced_epoch: int = shown(0)
    at: str = ""
    reason: str = ""


class NodeStatus(Part, frozen=True):
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
    """All of a node's capacity in base units, devices included."""
    total = amounts(node.spec.capacity)
    gpu_milli = sum(d.milli for d in node.spec.devices if d.kind == GPU)
    if gpu_milli:
        total[GPU] = gpu_milli
    return total


def why_not_schedulable(node: Node) -> str:
    """The reason new work may not be placed here by the node's own state, or an empty string."""
    if node.metadata.terminating:
        return "NodeTerminating"
    if node.spec.drain:
        return "NodeDraining"
    if node.spec.unschedulable:
        return "NodeCordoned"
    if node.status.contact.state is not Contact.LIVE:
        return "NodeUnreachable"
    if node.status.execution.epoch <= node.status.fence.fenced_epoch:
        return "NodeFenced"
    if not node.status.execution.reconciled:
        return "NodeReconciling"
    if node.status.execution.quarantine is not None:
        return "NodeQuarantined"
    return ""


def validate_node(node: Node, old: Node | None) -> Causes:
    spec = node.spec
    yield from check_dns_label("metadata.name", node.metadata.name)
    yield from check_dns_label("spec.zone", spec.zone)
    yield from check_dns_label("spec.pool", spec.pool)
    yield from check_resources("spec.capacity", spec.capacity, device_rules=False)
    if GPU in spec.capacity:
        yield forbidden("spec.capacity.gpu", "GPUs are declared one by one in spec.devices")
    yield from check_unique("spec.devices", (d.id for d in spec.devices))
    for index, device in enumerate(spec.devices):
        yield from check_range(f"spec.devices[{index}].milli", device.milli, 1, WHOLE_GPU_MILLI)
    yield from check_range("spec.drainSeconds", spec.drain_seconds, 0, 7 * 86400)
    low, high = spec.port_range
    yield from check_range("spec.portRange", low, 1024, 65535)
    yield from check_range("spec.portRange", high, low, 65535)
    for index, taint in enumerate(spec.taints):
        yield from check_label_key(f"spec.taints[{index}].key", taint.key)
