"""Preconditions of a bind: released victims, and a committed gang. Reads only.

A gang is committed if its SchedulingRequest is marked so, or if enough members are bound. No member is bound before.
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
    """`needed` members must be bound together; `committed`: the gang commit has happened."""

    needed: int
    committed: bool
    request: SchedulingRequest | None


def assignment_of(state: AuthorityState, replica: Replica) -> Assignment | None:
    return cast("Assignment | None", state.get(ASSIGNMENT, replica.metadata.namespace, replica.spec.assignment))


def gang_state(state: AuthorityState, replica: Replica) -> GangState | None:
    """The gang of the replica; None if it has none."""
    assignment = assignment_of(state, replica)
    if assignment is None or assignment.spec.gang is None:
        return None
    namespace = replica.metadata.namespace
    found = state.objects.list(REQUEST, namespace, fields={"assignment": f"{namespace}/{replica.spec.assignment}"})[0]
    requests = cast("list[SchedulingRequest]", found)
    request = next((r for r in requests if r.spec.revision == replica.spec.revision), None)
    request_gang = request.spec.gang if request is not None else None
    needed = (request_gang or assignment.spec.gang).min_available  # the request excludes finished members
    committed = request is not None and request.status.gang is not None and bool(request.status.gang.committed_at)
    return GangState(needed, committed or bound_members(state, replica) >= needed, request)


def bound_members(state: AuthorityState, replica: Replica) -> int:
    """Number of replicas with the same template that have a live Binding."""
    namespace = replica.metadata.namespace
    found = state.objects.list(BINDING, namespace, fields={"workload": f"{namespace}/{replica.spec.workload}"})[0]
    bindings = cast("list[Binding]", found)
    hash_of_template = template_hash(replica.spec.template)
    return sum(
        b.spec.intent.template_hash == hash_of_template
        and not b.spec.quota_released
        and b.spec.desired is DesiredRunState.RUN
        for b in bindings
    )


def live_victims(state: AuthorityState, item: ReserveItem) -> tuple[str, ...]:
    """The named victims that still have a claim."""
    return tuple(v for v in item.victims if victim_key(item.namespace, v) in state.ledger.claims)


def victim_claims(state: AuthorityState, item: ReserveItem) -> list[Claim]:
    return [state.ledger.claims[victim_key(item.namespace, victim)] for victim in live_victims(state, item)]


def victim_refusal(
    state: AuthorityState,
    item: ReserveItem,
    replica: Replica,
    now: float,
    *,
    siblings: Callable[[Replica], preempted.SiblingCounts],
    protected: ProtectedQuota,
) -> Refused | None:
    """Why a named victim may not be evicted for the replica; None if all may. Never trusts the proposer."""
    victims = live_victims(state, item)
    if not victims:
        return None
    assignment = assignment_of(state, replica)
    may_preempt = assignment is None or assignment.spec.may_preempt
    may_reclaim = capacity_class(replica) is CapacityClass.RECOVERY
    if not may_preempt and not may_reclaim:
        return _refused(item, victims[0], f"the priority class of {replica.key} may not preempt")
    raised = raised_priorities(state.overrides(), now, state.region)
    priority = _priority(replica, raised)
    nominated = {
        victim_key(claim.namespace, v)
        for claim in state.ledger.account(item.node).nominated_claims.values()
        for v in claim.victims
    }
    victim_replicas: dict[str, Replica] = {}
    for victim in victims:
        claim: Claim = state.ledger.claims[victim_key(item.namespace, victim)]
        if claim.node != item.node:
            return _refused(item, victim, f"it is on node {claim.node}")
        if claim.key in nominated:
            return _refused(item, victim, "it is a victim of another claim")
        if not claim.bound or not claim.quota_held:
            return _refused(item, victim, "it is not bound, or its quota is released already")
        victim_replica = state.replica(claim.namespace, claim.replica)
        if victim_replica is None or victim_replica.uid != claim.replica_uid:
            continue
        if may_reclaim and victim_replica.spec.reclaimable:
            continue  # reclaimable work yields to recovery, whatever its priority
        if not may_preempt:
            return _refused(
                item, victim, f"it is not reclaimable, and the priority class of {replica.key} may not preempt"
            )
        if _priority(victim_replica, raised) >= priority:
            return _refused(item, victim, f"its priority {_priority(victim_replica, raised)} is not below {priority}")
        victim_replicas[victim] = victim_replica
    rest = gang_rest(state, list(victim_replicas.values()))
    over_budget = preempted.over_budget_workload((*victim_replicas.values(), *rest), siblings)
    if not over_budget:
        claims = [*victim_claims(state, item), *_claims_of(state, rest)]
        protected_claim = protected.protected_victim(item.namespace, claims)
        return (
            None
            if protected_claim is None
            else _refused(item, _proposed_name(item, victims, protected_claim[0]), protected_claim[1])
        )
    # Name a victim that the budget blocks, or whose gang it blocks: the scheduler excludes that victim for a while.
    charged = (v for v, r in victim_replicas.items() if preempted.charged_workload(r) == over_budget)
    blocked = next(charged, None) or next(v for v, r in victim_replicas.items() if _workload(r) == over_budget)
    return _refused(item, blocked, f"the disruption budget of {over_budget} is used up")


def gang_rest(state: AuthorityState, victims: list[Replica]) -> list[Replica]:
    """The other members of every gang that these victims bring below its minimum. They are evicted too."""
    found: list[Replica] = []
    leaving = {victim.key for victim in victims}
    for victim in {(v.spec.assignment, v.spec.revision): v for v in victims}.values():
        assignment = assignment_of(state, victim)
        if assignment is not None and assignment.spec.gang is not None:
            members = _replicas_of(state, victim)
            gang = [m for m in members if (m.spec.assignment, m.spec.revision) == _gang_key(victim)]
            found += preempted.broken_gang(assignment.spec.gang, gang, leaving)
    return found


def _gang_key(replica: Replica) -> tuple[str, str]:
    return replica.spec.assignment, replica.spec.revision


def _workload(replica: Replica) -> str:
    return f"{replica.metadata.namespace}/{replica.spec.workload}"


def _claims_of(state: AuthorityState, replicas: list[Replica]) -> list[Claim]:
    keys = (f"{r.metadata.namespace}/{r.status.placement.binding}" for r in replicas)
    return [state.ledger.claims[key] for key in keys if key in state.ledger.claims]


def sibling_counts(state: AuthorityState, replica: Replica) -> preempted.SiblingCounts:
    """Sibling counts of the replica's workload. Reads all its replicas, so callers cache the result per round."""
    return preempted.count_siblings(_replicas_of(state, replica))


def _replicas_of(state: AuthorityState, replica: Replica) -> list[Replica]:
    """All replicas of the replica's workload."""
    namespace = replica.metadata.namespace
    found = state.objects.list(REPLICA, namespace, fields={"workload": f"{namespace}/{replica.spec.workload}"})[0]
    return cast("list[Replica]", found)


def _proposed_name(item: ReserveItem, victims: tuple[str, ...], claim: Claim) -> str:
    """The victim's name as the proposer spelled it, so that the proposer can exclude it. For a member that leaves with
    its gang: the first victim."""
    return next((victim for victim in victims if victim_key(item.namespace, victim) == claim.key), victims[0])


def _priority(replica: Replica, raised: dict[tuple[str, str], int]) -> int:
    return max(
        replica.spec.priority, raised.get((replica.metadata.namespace, replica.spec.workload), replica.spec.priority)
    )


def _refused(item: ReserveItem, victim: str, reason: str) -> Refused:
    return Refused(
        Reason.VICTIM_NOT_ALLOWED,
        f"claim {victim} on node {item.node}: cannot be preempted by {item.namespace}/{item.replica} ({reason})",
        {"node": item.node, "victim": victim, "replica": f"{item.namespace}/{item.replica}"},
    )
