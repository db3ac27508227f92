"""What a claim may have to wait for before it is bound: victims to leave, and the rest of its gang. Reads only.

A gang stands once its request was marked as committed, or enough of its members are bound; until then no member is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from holdfast.authority.claims import Claim, capacity_class, victim_key
from holdfast.authority.protected_quota import ProtectedQuota
from holdfast.authority.state import BINDING, REPLICA, AuthorityState
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, CapacityClass, DesiredRunState
from holdfast.model.errors import Refused
from holdfast.model.kinds import kind_of
from holdfast.model.placement_api import ReserveItem
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.template import template_hash
from holdfast.scheduling.eviction import preempted
from holdfast.scheduling.queue_order import raised_priorities

REQUEST = kind_of(SchedulingRequest)
ASSIGNMENT = kind_of(Assignment)


class GangState(msgspec.Struct, frozen=True):
    """`needed` members are bound together; `standing` once that has happened."""

    needed: int
    committed: bool
    request: SchedulingRequest | None


def assignment_of(state: AuthorityState, replica: Replica) -> Assignment | None:
    return cast("Assignment | None", state.get(ASSIGNMENT, replica.metadata.namespace, replica.spec.assignment))


def gang_state(state: AuthorityState, replica: Replica) -> GangState | None:
    """The gang a replica belongs to; None for work that is placed one by one."""
    assignment = assignment_of(state, replica)
    if assignment is None or assignment.spec.gang is None:
        return None
    namespace = replica.metadata.namespace
    found = state.objects.list(REQUEST, namespace, fields={"assignment": f"{namespace}/{replica.spec.assignment}"})[0]
    requests = cast("list[SchedulingRequest]", found)
    request = next((r for r in requests if r.spec.revision == replica.spec.revision), None)
    listed = request.spec.gang if request is not None else None
    needed = (listed or assignment.spec.gang).min_available  # the request leaves out those whose work is done
    committed = request is not None and request.status.gang is not None and bool(request.status.gang.committed_at)
    return GangState(needed, committed or bound_members(state, replica) >= needed, request)


def bound_members(state: AuthorityState, replica: Replica) -> int:
    """How many replicas of the workload, of this one's revision, have a binding that stands."""
    namespace = replica.metadata.namespace
    found = state.objects.list(BINDING, namespace, fields={"workload": f"{namespace}/{replica.spec.workload}"})[0]
    bindings = cast("list[Binding]", found)
    hashed = template_hash(replica.spec.template)
    return sum(
        b.spec.intent.template_hash == hashed and not b.spec.quota_released and b.spec.desired is DesiredRunState.RUN
        for b in bindings
    )


def live_victims(state: AuthorityState, item: ReserveItem) -> tuple[str, ...]:
    """Those of the named victims that still hold something."""
    return tuple(v for v in item.victims if victim_key(item.namespace, v) in state.ledger.claims)


def victim_claims(state: AuthorityState, item: ReserveItem) -> list[Claim]:
    return [state.ledger.claims[victim_key(item.namespace, victim)] for victim in live_victims(state, item)]


def victim_refusal(
    state: AuthorityState,
    item: ReserveItem,
    replica: Replica,
    now: float,
    *,
    mates: Callable[[Replica], preempted.SiblingCounts],
    protected: ProtectedQuota,
) -> Refused | None:
    """Whether every named victim is there, weaker, and nobody else's: a proposer's word is never enough for that."""
    victims = live_victims(state, item)
    if not victims:
        return None
    assignment = assignment_of(state, replica)
    preempts = assignment is None or assignment.spec.may_preempt
    reclaims = capacity_class(replica) is CapacityClass.RECOVERY
    if not preempts and not reclaims:
        return _refused(item, victims[0], f"the priority class of {replica.key} may not preempt")
    raised = raised_priorities(state.overrides(), now, state.region)
    rank = _rank(replica, raised)
    taken = {
        victim_key(claim.namespace, v)
        for claim in state.ledger.account(item.node).nominated_claims.values()
        for v in claim.victims
    }
    holders: dict[str, Replica] = {}
    for victim in victims:
        claim: Claim = state.ledger.claims[victim_key(item.namespace, victim)]
        if claim.node != item.node:
            return _refused(item, victim, f"it is on node {claim.node}")
        if claim.key in taken:
            return _refused(item, victim, "it leaves for someone else already")
        if not claim.bound or not claim.quota_held:
            return _refused(item, victim, "it is not bound, or gone but for its proof")
        holder = state.replica(claim.namespace, claim.replica)
        if holder is None or holder.uid != claim.replica_uid:
            continue
        if reclaims and holder.spec.reclaimable:
            continue  # it ran there on loan, and yields to recovery whatever its rank is
        if not preempts:
            return _refused(item, victim, f"it is not reclaimable, and the class of {replica.key} may not preempt")
        if _rank(holder, raised) >= rank:
            return _refused(item, victim, f"its rank {_rank(holder, raised)} is not below {rank}")
        holders[victim] = holder
    broken = preempted.over_budget_workload(holders.values(), mates)
    if not broken:
        kept_back = protected.protected_victim(item.namespace, victim_claims(state, item))
        return None if kept_back is None else _refused(item, _as_named(item, victims, kept_back[0]), kept_back[1])
    # One of those that the budget keeps: whoever is named is not proposed again for a while.
    kept = next(v for v, holder in holders.items() if preempted.charged_workload(holder) == broken)
    return _refused(item, kept, f"the disruption budget of {broken} is used up")


def sibling_counts(state: AuthorityState, replica: Replica) -> preempted.SiblingCounts:
    """Counted among the workload's replicas, so worth keeping for as long as nothing changes."""
    namespace = replica.metadata.namespace
    found = state.objects.list(REPLICA, namespace, fields={"workload": f"{namespace}/{replica.spec.workload}"})[0]
    return preempted.count_siblings(cast("list[Replica]", found))


def _as_named(item: ReserveItem, victims: tuple[str, ...], claim: Claim) -> str:
    """The victim in the proposer's own words, who is not to name it again for a while."""
    return next(victim for victim in victims if victim_key(item.namespace, victim) == claim.key)


def _rank(replica: Replica, raised: dict[tuple[str, str], int]) -> int:
    return max(replica.spec.priority, raised.get((replica.metadata.namespace, replica.spec.workload), replica.spec.priority))


def _refused(item: ReserveItem, victim: str, why: str) -> Refused:
    return Refused(
        Reason.VICTIM_NOT_ALLOWED,
        f"{victim} on node {item.node} cannot make way for {item.namespace}/{item.replica}: {why}",
        {"node": item.node, "victim": victim, "replica": f"{item.namespace}/{item.replica}"},
    )
