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
APPROVER = "approver"
BREAK_GLASS = "break-glass"
BUILTIN_ROLES = "builtin-roles"

_PEOPLE = frozenset({OPERATOR, USER})


def _roles(*roles: str) -> frozenset[str]:
    return frozenset(roles)


# kind → group → roles. `metadata` covers labels and annotations; finalizers have their own table below.
OWNERS: dict[str, dict[str, frozenset[str]]] = {
    "Tenant": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("quota")},
    "Region": {
        "metadata": _roles(OPERATOR),
        "spec": _roles(OPERATOR),
        # A region that joins says where its cell listens.
        "spec.endpoint": _roles(OPERATOR, JOIN),
        "spec.endpoints": _roles(OPERATOR, JOIN),
        "status": _roles("region-health"),
        "status.report": _roles(REGION),
        "status.certificate": _roles(JOIN),
    },
    "PriorityClass": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles(OPERATOR)},
    "Quota": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("grant")},
    "Grant": {"metadata": _roles("grant"), "spec": _roles("grant"), "status": _roles(REGION)},
    "RecoveryBudget": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("recover")},
    "SchedulerPolicy": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("policy")},
    "PolicyRevision": {"metadata": _roles("policy"), "spec": _roles("policy"), "status": _roles("policy")},
    "Workload": {
        "metadata": _PEOPLE | {"cron"},
        "spec": _PEOPLE | {"cron"},
        "status": _roles("workload-status"),
        "status.scale": _roles("autoscale"),
        "status.load": _PEOPLE,
        "status.backing": _roles("backing"),
        "status.spillover": _roles("assign"),
        "status.image": _roles("image-resolver"),
        "status.config": _roles("config-versions"),
    },
    "CronWorkload": {"metadata": _PEOPLE, "spec": _PEOPLE, "status": _roles("cron")},
    "Assignment": {
        "metadata": _roles("assign", "recover"),
        "spec": _roles("assign", "recover"),
        "status": _roles(REGION),
    },
    "Override": {
        "metadata": _roles(OPERATOR, REGION, "maintenance"),
        "spec": _roles(OPERATOR, REGION, "maintenance"),
        # The link ends a break-glass override in its region when its record at the global cell is revoked.
        "spec.revoked": _roles(OPERATOR, REGION, LINK, "maintenance"),
        "spec.maintenance": _roles("maintenance"),
        "spec.approver": _roles(OPERATOR, REGION, APPROVER),
        "status": _roles("override"),
    },
    "MaintenanceWindow": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("maintenance")},
    "NotificationReceiver": {"metadata": _roles(OPERATOR), "spec": _roles(OPERATOR), "status": _roles("notify")},
    # An operator creates test notifications. What is sent does not change afterwards.
    "Notification": {
        "metadata": _roles(OPERATOR, "notify"),
        "spec": _roles(OPERATOR, "notify"),
        "status": _roles("notify"),
    },
    "Recovery": {"metadata": _roles("recover"), "spec": _roles("recover"), "status": _roles("recover")},
    "Secret": {
        **dict.fromkeys(("metadata", "immutable", "data", "stringData", "type"), _PEOPLE),
        "sealed": _PEOPLE | {"reseal"},
    },
    "ConfigMap": dict.fromkeys(("metadata", "immutable", "data", "binaryData"), _PEOPLE),
    "VolumeClaim": {"metadata": _PEOPLE, "spec": _PEOPLE, "status": _roles("volume-claim")},
    "Volume": {
        "metadata": _roles(AUTHORITY),
        "spec": _roles(AUTHORITY),
        "status": _roles("volume"),
        "status.data": _roles(AGENT),
    },
    "GrantCopy": {"metadata": _roles("grant-sync"), "spec": _roles("grant-sync"), "status": _roles(AUTHORITY)},
    "Node": {
        "metadata": _roles(AGENT, OPERATOR, "maintenance"),
        "spec": _roles(AGENT),
        "spec.unschedulable": _roles(OPERATOR, "node-pool"),
        "spec.drain": _roles(OPERATOR, "maintenance"),
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
        "status.rebalance": _roles("rebalance"),
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
    "Server": {
        "metadata": _roles(JOIN),
        "spec": _roles(JOIN),
        "spec.revoked": _roles(OPERATOR),
        "status": _roles(JOIN),
    },
    "LeasePage": {"metadata": _roles(AUTHORITY), "spec": _roles(AUTHORITY), "status": _roles(AUTHORITY)},
    "BreakGlassSession": {
        "metadata": _roles(OPERATOR, BREAK_GLASS),
        "spec": _roles(OPERATOR, BREAK_GLASS),
        "spec.review": _roles(OPERATOR, APPROVER),
    },
    # Who may give which rules is decided at admission (`gate/role_admission.py`).
    "Role": {"metadata": _PEOPLE, "rules": _PEOPLE},
    "RoleBinding": {"metadata": _PEOPLE, "roleRef": _PEOPLE, "subjects": _PEOPLE},
    "ClusterRole": {"metadata": _roles(OPERATOR, BUILTIN_ROLES), "rules": _roles(OPERATOR, BUILTIN_ROLES)},
    "ClusterRoleBinding": {"metadata": _roles(OPERATOR), "roleRef": _roles(OPERATOR), "subjects": _roles(OPERATOR)},
}

