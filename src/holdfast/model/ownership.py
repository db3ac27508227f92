"""Field ownership: which roles may write which field group of each kind (S6).

A group is a dotted path in the object. The longest path in the table that covers a field applies. A write that changes
a group which its writer does not own is refused as a whole.
"""

from __future__ import annotations

from holdfast.model.kinds import ALL, Home
from holdfast.model.override import break_glass_prefix

OPERATOR = "operator"
USER = "user"
LINK = "link"
REGION = "region"
AGENT = "agent"
AUTHORITY = "authority"
GARBAGE_COLLECTOR = "collect"
JOIN = "join"

_PEOPLE = frozenset({OPERATOR, USER})


def _roles(*roles: str) -> frozenset[str]:
    return frozenset(roles)


# kind → group → roles. `metadata` covers labels and annotations; finalizers have their own table below.
OWNERS: dict[str, dict[str, frozenset[str]]] = {
    "Tenant": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("quota")},
    "Region": {
        "metadata": _roles(OPERATOR),
        "spec": _roles(OPERATOR),
        "status": _roles("region-health"),
        "status.report": _roles(REGION),
    },
    "PriorityClass": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles(OPERATOR)},
    "Quota": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("grant")},
    "Grant": {"metadata": _roles("grant"), "spec": _roles("grant"), "status": _roles(REGION)},
    "RecoveryBudget": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("recover")},
    "SchedulerPolicy": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("policy")},
    "PolicyRevision": {"metadata": _roles("policy"), "spec": _roles("policy"), "status": _roles("policy")},
    "Workload": {
        "metadata": _PEOPLE,
        "spec": _PEOPLE,
        "status": _roles("workload-status"),
        "status.scale": _roles("autoscale"),
        "status.load": _PEOPLE,
        "status.rollout": _roles("rollout"),
        "status.backing": _roles("backing"),
        "status.spillover": _roles("assign"),
    },
    "Assignment": {
        "metadata": _roles("assign", "recover"),
        "spec": _roles("assign", "recover"),
        "status": _roles(REGION),
    },
    "Override": {
        "metadata": _roles(OPERATOR, REGION),
        "spec": _roles(OPERATOR, REGION),
        # The link ends a break-glass override in its region when its record at the global cell is revoked.
        "spec.revoked": _roles(OPERATOR, REGION, LINK),
        "status": _roles("override"),
    },
    "Recovery": {"metadata": _roles("recover"), "spec": _roles("recover"), "status": _roles("recover")},
    "GrantCopy": {"metadata": _roles("grant-sync"), "spec": _roles("grant-sync"), "status": _roles(AUTHORITY)},
    "Node": {
        "metadata": _roles(AGENT, OPERATOR),
        "spec": _roles(AGENT),
        "spec.unschedulable": _roles(OPERATOR, "node-pool"),
        "spec.drain": _roles(OPERATOR),
        "spec.drainSeconds": _roles(OPERATOR),
        "spec.taints": _roles(AGENT, OPERATOR),
        "status": _roles("node-health"),
        "status.contact": _roles("node-health"),
        "status.execution": _roles(AGENT),
        "status.drain": _roles("drain"),
        "status.fence": _roles(AUTHORITY),
    },
    "NodePool": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("node-pool")},
    "RecoverySlot": {
        "metadata": _roles("recovery-slots"),
        "spec": _roles("recovery-slots"),
        "status": _roles("recovery-slots"),
        "status.admission": _roles(AUTHORITY),
        "status.consumer": _roles(AUTHORITY),
    },
    "Replica": {
        "metadata": _roles("replicate"),
        "spec": _roles("replicate"),
        "status": _roles(AUTHORITY),
        "status.placement": _roles(AUTHORITY),
        "status.execution": _roles(AGENT),
        "status.contact": _roles("node-health"),
        "status.traffic": _roles("serve"),
        "status.release": _roles("release"),
        "status.repair": _roles("repair"),
    },
    "SchedulingRequest": {
        "metadata": _roles("replicate"),
        "spec": _roles("replicate"),
        "status": _roles("scheduler"),
        "status.gang": _roles(AUTHORITY),
    },
    "Reservation": {"metadata": _roles(AUTHORITY), "spec": _roles(AUTHORITY), "status": _roles(AUTHORITY)},
    "Binding": {"metadata": _roles(AUTHORITY), "spec": _roles(AUTHORITY), "status": _roles(AGENT)},
    "Decision": {"metadata": _roles(AUTHORITY), "spec": _roles(AUTHORITY), "status": _roles(AUTHORITY)},
    "Endpoint": {
        "metadata": _roles("serve", REGION),
        "spec": _roles("serve", REGION),
        "status": _roles("serve", REGION),
    },
    "JoinToken": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles(JOIN)},
    "NodeIdentity": {
        "metadata": _roles(JOIN),
        "spec": _roles(JOIN),
        "spec.revokedGeneration": _roles(OPERATOR),
        "status": _roles(JOIN),
    },
    "LeasePage": {"metadata": _roles(AUTHORITY), "spec": _roles(AUTHORITY), "status": _roles(AUTHORITY)},
}

