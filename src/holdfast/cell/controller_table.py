"""The table of all controllers: which cell runs them, and which changes wake them.

Controllers of the link read two cells, the region and the global cell (`view.peer`), and run while the link is up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.cell.volume_controllers import claims_controller, volumes_controller
from holdfast.controllers.controller import Controller, Decide, woken_by_object
from holdfast.fleet import (
    assign,
    assign_wakes,
    autoscale,
    batch_ttl,
    cron,
    grants,
    node_pools,
    overrides,
    policy,
    post_restore,
    region_health,
    volume_claims,
    workload_progress,
)
from holdfast.fleet.recovery import backing, recover
from holdfast.foundation.time_zones import find_zone
from holdfast.gate.garbage_collection import Collector
from holdfast.link import break_glass, grant_sync, mirror, report
from holdfast.link.link import Link
from holdfast.model import limits
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, Reservation
from holdfast.model.core import Lease
from holdfast.model.cron_workload import CronWorkload
from holdfast.model.election_term import Term
from holdfast.model.endpoint import Endpoint
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lease_page import LeasePage
from holdfast.model.meta import Key
from holdfast.model.node import Node
from holdfast.model.node_pool import NodePool
from holdfast.model.override import Override
from holdfast.model.priority_class import PriorityClass
from holdfast.model.quota import Grant, Quota
from holdfast.model.recovery import Recovery
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRevision, SchedulerPolicy
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.tenant import Tenant
from holdfast.model.view import View
from holdfast.model.volume import Volume, VolumeClaim
from holdfast.model.workload import Workload
from holdfast.model.writes import Outcome, Write
from holdfast.scheduling import endpoint_membership, node_health, replicate, slot_requests
from holdfast.scheduling.eviction import drain, preempted, rebalance, release, repair, stuck_finalizers

# Resync interval of node-health. A timer per node detects expiry; the resync covers a missed timer or event.
NODE_HEALTH_RESYNC_S = limits.NODE_LEASE_TTL_S
# Minimum time between two decisions about one workload, for controllers that read all its replicas every time.
WORKLOAD_DECISION_INTERVAL_S = 0.05
# Debounce of summary statuses in a burst: a key waits this long, and all changes in that time become one write.
STATUS_DEBOUNCE_S = 1.0
# Delay of every summary status: a new workload is assigned, placed and reported within it, which becomes one write.
STATUS_SETTLE_S = 0.2
# Resync interval of garbage collection. Longer than others: it reads every object.
GARBAGE_COLLECTION_RESYNC_S = 120.0
# Interval at which overdue finalizers are searched for.
FINALIZER_CHECK_EVERY_S = 60.0


def global_controllers() -> tuple[Controller, ...]:
    return (
        *_workload_controllers(),
        *_revision_controllers(),
        *_incident_controllers(),
        _finalizers("global"),
        _cron_runs(),
        claims_controller(),
        garbage_collection("global"),
    )


def garbage_collection(cell: str) -> Controller:
    """Deletes dependents of deleted owners, in every cell."""
    here = Collector(cell)
    return Controller(
        name="collect",
        decide=here.decide,
        keys=here.keys,
        wakes={kind.type: here.wake_for(kind) for kind in here.watched_kinds},
        resync_s=GARBAGE_COLLECTION_RESYNC_S,
        batch=True,
    )


def _finalizers(cell: str) -> Controller:
    """Reports overdue finalizers, in every cell."""
    return Controller(
        name="finalizers",
        decide=stuck_finalizers.decider(cell),
        keys=stuck_finalizers.keys,
        wakes={},
        reads=(*(kind.type for kind in stuck_finalizers.kinds_with_finalizers(cell)), Lease),
        resync_s=FINALIZER_CHECK_EVERY_S,
    )


def _workload_controllers() -> tuple[Controller, ...]:
    """Assignment, quota, policy, rollout and status of workloads."""
    return (
        Controller(
            name="assign",
            decide=post_restore.unless_restoring(assign.decide),
            keys=assign_wakes.keys,
            batch=True,
            wakes={
                Workload: assign_wakes.woken_by_workload,
                Assignment: assign_wakes.woken_by_assignment,
                Region: assign_wakes.woken_by_region,
                PriorityClass: assign_wakes.woken_by_priority,
                Override: assign_wakes.woken_by_override,
                VolumeClaim: volume_claims.workloads_woken_by_claim,
            },
            reads=(Tenant, Quota, Grant),
        ),
        Controller(
            name="grant",
            decide=grants.decide,
            keys=grants.keys,
            wakes={
                Quota: grants.woken_by_any,
                Grant: grants.woken_by_any,
                Assignment: grants.woken_by_any,
                Override: grants.woken_by_override,
                Region: grants.woken_by_region,
                PolicyRevision: grants.woken_by_policy,
            },
        ),
        Controller(
            name="policy",
            decide=policy.decide,
            keys=policy.keys,
            wakes={SchedulerPolicy: policy.woken_by_policy, Region: policy.woken_by_region},
            reads=(PolicyRevision,),
        ),
        Controller(
            name="workload-status",
            decide=workload_progress.decide,
            keys=workload_progress.keys,
            wakes={
                Workload: workload_progress.woken_by_workload,
                Assignment: workload_progress.woken_by_assignment,
                Region: workload_progress.woken_by_region,
                VolumeClaim: volume_claims.workloads_woken_by_claim,
            },
            reads=(PriorityClass,),
            batch=True,
            debounce_s=STATUS_DEBOUNCE_S,
            settle_s=STATUS_SETTLE_S,
        ),
    )


def _revision_controllers() -> tuple[Controller, ...]:
    """Autoscaling and deletion of finished batches."""
    return (
        Controller(
            name="autoscale",
            decide=autoscale.decide,
            keys=autoscale.keys,
            wakes={Workload: autoscale.woken_by_workload},
            reads=(Assignment, Override),
            resync_s=limits.AUTOSCALE_CHECK_EVERY_S,
        ),
        Controller(
            name="batch-ttl",
            decide=batch_ttl.decide,
            keys=batch_ttl.keys,
            wakes={Workload: batch_ttl.woken_by_workload},
        ),
    )


def _cron_runs() -> Controller:
    """Creates the runs of CronWorkloads."""
    return Controller(
        name="cron",
        decide=post_restore.unless_restoring(cron.decider(find_zone)),
        keys=cron.keys,
        wakes={CronWorkload: cron.woken_by_cron_workload, Workload: cron.woken_by_workload},
        reads=(Quota, Region, Override),
        resync_s=cron.RECHECK_S,
    )


def _incident_controllers() -> tuple[Controller, ...]:
    """Region failures, recovery and overrides."""
    return (
        Controller(
            name="region-health",
            decide=region_health.decide,
            keys=region_health.keys,
            wakes={Region: region_health.woken_by_region, Override: region_health.woken_by_override},
            reads=(Assignment,),
            resync_s=5.0,
        ),
        Controller(
            name="backing",
            decide=backing.decide,
            keys=backing.keys,
            wakes={
                Region: backing.woken_by_region,
                RecoveryBudget: backing.woken_by_spec,
                Quota: backing.woken_by_spec,
                Override: backing.woken_by_override,
                Workload: backing.woken_by_workload,
                Assignment: backing.woken_by_assignment,
                Recovery: backing.woken_by_recovery,
            },
            reads=(PriorityClass, Tenant, PolicyRevision),
            resync_s=10.0,
            pause_per_pass=9.0,  # a tenth of the process at most
        ),
        Controller(
            name="override",
            decide=overrides.decide,
            keys=overrides.keys,
            wakes={Override: overrides.woken_by_override},
            reads=(Region, Grant),
            resync_s=5.0,
        ),
        Controller(
            name="recover",
            decide=post_restore.unless_restoring(recover.decide),
            keys=recover.keys,
            wakes={
                Region: recover.woken_by_region,
                Recovery: recover.woken_by_recovery,
                Workload: recover.woken_by_workload,
                RecoveryBudget: recover.woken_by_budget,
            },
            reads=(Assignment, PriorityClass, Tenant, Quota, Grant, Override, VolumeClaim),
            resync_s=5.0,  # one key at a time: targets are chosen over all workloads together
        ),
    )


def _release_controllers() -> tuple[Controller, ...]:
    """Controllers that release replicas and drain nodes."""
    return (
        Controller(
            name="release",
            decide=release.decide,
            keys=release.keys,
            wakes={
                Replica: release.woken_by_replica,
                Binding: release.woken_by_binding,
                Node: release.woken_by_node,
                Reservation: preempted.woken_by_reservation,
                GrantCopy: release.woken_by_copy,
            },
            reads=(Assignment, Override),
            batch=True,
            sees_earlier_statuses=True,  # a disruption budget spans the replicas of a workload
        ),
        Controller(
            name="drain",
            decide=drain.decide,
            keys=drain.keys,
            wakes={Node: drain.woken_by_node, Replica: drain.woken_by_replica},
            reads=(Assignment,),
            resync_s=5.0,
        ),
    )


def rebalancing(region: str) -> Controller:
    """Moves running replicas for a more even spread. A region may run without it."""
    return Controller(
        name="rebalance",
        decide=rebalance.decider(region),
        keys=rebalance.keys,
        wakes={},
        reads=rebalance.READS,
        resync_s=rebalance.REBALANCE_CHECK_EVERY_S,
    )


def regional_controllers(region: str) -> tuple[Controller, ...]:
    return (
        Controller(
            name="replicate",
            decide=replicate.decider(region),
            keys=replicate.keys,
            wakes={
                Assignment: replicate.woken_by_assignment,
                Replica: replicate.woken_by_replica,
                SchedulingRequest: replicate.woken_by_request,
            },
            batch=True,
            min_interval_s=WORKLOAD_DECISION_INTERVAL_S,
        ),
        Controller(
            name="serve",
            decide=endpoint_membership.decider(region),
            keys=endpoint_membership.keys,
            wakes={Replica: endpoint_membership.woken_by_replica, Endpoint: endpoint_membership.woken_by_endpoint},
            batch=True,
            min_interval_s=WORKLOAD_DECISION_INTERVAL_S,
        ),
        *_release_controllers(),
        volumes_controller(),
        Controller(
            name="node-health",
            decide=node_health.decide,
            keys=node_health.keys,
            wakes={
                Node: node_health.woken_by_node,
                LeasePage: node_health.woken_by_page,
                Replica: node_health.woken_by_replica,
            },
            resync_s=NODE_HEALTH_RESYNC_S,
            batch=True,
        ),
        Controller(
            name="repair",
            decide=repair.decider(region),
            keys=repair.keys,
            wakes={},
            reads=(Replica, Override, GrantCopy),
            resync_s=limits.REPAIR_CHECK_EVERY_S,
        ),
        Controller(
            name="override",
            decide=overrides.decide,
            keys=overrides.keys_of_region(region),
            wakes={Override: overrides.woken_in_region(region)},
            reads=(Region,),
            resync_s=5.0,
        ),
        _finalizers(region),
        *_capacity_controllers(region),
        garbage_collection(region),
    )


def _capacity_controllers(region: str) -> tuple[Controller, ...]:
    """Controllers of NodePools and RecoverySlots."""
    return (
        Controller(
            name="node-pool",
            decide=node_pools.decider(region),
            keys=node_pools.keys,
            wakes={NodePool: node_pools.woken_by_pool, SchedulingRequest: node_pools.woken_by_request},
            reads=(Node, Binding, Reservation, RecoverySlot, RecoveryBudget, Volume),
            resync_s=limits.NODE_POOL_CHECK_EVERY_S,
        ),
        Controller(
            name="recovery-slots",
            decide=slot_requests.decider(region),
            keys=slot_requests.keys,
            wakes={
                RecoveryBudget: slot_requests.woken_by_budget,
                RecoverySlot: slot_requests.woken_by_slot,
                Node: slot_requests.woken_by_node,
            },
            reads=(Binding, Reservation, Tenant),
            resync_s=10.0,  # one key at a time: budgets share the nodes
        ),
    )


def link_controllers(link: Link) -> tuple[Controller, ...]:
    """Exchange of objects with the global cell."""
    return (*_copies_in_region(link), *_reports_to_global_cell(link))


def _copies_in_region(link: Link) -> tuple[Controller, ...]:
    """Controllers that write in the region."""
    region, override_expiry = link.region, link.override_expiry
    return (
        Controller(
            name="link",
            decide=_from_both_cells(
                lambda key, there, here, now: mirror.mirror_writes(
                    mirror.mirror_key(key),
                    there,
                    here,
                    now,
                    region=region,
                    timed=override_expiry.mirrored_override,
                    may_remove=link.may_remove,
                )
            ),
            prepare=link.prepare_mirror,
            keys=mirror.keys,
            wakes={
                **dict.fromkeys(mirror.MIRRORED_KINDS, mirror.woken_by_any),
                Assignment: mirror.woken_by_assignment,
                Override: mirror.woken_by_override,
                Replica: mirror.woken_by_replica,
            },
            peer_wakes={
                **dict.fromkeys(mirror.MIRRORED_KINDS, mirror.woken_by_any),
                Assignment: mirror.woken_by_original,
                Region: mirror.woken_by_region,
            },
        ),
        Controller(
            name="grant-sync",
            decide=_from_both_cells(
                lambda key, there, here, now: grant_sync.copy_writes(
                    key,
                    there,
                    here,
                    region,
                    link.contacts.last_contact_s,
                    steady_since_s=link.contacts.steady_since_s,
                    ends_s=override_expiry.to_local_s,
                )
            ),
            prepare=link.prepare_grant,
            keys=grant_sync.keys,
            wakes={GrantCopy: woken_by_object},
            peer_wakes={Grant: grant_sync.woken_by_grant},
        ),
    )


def _reports_to_global_cell(link: Link) -> tuple[Controller, ...]:
    """Controllers that write in the global cell."""
    region = link.region
    return (
        Controller(
            name="grant-acknowledgement",
            decide=lambda key, view, now: grant_sync.acknowledge(key, view.peer, view, region, now),
            keys=grant_sync.keys,
            wakes={GrantCopy: woken_by_object},
            peer_wakes={Grant: grant_sync.woken_by_grant},
            writes_peer=True,
        ),
        Controller(
            name="assignment-report",
            decide=_from_both_cells(lambda key, there, here, now: report.assignment_writes(key, there, here)),
            prepare=link.prepare_assignment_report,
            keys=lambda view: [a.key for a in view.peer.list(Assignment)],
            wakes={
                Assignment: woken_by_object,
                Replica: report.woken_by_part,
                SchedulingRequest: report.woken_by_part,
                Node: report.woken_by_node,
                Reservation: report.woken_by_reservation,
                GrantCopy: report.woken_by_copy,
                Term: report.woken_by_restore,
            },
            peer_wakes={Assignment: woken_by_object},
            writes_peer=True,
        ),
        Controller(
            name="endpoint-report",
            decide=_from_both_cells(lambda key, there, here, now: report.endpoint_writes(key, there, here)),
            keys=lambda view: [e.key for side in (view.peer, view) for e in side.list(Endpoint)],
            wakes={Endpoint: woken_by_object},
            peer_wakes={Endpoint: woken_by_object},
            writes_peer=True,
        ),
        Controller(
            name="break-glass-report",
            decide=_from_both_cells(
                lambda key, there, here, now: break_glass.record_writes(key, there, here, region, now)
            ),
            keys=lambda view: [o.key for o in view.list(Override)],
            wakes={Override: woken_by_object},
            peer_wakes={Override: woken_by_object},
            writes_peer=True,
        ),
    )


def _from_both_cells(writes: Callable[[Key, View, View, float], Iterable[Write]]) -> Decide:
    """A decision about one key that reads the global cell and this region."""
    return lambda key, view, now: Outcome(writes=tuple(writes(key, view.peer, view, now)))
