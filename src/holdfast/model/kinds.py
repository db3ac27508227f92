"""The table of kinds: names, note, scope, home cell, type, and the functions that default and validate them.

Routes, discovery, schemas, docs and tests read this table.
"""

from __future__ import annotations

from typing import Any

from holdfast.model import (
    assignment,
    binding,
    core,
    cron_workload,
    decision,
    election_term,
    endpoint,
    grant_copy,
    join,
    lease_page,
    maintenance_window,
    node,
    node_pool,
    notification,
    override,
    priority_class,
    quota,
    recovery,
    recovery_budget,
    recovery_slot,
    region,
    replica,
    scheduler_policy,
    scheduling_request,
    secret,
    server,
    tenant,
    volume,
    workload,
)
from holdfast.model.access_kinds import ACCESS_KINDS
from holdfast.model.api_groups import COORDINATION_GROUP, CORE_GROUP
from holdfast.model.kind import Home, Kind
from holdfast.model.meta import Object

__all__ = ["ALL", "BY_NAME", "BY_PLURAL", "BY_TYPE", "Home", "Kind", "kind_of", "kind_of_store_key"]

ALL: tuple[Kind, ...] = (
    Kind(
        name="Tenant",
        plural="tenants",
        note="A team that shares the platform. Its name is also the namespace that `kubectl -n` selects.",
        type=tenant.Tenant,
        home=Home.GLOBAL,
        mirrored=True,
        validate=tenant.validate_tenant,
    ),
    Kind(
        name="Region",
        plural="regions",
        note=(
            "A failure domain with its own cell, zones, nodes and residency tags. The status holds its report and its "
            "health."
        ),
        type=region.Region,
        home=Home.GLOBAL,
        mirrored=True,
        validate=region.validate_region,
    ),
    Kind(
        name="PriorityClass",
        plural="priorityclasses",
        note="Priority of workloads, whether they may preempt others, and whether they are reclaimable.",
        type=priority_class.PriorityClass,
        home=Home.GLOBAL,
        mirrored=True,
        validate=priority_class.validate_priority_class,
        short_names=("pc",),
    ),
    Kind(
        name="Quota",
        plural="quotas",
        note=(
            "Resource limits of a tenant over all regions together: `spec.hard`, as in ResourceQuota. A resource that "
            "is not listed cannot be used."
        ),
        type=quota.Quota,
        home=Home.GLOBAL,
        namespaced=True,
        validate=quota.validate_quota,
    ),
    Kind(
        name="Grant",
        plural="grants",
        note=(
            "The share of a tenant's Quota that one region may spend by itself, also while it is partitioned. It "
            "counts against the Quota until the region returns it."
        ),
        type=quota.Grant,
        home=Home.GLOBAL,
        namespaced=True,
        validate=quota.validate_grant,
    ),
    Kind(
        name="RecoveryBudget",
        plural="recoverybudgets",
        note="Recovery slots that a region reserves for critical workloads of other regions.",
        type=recovery_budget.RecoveryBudget,
        home=Home.GLOBAL,
        mirrored=True,
        validate=recovery_budget.validate_recovery_budget,
        short_names=("rb",),
    ),
    Kind(
        name="SchedulerPolicy",
        plural="schedulerpolicies",
        note=(
            "How the scheduler chooses among nodes that fit: filters, scores, queue order and preemption. Changes are "
            "promoted region by region."
        ),
        type=scheduler_policy.SchedulerPolicy,
        home=Home.GLOBAL,
        validate=scheduler_policy.validate_scheduler_policy,
        short_names=("policy",),
    ),
    Kind(
        name="PolicyRevision",
        plural="policyrevisions",
        note="One immutable revision of a SchedulerPolicy's rules, named by its content, and the regions that use it.",
        type=scheduler_policy.PolicyRevision,
        home=Home.GLOBAL,
        mirrored=True,
        validate=scheduler_policy.validate_policy_revision,
    ),
    Kind(
        name="Workload",
        plural="workloads",
        note="A service or batch to run: template, replicas, placement, disruption budget, recovery objective.",
        type=workload.Workload,
        home=Home.GLOBAL,
        namespaced=True,
        validate=workload.validate_workload,
        default=workload.default_workload,
        short_names=("wl",),
        categories=("all", "holdfast"),
        scalable=True,
    ),
    Kind(
        name="CronWorkload",
        plural="cronworkloads",
        note="Runs a batch Workload at the times of a cron schedule: exactly one run per tick, in whichever region.",
        type=cron_workload.CronWorkload,
        home=Home.GLOBAL,
        namespaced=True,
        validate=cron_workload.validate_cron_workload,
        default=cron_workload.default_cron_workload,
        short_names=("cwl", "cron"),
        categories=("all", "holdfast"),
    ),
    Kind(
        name="Assignment",
        plural="assignments",
        note=(
            "How many replicas of a Workload one region runs, and their progress. A recovery Assignment holds the "
            "extra replicas of a Recovery."
        ),
        type=assignment.Assignment,
        home=Home.GLOBAL,
        namespaced=True,
        mirrored=True,
        validate=assignment.validate_assignment,
        short_names=("asg",),
    ),
    Kind(
        name="Override",
        plural="overrides",
        note="A human exception that expires: its kind, scope, reason, requester and end.",
        type=override.Override,
        home=Home.GLOBAL,
        mirrored=True,
        validate=override.validate_override,
    ),
    Kind(
        name="MaintenanceWindow",
        plural="maintenancewindows",
        note="Planned work on a region, a zone or some nodes: they get no new work, and are drained, while it lasts.",
        type=maintenance_window.MaintenanceWindow,
        home=Home.GLOBAL,
        validate=maintenance_window.validate_maintenance_window,
        short_names=("mw",),
        leaf=True,
    ),
    Kind(
        name="NotificationReceiver",
        plural="notificationreceivers",
        note="A webhook that gets signed notifications of events that people must hear of. Written by operators.",
        type=notification.NotificationReceiver,
        home=Home.GLOBAL,
        validate=notification.validate_receiver,
        leaf=True,
        informed=False,
    ),
    Kind(
        name="Notification",
        plural="notifications",
        note="An event that goes to NotificationReceivers, and its delivery to each. Deleted some days after it ends.",
        type=notification.Notification,
        home=Home.GLOBAL,
        validate=notification.validate_notification,
        leaf=True,
        informed=False,
    ),
    Kind(
        name="Recovery",
        plural="recoveries",
        note="Recovery from the loss of one region or zone: evidence, target regions, and progress until failback.",
        type=recovery.Recovery,
        home=Home.GLOBAL,
        validate=recovery.validate_recovery,
    ),
    Kind(
        name="Secret",
        plural="secrets",
        note="Passwords, keys and certificates of a tenant, stored encrypted. As in Kubernetes.",
        type=secret.Secret,
        home=Home.GLOBAL,
        namespaced=True,
        group=CORE_GROUP,
        categories=(),
        validate=secret.validate_secret,
        default=secret.default_secret,
        informed=False,
        has_status=False,
    ),
    Kind(
        name="ConfigMap",
        plural="configmaps",
        note="Configuration of a tenant's workloads, as keys and values. As in Kubernetes.",
        type=secret.ConfigMap,
        home=Home.GLOBAL,
        namespaced=True,
        group=CORE_GROUP,
        categories=(),
        short_names=("cm",),
        validate=secret.validate_config_map,
        informed=False,
        has_status=False,
    ),
    Kind(
        name="VolumeClaim",
        plural="volumeclaims",
        note="Persistent space that a tenant asks for. Each replica whose template names it gets a Volume.",
        type=volume.VolumeClaim,
        home=Home.GLOBAL,
        namespaced=True,
        mirrored=True,
        validate=volume.validate_volume_claim,
        short_names=("vc",),
    ),
    Kind(
        name="Volume",
        plural="volumes",
        note="The persistent space of one replica, on the node that holds its data. It counts until it is deleted.",
        type=volume.Volume,
        home=Home.REGION,
        namespaced=True,
        validate=volume.validate_volume,
        short_names=("vol",),
    ),
    Kind(
        name="GrantCopy",
        plural="grantcopies",
        note="A region's durable copy of a Grant: the limit that the region enforces.",
        type=grant_copy.GrantCopy,
        home=Home.REGION,
        namespaced=True,
        validate=grant_copy.validate_grant_copy,
    ),
    Kind(
        name="Node",
        plural="nodes",
        note="A machine that runs replicas: its capacity, its location and its contact state.",
        type=node.Node,
        home=Home.REGION,
        validate=node.validate_node,
        short_names=("no",),
    ),
    Kind(
        name="RecoverySlot",
        plural="recoveryslots",
        note="Recovery capacity reserved on one node for a RecoveryBudget.",
        type=recovery_slot.RecoverySlot,
        home=Home.REGION,
        validate=recovery_slot.validate_recovery_slot,
    ),
    Kind(
        name="Replica",
        plural="replicas",
        note="One instance of a Workload in one region, from the queue to serving and to its end.",
        type=replica.Replica,
        home=Home.REGION,
        namespaced=True,
        validate=replica.validate_replica,
        short_names=("rep",),
        categories=("all", "holdfast"),
    ),
    Kind(
        name="SchedulingRequest",
        plural="schedulingrequests",
        note="Identical replicas waiting to be scheduled, why they are pending, and when they are retried.",
        type=scheduling_request.SchedulingRequest,
        home=Home.REGION,
        namespaced=True,
        validate=scheduling_request.validate_scheduling_request,
        short_names=("sr",),
    ),
    Kind(
        name="Reservation",
        plural="reservations",
        note="A claim on a node's resources and the tenant's quota for a replica that is not bound yet.",
        type=binding.Reservation,
        home=Home.REGION,
        namespaced=True,
        validate=binding.validate_reservation,
    ),
    Kind(
        name="Binding",
        plural="bindings",
        note="A replica bound to a node, with everything that the node's agent needs to run it. Fenced by an epoch.",
        type=binding.Binding,
        home=Home.REGION,
        namespaced=True,
        validate=binding.validate_binding,
    ),
    Kind(
        name="Decision",
        plural="decisions",
        note="Record of one scheduling decision and its inputs. `holdfast replay` computes it again.",
        type=decision.Decision,
        home=Home.REGION,
        namespaced=True,
        validate=decision.validate_decision,
    ),
    Kind(
        name="Endpoint",
        plural="endpoints",
        note="Addresses of a Workload's replicas in one region that receive traffic.",
        type=endpoint.Endpoint,
        home=Home.CELL,
        namespaced=True,
        validate=endpoint.validate_endpoint,
        short_names=("ep",),
    ),
    Kind(
        name="JoinToken",
        plural="jointokens",
        note=(
            "A token that lets machines join, a limited number of times until it expires. Stored as a hash. In a "
            "regional cell, nodes join with it; in the global cell, a region's cell."
        ),
        type=join.JoinToken,
        home=Home.CELL,
        validate=join.validate_join_token,
    ),
    Kind(
        name="NodeIdentity",
        plural="nodeidentities",
        note=(
            "The key that a node joined with, and which of its certificates are valid: those of its newest "
            "generation, unless revoked."
        ),
        type=join.NodeIdentity,
        home=Home.REGION,
        validate=join.validate_node_identity,
    ),
    Kind(
        name="Server",
        plural="servers",
        note=(
            "A machine that serves a cell: its address, its certificates, and whether they are revoked. The global "
            "cell has those of all cells."
        ),
        type=server.Server,
        home=Home.GLOBAL,
        validate=server.validate_server,
    ),
    Kind(
        name="NodePool",
        plural="nodepools",
        note="Identical nodes that are started when replicas are pending and stopped when they stay idle.",
        type=node_pool.NodePool,
        home=Home.REGION,
        validate=node_pool.validate_node_pool,
        short_names=("np",),
    ),
    Kind(
        name="LeasePage",
        plural="leasepages",
        note="Lease renewals of many nodes in one internal object.",
        type=lease_page.LeasePage,
        home=Home.REGION,
        validate=lease_page.validate_lease_page,
        internal=True,
    ),
    Kind(
        name="Term",
        plural="terms",
        note="Internal record of an election. Its store revision is the leader's fencing token.",
        type=election_term.Term,
        home=Home.CELL,
        validate=election_term.validate_term,
        internal=True,
    ),
    Kind(
        name="Event",
        plural="events",
        note="Something that happened to an object. Repeated events are counted. No component decides by it.",
        type=core.Event,
        home=Home.CELL,
        namespaced=True,
        group=CORE_GROUP,
        categories=(),
        short_names=("ev",),
        validate=core.validate_event,
        has_status=False,
        ephemeral=True,
    ),
    Kind(
        name="Lease",
        plural="leases",
        note="Holder of a leader election or a tenure, and how long it is valid. As in Kubernetes.",
        type=core.Lease,
        home=Home.CELL,
        namespaced=True,
        group=COORDINATION_GROUP,
        categories=(),
        validate=core.validate_lease,
        has_status=False,
    ),
    *ACCESS_KINDS,
)

BY_NAME: dict[str, Kind] = {kind.name: kind for kind in ALL}
BY_PLURAL: dict[str, Kind] = {kind.plural: kind for kind in ALL}
BY_TYPE: dict[type[Any], Kind] = {kind.type: kind for kind in ALL}


def kind_of(item: Object | type[Any]) -> Kind:
    """The row of an object or of its type."""
    return BY_TYPE[item if isinstance(item, type) else type(item)]


def kind_of_store_key(key: str) -> Kind | None:
    """The kind of a store key, or None if the key holds no object."""
    return BY_PLURAL.get(key[1 : key.find("/", 1)])
