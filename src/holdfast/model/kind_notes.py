"""Description of each kind, as `kubectl explain KIND` prints it. A test checks that every kind has one."""

from __future__ import annotations

SPEC_NOTE = "Desired state."
STATUS_NOTE = "Observed state, written by controllers."

KIND_NOTES: dict[str, str] = {
    "Tenant": "A team that shares the platform. Its name is also the namespace that `kubectl -n` selects.",
    "Region": "A failure domain with its own cell, zones and nodes. The status holds its report and its health.",
    "PriorityClass": "Priority of workloads, whether they may preempt others, and whether they are reclaimable.",
    "Quota": "Resource limits of a tenant over all regions together. A resource that is not listed cannot be used.",
    "Grant": "The share of a tenant's Quota that one region may spend by itself, also while it is partitioned.",
    "RecoveryBudget": "Recovery slots that a region reserves for critical workloads of other regions.",
    "SchedulerPolicy": "How the scheduler chooses among nodes that fit. Changes are promoted region by region.",
    "PolicyRevision": "One immutable revision of a SchedulerPolicy's rules, and the regions that use it.",
    "Workload": "A service or batch to run: template, replicas, placement, disruption budget, recovery objective.",
    "Assignment": "How many replicas of a Workload one region runs, and their progress.",
    "Override": "A human exception that expires: its kind, scope, reason, requester and end.",
    "Recovery": "Recovery from the loss of one region or zone: evidence, target regions, and progress until failback.",
    "GrantCopy": "A region's copy of a Grant: the limit that the region enforces.",
    "Node": "A machine that runs replicas: its capacity, its location and its contact state.",
    "RecoverySlot": "Recovery capacity reserved on one node for a RecoveryBudget.",
    "Replica": "One instance of a Workload in one region, from the queue to serving and to its end.",
    "SchedulingRequest": "Identical replicas waiting to be scheduled, why they are pending, and when they are retried.",
    "Reservation": "A claim on a node's resources for a replica that is not bound yet.",
    "Binding": "A replica bound to a node, with everything that the node's agent needs to run it. Fenced by an epoch.",
    "Decision": "Record of one scheduling decision and its inputs. `holdfast replay` computes it again.",
    "Endpoint": "Addresses of a Workload's replicas in one region that receive traffic.",
    "JoinToken": "A token that lets a machine join a region as a node.",
    "NodeIdentity": "The key that a node joined with, and which of its certificates are valid.",
    "NodePool": "Identical nodes that are started when replicas are pending and stopped when they stay idle.",
    "Event": "Something that happened to an object. Repeated events are counted.",
    "Lease": "Holder of a leader election or a tenure, and how long it is valid.",
}
