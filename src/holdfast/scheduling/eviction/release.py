"""release: the only controller that decides that a replica gives up its node. Owns Replica.status.release and its
finalizer.

Each step waits for proof of the previous one: decision recorded → address withdrawn (serve) → stop requested
(authority) → stop acknowledged (agent) → claims released, attempt raised (authority) → finalizer removed, or pending
again. For a lost node, the fencing commit replaces the acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, DesiredRunState
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import current_execution, final_phase
from holdfast.model.meta import Key
from holdfast.model.node import ContactState, Node
from holdfast.model.ownership import RELEASE_FINALIZER
from holdfast.model.placement_api import ReleaseAction, ReleaseItem
from holdfast.model.placement_eligibility import evicting_taint
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, Phase, ReleaseBlock, Replica
from holdfast.model.times import micro_text, parse_time
from holdfast.model.view import View
from holdfast.model.workload import WorkloadType
from holdfast.model.writes import NO_CHANGES, Notice, Outcome, SetStatus, Update, Write
from holdfast.scheduling.batch_indexes import is_only_record
from holdfast.scheduling.disruption_budget import (
    evicting_measure,
    eviction_blocked_reason,
    is_allowed_while_not_serving,
    must_leave,
)
from holdfast.scheduling.eviction import over_quota, preempted, provisional_excess, rebalance, repair

RECHECK_AFTER_S = 2.0
"""Recheck interval of a release in progress, in case a watch event is lost."""
PORT_RETRIED_FOR_S = 5.0
"""Time for which the agent tries a port that another process has, before the replica is placed again with another.
Doubles with every attempt of the replica, so that a node whose ports are all taken costs few placements."""
PORT_RETRIED_FOR_MAX_S = 300.0
INDEX_RECORDED_CHECK_EVERY_S = 5.0
"""Interval at which a deleted replica is checked that holds the only record of a done index."""
ENDED_PHASES = frozenset({Phase.STOPPED, Phase.FAILED, Phase.SUCCEEDED})
BUDGETED_REASONS = frozenset(
    {Reason.DRAINED, Reason.EVICTED_BY_TAINT, Reason.OVER_QUOTA, Reason.PREEMPTED, Reason.REBALANCED}
)
"""Voluntary evictions, which a disruption budget may block."""


def decide(key: Key, view: View, now: float) -> Outcome:
    """The next release step of one replica."""
    replica: Replica | None = view.get(Replica, key.name, key.namespace)
    if replica is None:
        return NO_CHANGES
    placed = replica.status.placement
    if not placed.binding and not placed.reservation:
        return _remove_finalizer(replica, view)
    binding: Binding | None = view.get(Binding, placed.binding, key.namespace) if placed.binding else None
    node: Node | None = view.get(Node, placed.node)
    requested = replica.status.release
    if requested is None or requested.attempt != placed.attempt:
        return _decide_release(replica, binding, node, view, now)
    return _continue_release(replica, binding, node, requested, now)


def _remove_finalizer(replica: Replica, view: View) -> Outcome:
    """The replica holds no claims: if it is being deleted, remove the finalizer. The only record of a done index
    stays."""
    if not replica.metadata.terminating or RELEASE_FINALIZER not in replica.metadata.finalizers:
        return NO_CHANGES
    if is_only_record(replica, view.get(Assignment, replica.spec.assignment, replica.metadata.namespace)):
        return Outcome(requeue_after_s=INDEX_RECORDED_CHECK_EVERY_S)
    rest = tuple(f for f in replica.metadata.finalizers if f != RELEASE_FINALIZER)
    meta = msgspec.structs.replace(replica.metadata, finalizers=rest)
    return Outcome(writes=(Update(msgspec.structs.replace(replica, metadata=meta)),))


def _decide_release(replica: Replica, binding: Binding | None, node: Node | None, view: View, now: float) -> Outcome:
    found = _release_reason(replica, binding, node, view, now)
    if found is None:
        evicting = node is not None and must_leave(replica, node)
        unconfirmed = binding is not None and bool(binding.spec.run_until)
        over = binding is not None and bool(over_quota.eviction_reason(replica, view))
        nominated = preempted.nomination_of(replica, view) or preempted.gang_nomination_of(replica, view)
        moving = bool(rebalance.release_request(replica))
        pending = evicting or unconfirmed or over or nominated is not None or moving
        return Outcome(requeue_after_s=RECHECK_AFTER_S) if pending else NO_CHANGES
    reason, requester, message = found
    block = ReleaseBlock(
        attempt=replica.status.placement.attempt,
        reason=reason,
        message=message,
        requested_by=requester,
        at=micro_text(now),
    )
    required_revision = _required_revision(replica, reason)
    write: Write = SetStatus(
        "Replica", replica.key, replica.uid, blocks={"release": block}, if_revision=required_revision
    )
    notice = Notice(replica, reason, message, warning=reason is Reason.NODE_LOST)
    return Outcome(writes=(write,), notices=(notice,))


def _required_revision(replica: Replica, reason: Reason) -> int:
    """The only revision at which the decision may be recorded; 0 for any.

    If eviction is allowed only because the replica does not serve, a replica that starts serving is decided again.
    """
    reclaimed = reason is Reason.PREEMPTED and replica.spec.reclaimable  # the budget does not apply
    return (
        replica.revision
        if reason in BUDGETED_REASONS and is_allowed_while_not_serving(replica) and not reclaimed
        else 0
    )


def _release_reason(
    replica: Replica, binding: Binding | None, node: Node | None, view: View, now: float
) -> tuple[Reason, str, str] | None:
    """Reason, requester and message of a release; None if the replica stays."""
    if replica.metadata.terminating:
        return _deletion_reason(replica, view)
    ended = final_phase(replica)
    if ended is not None and current_execution(replica) is not None:
        return Reason.FINISHED, "release", f"the task ended ({ended.value}); its claims are released"
    if binding is not None and _is_lost(binding, node):
        return Reason.NODE_LOST, "node-health", f"node {binding.spec.node} is lost; the replica is rescheduled"
    if binding is not None and binding.spec.stop_reason == Reason.CLAIM_LOST:
        message = f"its Binding was lost; the task is stopped on node {binding.spec.node}, and the replica placed again"
        return Reason.CLAIM_LOST, "authority", message
    if binding is not None and binding.status.phase in ENDED_PHASES and binding.spec.run_until:
        return Reason.PROVISIONAL_EXPIRED, "agent", f"the provisional placement expired at {binding.spec.run_until}"
    if binding is not None and binding.status.phase in ENDED_PHASES:
        return Reason.NODE_REJOINED_WITHOUT_TASK, "agent", f"node {binding.spec.node} no longer runs the task"
    execution = current_execution(replica)
    if execution is not None and execution.phase is Phase.FAILED and replica.spec.type is WorkloadType.SERVICE:
        return (
            Reason.EXITED,
            "agent",
            f"the task failed on node {replica.status.placement.node}: {execution.message or execution.reason}",
        )
    if node is not None and execution is not None and _cannot_start_here(node, execution):
        return (
            Reason.NODE_QUARANTINED,
            "release",
            f"cannot be started on node {node.metadata.name}: {execution.message}",
        )
    if execution is not None and _needs_other_port(replica, execution, now):
        return Reason.ASSIGNED_PORT_IN_USE, "release", execution.message
    repair_reason = repair.release_request(replica)
    if repair_reason:
        return Reason.RESCHEDULED_BY_REPAIR, "repair", repair_reason
    uncovered = provisional_excess.eviction_reason(replica, binding, view, now) if binding is not None else ""
    if uncovered:
        return Reason.PROVISIONAL_WITHDRAWN, "grant", uncovered
    excess = over_quota.eviction_reason(replica, view) if binding is not None else ""
    if excess and not eviction_blocked_reason(replica, view, over_quota=True):
        return Reason.OVER_QUOTA, "grant", excess
    if excess and over_quota.is_drain_overdue(replica, view, now):
        return Reason.OVER_QUOTA, "grant", f"{excess}; its drain deadline has passed, so no disruption budget applies"
    if node is not None and node.spec.drain and not eviction_blocked_reason(replica, view):
        return Reason.DRAINED, "drain", f"node {node.metadata.name} is draining"
    taint = evicting_taint(node.spec.taints, replica.spec.placement.tolerations) if node is not None else None
    if node is not None and taint is not None and not eviction_blocked_reason(replica, view):
        what = f"{taint.key}={taint.value}" if taint.value else taint.key
        return Reason.EVICTED_BY_TAINT, "release", f"does not tolerate taint {what} of node {node.metadata.name}"
    better = rebalance.release_request(replica)
    if better and not eviction_blocked_reason(replica, view) and not rebalance.stop_reason(view, now):
        return Reason.REBALANCED, "rebalance", better
    return preempted.preemption_reason(replica, view)


def _cannot_start_here(node: Node, execution: ExecutionBlock) -> bool:
    """Whether the task waits for a restart on a node that is quarantined for failed starts."""
    failing = execution.phase is Phase.BACKING_OFF and execution.reason in (Reason.START_ERROR, Reason.DISK_FULL)
    return failing and node.status.execution.quarantine is not None


def _needs_other_port(replica: Replica, execution: ExecutionBlock, now: float) -> bool:
    """Whether the task cannot start because another process has a port that the authority chose. Only a new placement
    chooses again. The agent tries the port again first: the process may end."""
    failing = execution.phase is Phase.BACKING_OFF and execution.reason == Reason.ASSIGNED_PORT_IN_USE
    placed = replica.status.placement
    doublings = min(max(placed.attempt - 1, 0), 10)
    retried_for_s = min(PORT_RETRIED_FOR_S * 2**doublings, PORT_RETRIED_FOR_MAX_S)
    return failing and (not placed.bound_at or now - parse_time(placed.bound_at) >= retried_for_s)


def _deletion_reason(replica: Replica, view: View) -> tuple[Reason, str, str]:
    assignment: Assignment | None = view.get(Assignment, replica.spec.assignment, replica.metadata.namespace)
    if assignment is None or assignment.metadata.terminating or not assignment.spec.replicas:
        return Reason.OWNER_DELETED, "replicate", "the workload has no replicas in this region any more"
    if assignment.spec.revision != replica.spec.revision:
        return Reason.REVISION_REPLACED, "replicate", f"revision {assignment.spec.revision} replaces this one"
    siblings: Iterable[Replica] = view.by(Replica, "assignment", str(assignment.key))
    remaining = sum(not r.metadata.terminating and final_phase(r) is None for r in siblings)
    if remaining < assignment.spec.replicas and replica.spec.type is WorkloadType.SERVICE:
        desired_count = assignment.spec.replicas
        return Reason.DELETED, "a user", f"deleted while {desired_count} replicas are desired; it will be replaced"
    return Reason.SCALED_DOWN, "replicate", "scaled down, or deleted by a user"


def _is_lost(binding: Binding, node: Node | None) -> bool:
    """Whether the node was fenced or removed, so that the replica may be rescheduled."""
    return node is None or node.status.fence.fenced_epoch >= binding.spec.node_epoch


def _continue_release(
    replica: Replica, binding: Binding | None, node: Node | None, requested: ReleaseBlock, now: float
) -> Outcome:
    traffic = replica.status.traffic
    if traffic is not None and traffic.serving and traffic.attempt == requested.attempt:
        return Outcome(requeue_after_s=RECHECK_AFTER_S)  # serve withdraws the address first, and that wakes this key
    if binding is None or binding.status.phase in ENDED_PHASES or _is_lost(binding, node):
        return Outcome(releases=(_item(replica, ReleaseAction.FREE, requested),), requeue_after_s=RECHECK_AFTER_S)
    if traffic is not None and traffic.since and traffic.attempt == requested.attempt and _runs(binding):
        # Clients see the withdrawal with a delay; the task must keep serving until then.
        left_s = parse_time(traffic.since) + replica.spec.template.drain_delay_seconds - now
        if left_s > 0:
            return Outcome(requeue_after_s=left_s)
    if _runs(binding):
        return Outcome(releases=(_item(replica, ReleaseAction.STOP, requested),), requeue_after_s=RECHECK_AFTER_S)
    return Outcome(requeue_after_s=RECHECK_AFTER_S * 5)


def _runs(binding: Binding) -> bool:
    return binding.spec.desired is not DesiredRunState.STOP


def _item(replica: Replica, action: ReleaseAction, requested: ReleaseBlock) -> ReleaseItem:
    return ReleaseItem(
        namespace=replica.metadata.namespace,
        replica=replica.metadata.name,
        replica_uid=replica.uid,
        attempt=requested.attempt,
        action=action,
        reason=requested.reason,
        grace_seconds=preempted.termination_grace_s(replica, requested.reason),
    )


def woken_by_copy(new: GrantCopy | None, old: GrantCopy | None, view: View) -> Iterable[Key]:
    """Wakes the replicas of a tenant that is over quota, and its provisional replicas: the grant may not cover them."""
    return [*over_quota.woken_by_copy(new, old, view), *provisional_excess.woken_by_copy(new, old, view)]


def keys(view: View) -> Iterable[Key]:
    return [replica.key for replica in view.list(Replica)]


def woken_by_replica(new: Replica | None, old: Replica | None, view: View) -> Iterable[Key]:
    """Wakes a replica that is being released, has ended or fails to start."""
    if new is None:
        return ()
    status = new.status
    requested = bool(repair.release_request(new) or rebalance.release_request(new))
    releasing = new.metadata.terminating or status.release is not None or requested
    execution = current_execution(new)
    stuck = execution is not None and execution.phase in (*ENDED_PHASES, Phase.BACKING_OFF)
    if releasing or stuck:
        return (new.key,)
    return ()


def woken_by_binding(new: Binding | None, old: Binding | None, view: View) -> Iterable[Key]:
    item = new or old
    if item is None:
        return ()
    if new is not None and old is not None and new.status == old.status and new.spec.desired is old.spec.desired:
        return ()
    if old is None and item.status.phase is None and item.spec.desired is DesiredRunState.RUN:
        return ()
    return (Key(item.metadata.namespace, item.spec.replica),)


def woken_by_node(new: Node | None, old: Node | None, view: View) -> Iterable[Key]:
    """Wakes all replicas of a node that was fenced, drained, tainted, quarantined or removed."""
    item = new or old
    if item is None:
        return ()
    if new is not None and old is not None:
        quarantined = new.status.execution.quarantine is not None and old.status.execution.quarantine is None
        evicts = (new.spec.drain, new.spec.taints) != (old.spec.drain, old.spec.taints)
        if new.status.fence == old.status.fence and not evicts and not quarantined:
            return ()
    elif new is not None and new.status.contact.state is not ContactState.FENCED and not evicting_measure(new):
        return ()
    return [r.key for r in view.by(Replica, "node", item.metadata.name)]