# Any authorized role may write these kinds. Validation only lets a Term increase.
UNOWNED = frozenset({"Event", "Lease", "Term"})

# Roles that may delete a kind, besides operators and garbage collection. Agents may delete only their own Node.
DELETERS: dict[str, frozenset[str]] = {
    "Workload": _PEOPLE | {"batch-ttl"},
    "Node": _roles(OPERATOR, AGENT),
    "Assignment": _roles("assign", "recover"),
    "Replica": _roles("replicate", OPERATOR, USER),
    "SchedulingRequest": _roles("replicate"),
    "Reservation": _roles(AUTHORITY),
    "Binding": _roles(AUTHORITY),
    "Decision": _roles(AUTHORITY),
    "Endpoint": _roles("serve", REGION),
    "Grant": _roles("grant"),
    "GrantCopy": _roles("grant-sync"),
    "RecoverySlot": _roles("recovery-slots"),
    "JoinToken": _roles(JOIN),
    "LeasePage": _roles(AUTHORITY),
    "PolicyRevision": _roles("policy"),
    "Override": _roles("override"),
    "Recovery": _roles("recover"),
}

ASSIGNMENTS_FINALIZER = "holdfast.dev/assignments"
RELEASE_FINALIZER = "holdfast.dev/release"
TENANT_CONTENTS = "holdfast.dev/tenant-contents"

# Finalizer → (role that removes it, seconds after which it is reported as overdue).
FINALIZERS: dict[str, tuple[str, float]] = {
    ASSIGNMENTS_FINALIZER: ("assign", 900.0),
    RELEASE_FINALIZER: ("release", 600.0),
    TENANT_CONTENTS: ("collect", 900.0),
    "holdfast.dev/region-assignments": ("assign", 900.0),
    "foregroundDeletion": ("collect", 900.0),
    "orphan": ("collect", 60.0),
}

# Finalizers that the gate adds to every new object of a kind.
INITIAL_FINALIZERS: dict[str, tuple[str, ...]] = {
    "Workload": (ASSIGNMENTS_FINALIZER,),
    "Tenant": (TENANT_CONTENTS,),
    "Replica": (RELEASE_FINALIZER,),
}


def owners(kind: str, group: str, *, mirrored_here: bool = False) -> frozenset[str]:
    """The roles that may change `group`. In a region only the link may change copies of global objects."""
    if mirrored_here:
        return frozenset({LINK})
    table = OWNERS.get(kind, {})
    while group:
        if group in table:
            return table[group]
        group = group.rpartition(".")[0]
    return frozenset()


def deleters(kind: str, *, mirrored_here: bool = False) -> frozenset[str]:
    if mirrored_here:
        return frozenset({LINK})
    return DELETERS.get(kind, frozenset()) | {OPERATOR, GARBAGE_COLLECTOR}


_GLOBAL_KINDS = frozenset(kind.name for kind in ALL if kind.home is Home.GLOBAL)


def is_mirrored_here(kind_name: str, cell: str, name: str = "") -> bool:
    """Whether objects of this kind in this cell are copies of global objects. Break-glass overrides are not."""
    if kind_name == "Override" and name.startswith(break_glass_prefix(cell)):
        return False
    return cell != "global" and kind_name in _GLOBAL_KINDS
