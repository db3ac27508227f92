"""Applies the region's disruption share: how many replicas of a workload may be unavailable here by voluntary action.

`maxUnavailable` covers all regions of a workload. The global cell gives each region a share in its Assignment
(`disruptionShare`); without a share, the whole budget applies to this region. The Assignment's current value applies,
not the value a replica was created with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.model.assignment import Assignment
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.node import Node
from holdfast.model.placement_eligibility import evicting_taint
from holdfast.model.placement_rules import TaintEffect
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.model.workload import WorkloadType


def disruption_share(replica: Replica, assignment: Assignment | None) -> int:
    """The region's disruption share, from the Assignment."""
    if assignment is None:
        return replica.spec.disruption.max_unavailable
    max_unavailable = assignment.spec.disruption.max_unavailable
    share = assignment.spec.disruption_share
    return max_unavailable if share is None else min(share, max_unavailable)


def eviction_blocked_reason(replica: Replica, view: View, *, over_quota: bool = False) -> str:
    """Why the disruption budget forbids evicting the replica now; empty if eviction is allowed.

    `over_quota`: the tenant exceeds its quota here, so its queued replicas wait for quota. They use no budget, or the
    first eviction would block all others."""
    if not _uses_budget(replica):
        return ""
    assignment: Assignment | None = view.get(Assignment, replica.spec.assignment, replica.metadata.namespace)
    siblings = view.by(Replica, "workload", f"{replica.metadata.namespace}/{replica.spec.workload}")
    counted = [r for r in siblings if not is_queued_without_eviction(r)] if over_quota else siblings
    return blocked_reason_among(replica, assignment, counted)


def is_queued_without_eviction(replica: Replica) -> bool:
    """Whether the replica is queued and lost no node by an eviction, except because of its tenant's quota."""
    release = replica.status.release
    evicted = release is not None and release.reason != Reason.OVER_QUOTA
    return stage(replica) is Stage.QUEUED and not evicted


def _uses_budget(replica: Replica) -> bool:
    return replica.spec.type is WorkloadType.SERVICE and stage(replica) is Stage.SERVING


def is_allowed_while_not_serving(replica: Replica) -> bool:
    """Whether eviction is allowed only because the replica does not serve. That may change with its next revision."""
    return replica.spec.type is WorkloadType.SERVICE and not _uses_budget(replica)


def blocked_reason_among(
    replica: Replica, assignment: Assignment | None, siblings: Iterable[Replica], *, share_requested: bool = True
) -> str:
    """`eviction_blocked_reason` for given siblings: the replicas of the workload in the region.

    All but the region's share of them must keep serving. A replica that does not serve may be evicted.
    `share_requested`: the eviction is recorded, so that the region requests a share for it. That of one pod is not.
    """
    if not _uses_budget(replica):
        return ""
    allowed = disruption_share(replica, assignment)
    if allowed == 0:
        return _no_share_reason(replica, assignment, share_requested)
    remaining = [r for r in siblings if not r.metadata.terminating]
    unavailable = [r for r in remaining if stage(r) is not Stage.SERVING]
    if len(unavailable) < allowed:
        return ""
    examples = ", ".join(f"{r.metadata.name} is {stage(r).value}" for r in sorted(unavailable, key=lambda r: r.key)[:3])
    counts = f"{len(unavailable)} of {len(remaining)} replicas are unavailable (allowed {allowed})"
    return f"disruption budget: {counts}: {examples}"


def _no_share_reason(replica: Replica, assignment: Assignment | None, share_requested: bool) -> str:
    max_unavailable = (assignment.spec if assignment is not None else replica.spec).disruption.max_unavailable
    if max_unavailable:
        step = (
            "a share was requested from the global cell"
            if share_requested
            else "drain the node, which requests one; or raise maxUnavailable to the number of regions; "
            "or delete the pod with --force --grace-period=0"
        )
        return f"disruption budget: this region has no share of maxUnavailable {max_unavailable} at the moment; {step}"
    return "disruption budget: disruption.maxUnavailable is 0"


def must_leave(replica: Replica, node: Node) -> bool:
    """Whether the replica must leave the node, as its disruption budget allows: a drain, or a NoExecute taint."""
    return node.spec.drain or evicting_taint(node.spec.taints, replica.spec.placement.tolerations) is not None


def evicting_measure(node: Node) -> Mapping[str, int]:
    """Counts nodes that replicas may have to leave."""
    tainted = any(taint.effect is TaintEffect.NO_EXECUTE for taint in node.spec.taints)
    return _EVICTING if node.spec.drain or tainted else _STAYING


_EVICTING: Mapping[str, int] = {"nodes": 1}
_STAYING: Mapping[str, int] = {}


def blocked_node_evictions(replicas: Sequence[Replica], view: View) -> int:
    """Number of these replicas that must leave their node and stay only because of the disruption budget."""
    count = 0
    if not view.total(Node, "", evicting_measure):
        return count
    for replica in replicas:
        node: Node | None = view.get(Node, replica.status.placement.node) if replica.status.placement.node else None
        if node is not None and must_leave(replica, node) and eviction_blocked_reason(replica, view):
            count += 1
    return count
