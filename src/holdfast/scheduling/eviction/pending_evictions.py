"""Number of replicas of an Assignment that must be evicted and are not released yet. The region requests its disruption
share for them. Pure.

Invariant: every pending eviction that needs the budget is counted, whether or not the budget allows it now.
- If one were not counted, the global cell would never grant a share, and the eviction would wait forever.
- If one were counted only while blocked, the share would be withdrawn as soon as it was granted.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.assignment import Assignment
from holdfast.model.binding import Reservation
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.node import Node
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.model.workload import WorkloadType
from holdfast.scheduling import replicate
from holdfast.scheduling.disruption_budget import evicting_measure, must_leave
from holdfast.scheduling.eviction import over_quota, preempted, rebalance


def pending_evictions(assignment: Assignment, replicas: Sequence[Replica], view: View) -> int:
    """Serving replicas to evict: for a drain, a taint, a preemption, an ended emergency quota, a move for a more even
    spread, or a replacement in place."""
    if assignment.spec.type is not WorkloadType.SERVICE:
        return 0
    serving = [
        r for r in replicas if stage(r) is Stage.SERVING and not r.metadata.terminating and not _is_release_requested(r)
    ]
    if not serving:
        return 0
    evicting = bool(view.total(Node, "", evicting_measure))
    nominated = bool(view.total(Reservation, "", preempted.nomination_measure))
    over = _over_quota(assignment.metadata.namespace, view)
    siblings = view.by(Replica, "workload", f"{assignment.metadata.namespace}/{assignment.spec.workload}")
    replacing = replicate.replaces_in_place(assignment, replicas, siblings)
    moving = any(rebalance.release_request(r) for r in serving)
    if not (evicting or nominated or over or replacing or moving):
        return 0
    return sum(
        (replacing and r.spec.revision != assignment.spec.revision)
        or r.uid in over
        or bool(rebalance.release_request(r))
        or (evicting and _must_leave_its_node(r, view))
        or (nominated and not r.spec.reclaimable and preempted.nomination_of(r, view) is not None)
        for r in serving
    )


def _is_release_requested(replica: Replica) -> bool:
    release = replica.status.release
    return release is not None and release.attempt == replica.status.placement.attempt


def _must_leave_its_node(replica: Replica, view: View) -> bool:
    node: Node | None = view.get(Node, replica.status.placement.node)
    return node is not None and must_leave(replica, node)


def _over_quota(tenant: str, view: View) -> frozenset[str]:
    excess = over_quota.quota_excess(view.list(GrantCopy, tenant))
    return (
        frozenset(r.uid for r in over_quota.over_quota_victims(view.list(Replica, tenant), excess))
        if excess
        else frozenset()
    )
