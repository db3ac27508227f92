"""Who may write what: each field group of each kind has one writer (S6).

A group is a dotted path in the object; the longest path in the table that covers a field decides. A write that
changes a group its writer does not own is refused as a whole.
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
COLLECT = "collect"
JOIN = "join"

_PEOPLE = frozenset({OPERATOR, USER})


def _one(*roles: str) -> frozenset[str]:
    return frozenset(roles)


# kind → group → roles. `metadata` covers labels and annotations; finalizers have a table of their own below.
OWNERS: dict[str, dict[str, frozenset[str]]] = {
    "Tenant": {"metadata": _one(OPERATOR), "spec": _one(OPERATOR), "status": _one("quota")},
    "Region": {
        "metadata": _one(OPERATOR),
        "spec": _one(OPERATOR),
        "status": _one("region-health"),
        "status.report": _one(REGION),
    },
    "PriorityClass": {"metadata": _one(OPERATOR), "spec": _one(OPERATOR), "status": _one(OPERATOR)},
    "Quota": {"metadata": _one(OPERATOR), "spec": _one(OPERATOR), "status": _one("grant")},
    "Grant": {"metadata": _one("grant"), "spec": _one("grant"), "status": _one(REGION)},
    "RecoveryBudget": {"metadata": _one(OPERATOR), "spec": _one(OPERATOR), "status": _one("recover")},
    "SchedulerPolicy": {"metadata": _one(OPERATOR), "spec": _one(OPERATOR), "status": _one("policy")},
    "PolicyRevision": {"metadata": _one("policy"), "spec": _one("policy"), "status": _one("policy")},
    "Workload": {
        "metadata": _PEOPLE,
        "spec": _PEOPLE,
        "status": _one("workload-status"),
        "status.scale": _one("autoscale"),
        "status.load": _PEOPLE,
        "status.rollout": _one("rollout"),
        "status.backing": _one("backing"),
        "status.moves": _one("assign"),
    },
    "Assignment": {"metadata": _one("assign", "recover"), "spec": _one("assign", "recover"), "status": _one(REGION)},
    "Override": {
        "metadata": _one(OPERATOR, REGION),
        "spec": _one(OPERATOR, REGION),
        # One that was given in a region is ended there by the link, when its record is revoked at the global cell.
        "spec.revoked": _one(OPERATOR, REGION, LINK),
        "status": _one("override"),
    },
    "Recovery": {"metadata": _one("recover"), "spec": _one("recover"), "status": _one("recover")},
    "GrantCopy": {"metadata": _one("grant-sync"), "spec": _one("grant-sync"), "status": _one(AUTHORITY)},
    "Node": {
        "metadata": _one(AGENT, OPERATOR),
        "spec": _one(AGENT),
        "spec.unschedulable": _one(OPERATOR, "node-pool"),
        "spec.drain": _one(OPERATOR),
        "spec.drainSeconds": _one(OPERATOR),
        "spec.taints": _one(AGENT, OPERATOR),
        "status": _one("node-health"),
        "status.contact": _one("node-health"),
        "status.execution": _one(AGENT),
        "status.drain": _one("drain"),
        "status.fence": _one(AUTHORITY),
    },
    "NodePool": {"metadata": _one(OPERATOR), "spec": _one(OPERATOR), "status": _one("node-pool")},
    "Hold": {
        "metadata": _one("hold"),
        "spec": _one("hold"),
        "status": _one("hold"),
        "status.kept": _one(AUTHORITY),
        "status.draw": _one(AUTHORITY),
    },
    "Replica": {
        "metadata": _one("replicate"),
        "spec": _one("replicate"),
        "status": _one(AUTHORITY),
        "status.placement": _one(AUTHORITY),
        "status.execution": _one(AGENT),
        "status.contact": _one("node-health"),
        "status.traffic": _one("serve"),
        "status.release": _one("release"),
        "status.repair": _one("repair"),
    },
    "SchedulingRequest": {
        "metadata": _one("replicate"),
        "spec": _one("replicate"),
        "status": _one("scheduler"),
        "status.gang": _one(AUTHORITY),
    },
    "Reservation": {"metadata": _one(AUTHORITY), "spec": _one(AUTHORITY), "status": _one(AUTHORITY)},
    "Binding": {"metadata": _one(AUTHORITY), "spec": _one(AUTHORITY), "status": _one(AGENT)},
    "Decision": {"metadata": _one(AUTHORITY), "spec": _one(AUTHORITY), "status": _one(AUTHORITY)},
    "Endpoint": {"metadata": _one("serve", REGION), "spec": _one("serve", REGION), "status": _one("serve", REGION)},
    "JoinToken": {"metadata": _one(OPERATOR), "spec": _one(OPERATOR), "status": _one(JOIN)},
    "NodeIdentity": {
        "metadata": _one(JOIN),
        "spec": _one(JOIN),
        "spec.revokedGeneration": _one(OPERATOR),
        "status": _one(JOIN),
    },
    "LeasePage": {"metadata": _one(AUTHORITY), "spec": _one(AUTHORITY), "status": _one(AUTHORITY)},
}

# Shared by everyone who is authorized; nobody in particular owns them. Terms have a rule of their own: they only rise.
UNOWNED = frozenset({"Event", "Lease", "Term"})

# Who may ask for deletion, besides operators and the collector. People delete what they own; agents their own node.
DELETERS: dict[str, frozenset[str]] = {
    "Workload": _PEOPLE | {"batch-ttl"},
    "Node": _one(OPERATOR, AGENT),
    "Assignment": _one("assign", "recover"),
    "Replica": _one("replicate", OPERATOR, USER),
    "SchedulingRequest": _one("replicate"),
    "Reservation": _one(AUTHORITY),
    "Binding": _one(AUTHORITY),
    "Decision": _one(AUTHORITY),
    "Endpoint": _one("serve", REGION),
    "Grant": _one("grant"),
    "GrantCopy": _one("grant-sync"),
    "Hold": _one("hold"),
    "JoinToken": _one(JOIN),
    "LeasePage": _one(AUTHORITY),
    "PolicyRevision": _one("policy"),
    "Override": _one("override"),
    "Recovery": _one("recover"),
}

ASSIGNMENTS_FINALIZER = "holdfast.dev/assignments"
RELEASE_FINALIZER = "holdfast.dev/release"
TENANT_CONTENTS = "holdfast.dev/tenant-contents"

# Finalizer → (role that removes it, seconds after which someone is told that it is stuck).
FINALIZERS: dict[str, tuple[str, float]] = {
    ASSIGNMENTS_FINALIZER: ("assign", 900.0),
    RELEASE_FINALIZER: ("release", 600.0),
    TENANT_CONTENTS: ("collect", 900.0),
    "holdfast.dev/region-assignments": ("assign", 900.0),
    "foregroundDeletion": ("collect", 900.0),
    "orphan": ("collect", 60.0),
}

# Finalizers every new object of a kind starts with.
STARTING_FINALIZERS: dict[str, tuple[str, ...]] = {
    "Workload": (ASSIGNMENTS_FINALIZER,),
    "Tenant": (TENANT_CONTENTS,),
    "Replica": (RELEASE_FINALIZER,),
}


def owners(kind: str, group: str, *, mirrored_here: bool = False) -> frozenset[str]:
    """The roles that may change `group`. In a region, copies of global objects belong to the link alone."""
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
    return DELETERS.get(kind, frozenset()) | {OPERATOR, COLLECT}


_OF_THE_GLOBAL_CELL = frozenset(kind.name for kind in ALL if kind.home is Home.GLOBAL)


def is_mirrored_here(kind_name: str, cell: str, name: str = "") -> bool:
    """Whether objects of this kind in this cell are copies of what the global cell holds; those that were given in a
    region are not."""
    if kind_name == "Override" and name.startswith(break_glass_prefix(cell)):
        return False
    return cell != "global" and kind_name in _OF_THE_GLOBAL_CELL