# Any authorized role may write these kinds. Validation only lets a Term increase.
UNOWNED = frozenset({"Event", "Lease", "Term"})

# Roles that may delete a kind. Kinds that record what a component decided are deleted by that component alone, for
# operators too. Agents may delete only their own Node. Garbage collection is added by `deleters`.
DELETERS: dict[str, frozenset[str]] = {
    "Tenant": _roles(OPERATOR),
    "Region": _roles(OPERATOR),
    "PriorityClass": _roles(OPERATOR),
    "Quota": _roles(OPERATOR),
    "RecoveryBudget": _roles(OPERATOR),
    "SchedulerPolicy": _roles(OPERATOR),
    "MaintenanceWindow": _roles(OPERATOR),
    "NotificationReceiver": _roles(OPERATOR),
    "Notification": _roles(OPERATOR, "notify"),
    "NodePool": _roles(OPERATOR),
    "Workload": _PEOPLE | {"batch-ttl", "cron"},
    "CronWorkload": _PEOPLE,
    "Secret": _PEOPLE,
    "ConfigMap": _PEOPLE,
    "VolumeClaim": _PEOPLE,
    # Deletes the data. A tenant does so for a retained volume, or to start empty when the node is gone.
    "Volume": _PEOPLE | {"volume"},
    "Node": _roles(OPERATOR, AGENT),
    "NodeIdentity": _roles(OPERATOR),
    "JoinToken": _roles(OPERATOR, JOIN),
    # As NodeIdentity, the record of a join. A file beside the store keeps the names of revoked servers.
    "Server": _roles(OPERATOR),
    "Override": _roles(OPERATOR, "override"),
    "Replica": _roles("replicate", OPERATOR, USER),
    # An operator removes the Endpoints of a region that never returns. In a living region `serve` writes it again.
    "Endpoint": _roles("serve", REGION, OPERATOR),
    "Assignment": _roles("assign", "recover"),
    "SchedulingRequest": _roles("replicate"),
    "Reservation": _roles(AUTHORITY),
    "Binding": _roles(AUTHORITY),
    "Decision": _roles(AUTHORITY),
    "Grant": _roles("grant"),
    "GrantCopy": _roles("grant-sync"),
    "RecoverySlot": _roles("recovery-slots"),
    "LeasePage": _roles(AUTHORITY),
    "PolicyRevision": _roles("policy"),
    "Recovery": _roles("recover"),
    "BreakGlassSession": _roles(OPERATOR),
    "Role": _PEOPLE,
    "RoleBinding": _PEOPLE,
    "ClusterRole": _roles(OPERATOR),
    "ClusterRoleBinding": _roles(OPERATOR),
    "Term": frozenset(),
}

# Never collected: claims are released on proof; grants are withdrawn with an acknowledgement; the rest is state of the
# cell.
NEVER_COLLECTED = frozenset({"Reservation", "Binding", "Grant", "LeasePage", "Term"})

_RELEASE_STEP = "delete the Replica, or drain the node: the authority releases the claim when the task has stopped"
# What an operator does instead of deleting a kind that only its owner deletes.
INSTEAD_OF_DELETION: dict[str, str] = {
    "Assignment": "change or delete the Workload",
    "SchedulingRequest": "delete the Replica or the Workload",
    "Reservation": _RELEASE_STEP,
    "Binding": _RELEASE_STEP,
    "Decision": "nothing; the oldest Decisions are deleted by themselves",
    "Grant": "change the Quota",
    "GrantCopy": "change the Quota",
    "RecoverySlot": "change the RecoveryBudget",
    "LeasePage": "delete the Node, or fence it by stopping its agent",
    "PolicyRevision": "`holdfast policy rollback`",
    "Recovery": "nothing; it closes when its region is back. Revoke the Override if a person declared the loss",
    "Term": "nothing; a Term only rises",
}

