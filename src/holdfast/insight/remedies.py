"""Changes that would let a pending replica fit: who can make them, how large they are, and their words. Pure data.

A change of the workload comes before one of an operator, and that before more capacity: the reader of a suggestion most
often owns the workload. Among changes of one kind the smaller one comes first.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from holdfast.model.reasons import Reason


class Effort(enum.IntEnum):
    """Who makes the change, from least to most effort."""

    WAIT = 0
    """Nobody: it ends by itself."""
    WORKLOAD = 1
    """The owner of the workload edits its spec."""
    OPERATOR = 2
    """An operator changes a node, an override, a policy or a Quota."""
    SHRINK = 3
    """The workload gives up most of its request. Not suggested where an edit of its spec is sufficient."""
    CAPACITY = 4
    """An operator adds or frees capacity."""


class Remedy(msgspec.Struct, frozen=True):
    """One change. `size` orders changes of equal effort: 0 is a word in a file, 1 is all of a request or node."""

    effort: Effort
    text: str
    size: float = 0.5


ON_NODE: dict[str, tuple[Remedy, ...]] = {
    Reason.NODE_UNREACHABLE: (Remedy(Effort.OPERATOR, "restart the agent of node {node}"),),
    Reason.NODE_CORDONED: (Remedy(Effort.OPERATOR, "uncordon node {node}", 0.1),),
    Reason.NODE_DRAINING: (Remedy(Effort.OPERATOR, "end the drain of node {node}", 0.3),),
    Reason.NODE_TERMINATING: (Remedy(Effort.CAPACITY, "register node {node} again, or add another one"),),
    Reason.NODE_FENCED: (Remedy(Effort.WAIT, "wait until the agent of node {node} registers again"),),
    Reason.NODE_RECONCILING: (
        Remedy(Effort.WAIT, "wait until the agent of node {node} has reconciled its tasks", 0.0),
    ),
    Reason.NODE_QUARANTINED: (Remedy(Effort.OPERATOR, "repair node {node}: task starts fail on it", 0.8),),
    Reason.NODE_EXCLUDED_BY_OVERRIDE: (
        Remedy(Effort.OPERATOR, "end override {override}, or wait until it expires", 0.4),
    ),
    Reason.DRIVER_MISSING: (
        Remedy(Effort.WORKLOAD, "use a driver that node {node} has", 0.8),
        Remedy(Effort.CAPACITY, "add a node with the driver"),
    ),
    Reason.HOST_PATH_NOT_ALLOWED: (
        Remedy(Effort.WORKLOAD, "set readOnly, if the agent allows the path for reading", 0.2),
        Remedy(Effort.OPERATOR, "add the path to `volume_paths` of the agent of node {node}"),
    ),
    Reason.VOLUME_ON_OTHER_NODE: (
        Remedy(Effort.WORKLOAD, "delete the Volume, to start empty elsewhere", 0.9),
        Remedy(Effort.OPERATOR, "use the node that holds the volume"),
    ),
    Reason.VOLUME_NODE_LOST: (
        Remedy(Effort.WORKLOAD, "delete the Volume, to start empty elsewhere", 0.9),
        Remedy(Effort.OPERATOR, "bring the node that holds the volume back"),
    ),
    Reason.VOLUME_TERMINATING: (Remedy(Effort.WAIT, "wait until the Volume is deleted"),),
    Reason.PORT_IN_USE: (
        Remedy(Effort.WORKLOAD, "let the node choose the port (port 0)", 0.1),
        Remedy(Effort.OPERATOR, "free the port on node {node}"),
    ),
    Reason.PORTS_EXHAUSTED: (Remedy(Effort.OPERATOR, "widen the port range of node {node}"),),
    Reason.LABELS_DO_NOT_MATCH: (
        Remedy(Effort.WORKLOAD, "relax spec.placement.nodeSelector", 0.3),
        Remedy(Effort.OPERATOR, "label node {node} to match the selector", 0.2),
    ),
    Reason.TAINT_NOT_TOLERATED: (
        Remedy(Effort.WORKLOAD, "tolerate the taint of node {node} in spec.placement.tolerations", 0.3),
        Remedy(Effort.OPERATOR, "remove the taint of node {node}", 0.5),
    ),
    Reason.ZONE_NOT_ALLOWED: (Remedy(Effort.WORKLOAD, "add zone {zone} to spec.placement.zones", 0.3),),
    Reason.POOL_NOT_ALLOWED: (Remedy(Effort.WORKLOAD, "add pool {pool} to spec.placement.pools", 0.3),),
    Reason.SPREAD_VIOLATED: (
        Remedy(Effort.WORKLOAD, "raise maxSkew", 0.3),
        Remedy(Effort.CAPACITY, "free resources in the emptier zones or nodes"),
    ),
    Reason.AFFINITY_NOT_MET: (
        Remedy(Effort.WORKLOAD, "place the workload of the affinity rule first, or make the rule preferred", 0.3),
    ),
    Reason.ANTI_AFFINITY_VIOLATED: (
        Remedy(Effort.WORKLOAD, "make the anti-affinity rule preferred", 0.3),
        Remedy(Effort.CAPACITY, "add nodes without the other workload"),
    ),
    Reason.EXPRESSION_REFUSED: (
        Remedy(
            Effort.OPERATOR, "change the policy's filter expression, or the attributes of node {node} that it reads"
        ),
    ),
    Reason.INSUFFICIENT_DEVICES: (
        Remedy(Effort.WORKLOAD, "ask for fewer gpus", 0.7),
        Remedy(Effort.CAPACITY, "free {gpus} on node {node}"),
    ),
    Reason.RESIDENCY_VIOLATED: (
        Remedy(
            Effort.WORKLOAD, "let spec.placement allow region {region}, or place the workload in another region", 0.9
        ),
    ),
    Reason.TENANCY_VIOLATED: (
        Remedy(Effort.CAPACITY, "add nodes for tenant {tenant}: node {node} belongs to {owner}"),
    ),
}
"""Changes that remove a refusal of one node. Amounts (cpu, memory, …) are computed (`why_not`)."""

BEYOND_NODES: dict[str, tuple[Remedy, ...]] = {
    Reason.NO_NODES: (Remedy(Effort.CAPACITY, "add a node: the region has none"),),
    Reason.NO_GRANT: (
        Remedy(Effort.OPERATOR, "create a Quota for tenant {tenant}; the region then receives a grant", 0.3),
    ),
    Reason.QUOTA_EXCEEDED: (
        Remedy(Effort.WORKLOAD, "stop other workloads of tenant {tenant}", 0.9),
        Remedy(Effort.OPERATOR, "raise the Quota of tenant {tenant}", 0.3),
    ),
    Reason.GRANT_EXPIRED: (
        Remedy(
            Effort.OPERATOR, "restore the link between the region and the global cell: the grant cannot be renewed", 0.9
        ),
    ),
    Reason.NOT_ALLOWED_WHILE_PARTITIONED: (
        Remedy(
            Effort.OPERATOR,
            "restore the link between the region and the global cell: until then only provisional work is placed",
            0.9,
        ),
    ),
    Reason.GANG_INCOMPLETE: (
        Remedy(Effort.WORKLOAD, "lower spec.gang.minAvailable", 0.6),
        Remedy(Effort.CAPACITY, "free resources for the missing members", 0.6),
    ),
    Reason.NO_VICTIMS: (
        Remedy(Effort.WORKLOAD, "raise the priority: at the present one, preemption frees enough on no node", 0.8),
    ),
    Reason.VICTIMS_WITHIN_BUDGET: (
        Remedy(Effort.WAIT, "wait until more replicas of the named workloads serve"),
        Remedy(Effort.OPERATOR, "raise maxUnavailable of the named workloads", 0.4),
    ),
    Reason.TOO_MANY_VICTIMS: (
        Remedy(Effort.WORKLOAD, "ask for less: too many small replicas would have to leave one node", 0.6),
        Remedy(Effort.CAPACITY, "free resources"),
    ),
    Reason.PREEMPTION_BUDGET_SPENT: (
        Remedy(Effort.WAIT, "wait a minute: the tenant's evictions of this minute are used"),
        Remedy(Effort.OPERATOR, "raise preemption.perTenantPerMinute in the policy", 0.4),
    ),
    Reason.WAITING_FOR_VICTIMS: (Remedy(Effort.WAIT, "nothing: the node is reserved and the victims are stopping"),),
    Reason.WAITING_FOR_GANG: (
        Remedy(Effort.WAIT, "nothing: the node is reserved until the other gang members have one"),
    ),
    Reason.WAITING: (Remedy(Effort.WAIT, "nothing: it is retried"),),
    Reason.VICTIM_NOT_ALLOWED: (Remedy(Effort.WAIT, "nothing: it is planned again with other victims"),),
    Reason.DEVICE_IN_USE: (Remedy(Effort.WAIT, "nothing: another claim took the device first; it is planned again"),),
    Reason.NODE_NOT_FOUND: (Remedy(Effort.WAIT, "nothing: the node was removed; it is planned again on other nodes"),),
    Reason.VOLUME_IN_USE: (
        Remedy(Effort.WAIT, "nothing: the former attempt still holds the volume; it is planned again"),
    ),
    Reason.VOLUME_NOT_BOUND: (Remedy(Effort.WAIT, "nothing: it is planned again without victims"),),
    Reason.ALREADY_CLAIMED: (Remedy(Effort.WAIT, "nothing: a replica of the same name is still being released"),),
    Reason.DEADLINE_AT_RISK: (
        Remedy(Effort.WORKLOAD, "raise the priority", 0.4),
        Remedy(Effort.CAPACITY, "free resources soon"),
    ),
    Reason.DEADLINE_MISSED: (Remedy(Effort.WORKLOAD, "start the batch again with a later deadline"),),
}
"""Changes that remove a reason which no single node causes."""


def cluster_level_remedies(reason: str, tenant: str) -> tuple[Remedy, ...]:
    """The changes for a reason that no single node causes; none for other reasons."""
    found = BEYOND_NODES.get(reason, ())
    return tuple(msgspec.structs.replace(change, text=change.text.format(tenant=tenant)) for change in found)


def cluster_level_fix(reason: str, tenant: str) -> str:
    return as_choice(cluster_level_remedies(reason, tenant))


def in_order(changes: Iterable[Remedy]) -> list[Remedy]:
    """The changes by effort, then by size; of equal texts the first."""
    ordered = sorted(changes, key=lambda change: (change.effort, change.size))
    return list({change.text: change for change in reversed(ordered)}.values())[::-1]


def as_choice(changes: Iterable[Remedy]) -> str:
    """The changes as one sentence: each of them is sufficient."""
    return "; or: ".join(change.text for change in in_order(changes))
