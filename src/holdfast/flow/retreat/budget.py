"""How many replicas of a workload voluntary acts may have away in this region at once.

The budget is one count per workload over all regions. The global cell hands each region its part of it in the
Assignment (`awayShare`); the region takes no more than that. Without a part the whole budget is this region's. What is
in force is what the Assignment says now, not what a replica was created under.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.model.assignment import Assignment
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.node import Node
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.model.workload import WorkloadType


def allowed_away(replica: Replica, assignment: Assignment | None) -> int:
    """The region's part of the budget, as the replica's assignment has it."""
    if assignment is None:
        return replica.spec.disruption.max_unavailable
    whole = assignment.spec.disruption.max_unavailable
    share = assignment.spec.away_share
    return whole if share is None else min(share, whole)


def why_it_stays(replica: Replica, view: View) -> str:
    """Why a voluntary act may not take the replica now, or an empty string."""
    if not _counts(replica):
        return ""
    assignment: Assignment | None = view.get(Assignment, replica.spec.assignment, replica.metadata.namespace)
    mates = view.by(Replica, "workload", f"{replica.metadata.namespace}/{replica.spec.workload}")
    return why_among(replica, assignment, mates)


def _counts(replica: Replica) -> bool:
    return replica.spec.type is WorkloadType.SERVICE and stage(replica) is Stage.SERVING


def goes_unserving(replica: Replica) -> bool:
    """Whether a budget lets the replica go only because it does not serve: that holds for this revision of it alone."""
    return replica.spec.type is WorkloadType.SERVICE and not _counts(replica)


def why_among(replica: Replica, assignment: Assignment | None, mates: Iterable[Replica]) -> str:
    """The same among `mates`, the replicas of its workload in the region.

    All but so many of them go on serving; one that does not serve may go.
    """
    if not _counts(replica):
        return ""
    away_max = allowed_away(replica, assignment)
    if away_max == 0:
        return _none_may(replica, assignment)
    staying = [r for r in mates if not r.metadata.terminating]
    away = [r for r in staying if stage(r) is not Stage.SERVING]
    if len(away) < away_max:
        return ""
    named = ", ".join(f"{r.metadata.name} is {stage(r).value}" for r in sorted(away, key=lambda r: r.key)[:3])
    return f"its budget lets {away_max} of {len(staying)} be away, and {len(away)} are: {named}"


def _none_may(replica: Replica, assignment: Assignment | None) -> str:
    whole = (assignment.spec if assignment is not None else replica.spec).disruption.max_unavailable
    if whole:
        return f"its budget lets {whole} be away over all regions, and none of that is this region's now (it asks)"
    return "its budget lets none be away (disruption.maxUnavailable is 0)"


def drains(node: Node) -> Mapping[str, int]:
    return _DRAINING if node.spec.drain else _STAYING


_DRAINING: Mapping[str, int] = {"nodes": 1}
_STAYING: Mapping[str, int] = {}


def held_back(replicas: Sequence[Replica], view: View) -> int:
    """How many of these serve on nodes that are being drained, and stay only because the budget is used up."""
    count = 0
    if not view.total(Node, "", drains):
        return count
    for replica in replicas:
        node: Node | None = view.get(Node, replica.status.placement.node) if replica.status.placement.node else None
        if node is not None and node.spec.drain and why_it_stays(replica, view):
            count += 1
    return count