# What ends an object of each kind, and what happens to the things that it stands for.
CLEANUP: dict[str, str] = {
    "Tenant": "the collector empties the tenant in order, then removes the finalizer",
    "Region": "deletion is refused while Assignments name it",
    "PriorityClass": "deletion is refused while workloads use it",
    "Quota": "its Grants are withdrawn first",
    "RecoveryBudget": "recovery-slots deletes its slots; refused while it backs an objective",
    "SchedulerPolicy": "its revisions stay: Decisions name them; not deleted while one decides",
    "PolicyRevision": "kept: Decisions name it",
    "NodePool": "its nodes stay until the provider or an operator removes them",
    "Workload": "assign empties its Assignments, then removes the finalizer",
    "CronWorkload": "its runs are deleted with it",
    "Assignment": "emptied first; deleted when its region reports nothing left",
    "Grant": "lowered first; deleted when its region enforces nothing",
    "Override": "expires or is revoked, is verified as reverted, and is deleted a week after its end",
    "MaintenanceWindow": "its Override is revoked; what it drained takes work again",
    "NotificationReceiver": "its undelivered notifications are not sent",
    "Notification": "deleted three days after its event, when every delivery has ended",
    "Recovery": "closes when everything is returned; kept as the record of the incident",
    "GrantCopy": "deleted with its Grant",
    "Secret": "deleted by its tenant; copies in regions are deleted when no workload there refers to it",
    "ConfigMap": "deleted by its tenant; copies in regions are deleted when no workload there refers to it",
    "VolumeClaim": "kept by its finalizer while workloads refer to it; then regions delete or retain its Volumes",
    "Volume": "its node deletes the data, when no replica uses it; then the finalizer is removed",
    "Node": "its claims are released; by an operator, who attests that nothing runs there, or when it is empty",
    "NodeIdentity": "kept, so that a revoked certificate stays revoked",
    "JoinToken": "expires; deleted a day later by the next join",
    "Server": "kept, so that a revoked certificate stays revoked; an operator may delete a revoked one",
    "Replica": "release stops its task and frees its claims, then removes the finalizer",
    "SchedulingRequest": "deleted when its replicas are placed or gone",
    "Reservation": "consumed by the bind, released, or expired by the authority",
    "Binding": "deleted with proof that the task has stopped, or when its removed node's lease has ended",
    "Decision": "the oldest are deleted beyond a limit",
    "Endpoint": "deleted with the last replica of the workload in the region",
    "RecoverySlot": "released when its node drains or its budget shrinks; not while it is in use",
    "LeasePage": "ended leases are removed after a day",
    "Term": "kept for ever: it must only rise",
    "Lease": "rewritten by the next holder",
    "Event": "expires; the oldest are dropped beyond a limit",
    "BreakGlassSession": "ends by itself; kept until it is reviewed, then an operator may delete it",
    "Role": "its bindings stay and grant nothing",
    "ClusterRole": "its bindings stay and grant nothing; built-in roles cannot be deleted",
    "RoleBinding": "its subjects lose the role at once; their open watches end within seconds",
    "ClusterRoleBinding": "its subjects lose the role at once; their open watches end within seconds",
}

ASSIGNMENTS_FINALIZER = "holdfast.dev/assignments"
RELEASE_FINALIZER = "holdfast.dev/release"
TENANT_CONTENTS = "holdfast.dev/tenant-contents"
VOLUME_CLAIM_FINALIZER = "holdfast.dev/volume-claim"
VOLUME_DATA_FINALIZER = "holdfast.dev/volume-data"

# Finalizer → (role that removes it, seconds after which it is reported as overdue).
FINALIZERS: dict[str, tuple[str, float]] = {
    ASSIGNMENTS_FINALIZER: ("assign", 900.0),
    RELEASE_FINALIZER: ("release", 600.0),
    TENANT_CONTENTS: ("collect", 900.0),
    "holdfast.dev/region-assignments": ("assign", 900.0),
    VOLUME_CLAIM_FINALIZER: ("volume-claim", 900.0),
    VOLUME_DATA_FINALIZER: ("volume", 900.0),
    "foregroundDeletion": ("collect", 900.0),
    "orphan": ("collect", 60.0),
}

# Finalizers that the gate adds to every new object of a kind.
INITIAL_FINALIZERS: dict[str, tuple[str, ...]] = {
    "Workload": (ASSIGNMENTS_FINALIZER,),
    "Tenant": (TENANT_CONTENTS,),
    "Replica": (RELEASE_FINALIZER,),
    "VolumeClaim": (VOLUME_CLAIM_FINALIZER,),
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
    """The roles that may delete objects of a kind. In a region only the link deletes copies of global objects."""
    if mirrored_here:
        return frozenset({LINK})
    return DELETERS.get(kind, frozenset()) | (frozenset() if kind in NEVER_COLLECTED else {GARBAGE_COLLECTOR})


_GLOBAL_KINDS = frozenset(kind.name for kind in ALL if kind.home is Home.GLOBAL)


def is_mirrored_here(kind_name: str, cell: str, name: str = "") -> bool:
    """Whether objects of this kind in this cell are copies of global objects. Break-glass overrides are not."""
    if kind_name == "Override" and name.startswith(break_glass_prefix(cell)):
        return False
    return cell != "global" and kind_name in _GLOBAL_KINDS
