"""What each kind is, in the words `kubectl explain KIND` prints. A test holds that every kind has its note."""

from __future__ import annotations

SPEC_NOTE = "What should be."
STATUS_NOTE = "What is, as the platform found it; written by its controllers, never by users."

KIND_NOTES: dict[str, str] = {
    "Tenant": "A team that shares the platform. It is also the namespace that `kubectl -n` names.",
    "Region": "A failure domain with its own cell, zones and nodes, and what is known of its health.",
    "PriorityClass": "Who goes first, who may make room for itself, and who gives way.",
    "Quota": "What a tenant may hold in all regions together. A resource that is not listed may not be used.",
    "Grant": "The part of a tenant's Quota that one region may give out by itself, also while it is cut off.",
    "RecoveryBudget": "Places kept free in a region, so that work with a recovery promise can move there.",
    "SchedulerPolicy": "How nodes are chosen among those that fit; promoted by revisions, region by region.",
    "PolicyRevision": "One immutable state of a SchedulerPolicy's rules, and where it decides.",
    "Workload": "What should run: a service that stays up or a batch that ends, how often, where, what is promised.",
    "Assignment": "How many replicas of a Workload one region must hold, and how far it is with them.",
    "Override": "A human decision that counts for a while: its scope, its reason, who asked, and when it ends.",
    "Recovery": "The way back from a lost region: what recovers where, and how far it is on the promised clock.",
    "GrantCopy": "A region's own copy of a Grant: the limit it enforces.",
    "Node": "A machine that runs replicas: what it has, where it is, and whether it is heard.",
    "Hold": "One place kept free on a node for a RecoveryBudget.",
    "Replica": "One instance of a Workload, from the queue to serving and to its end.",
    "SchedulingRequest": "Replicas that wait for a place together, why they wait, and when they are tried again.",
    "Reservation": "A place on a node claimed for a replica before it is bound.",
    "Binding": "A replica bound to a node: all its agent needs to run it, fenced by an epoch.",
    "Decision": "What the scheduler decided for one request and why; `holdfast replay` makes it again.",
    "Endpoint": "The addresses of a Workload in one region that may receive traffic now.",
    "JoinToken": "Lets a machine join a region as a node.",
    "NodeIdentity": "The key a node joined with, and the certificates of it that are refused.",
    "NodePool": "Nodes of one shape that are started when work waits and stopped when they stay idle.",
    "Event": "Something that happened to an object, told once and counted when it repeats.",
    "Lease": "Who leads, and until when.",
}
