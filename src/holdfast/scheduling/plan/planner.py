"""The planner: from a snapshot, ordered requirements and policy rules to proposals and refusals. Pure, deterministic.

- A node must pass every filter. The highest weighted score wins; ties go to the lowest `tie_number(seed, node)`, then
  to the name.
- A replica without a feasible node may preempt lower-priority work, by the rule in `preemption`.
- A gang is placed as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model import limits
from holdfast.model.decision import DecisionEntry, PreemptionEvidence
from holdfast.model.quantity import Amounts, add
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RefusalCount, RequestMember
from holdfast.scheduling import filters as gates
from holdfast.scheduling import quota_headroom
from holdfast.scheduling.equivalence import refusal_cache_key
from holdfast.scheduling.plan.identical_replicas import IdenticalReplicasPlan, Proposal, place_identical
from holdfast.scheduling.plan.preemption import Eviction, PreemptionPlanner
from holdfast.scheduling.plan.victim_selection import UNKNOWN_SIBLINGS, SiblingStatusSource
from holdfast.scheduling.refusal_summary import refusal_counts
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Snapshot

PLANNER_VERSION = "6"
"""Raised with every change that can alter an outcome: a replay compares only Decisions of the same version."""


class RequestPlan(msgspec.Struct, frozen=True):
    """The plan of one request. Proposals with victims come last.

    `refusals` explain the unplaced members; if all members are placed, they count the infeasible nodes.
    """

    requirements: ReplicaRequirements
    proposals: tuple[Proposal, ...]
    unplaced: tuple[RequestMember, ...]
    refusals: tuple[RefusalCount, ...]
    nodes: int
    feasible: int
    evictions: int = 0
    """Victims that count against the tenant's eviction budget; reclaiming by recovery work does not count."""
    preemption_evidence: PreemptionEvidence | None = None
    """Sibling counts read while victims were selected."""

    def decision_entries(self) -> tuple[DecisionEntry, ...]:
        """One Decision entry per member."""
        placed = tuple(
            DecisionEntry(
                replica=p.member.name,
                uid=p.member.uid,
                attempt=p.member.attempt,
                node=p.node,
                devices=p.devices,
                victims=p.victims,
                score=p.score,
                scores=p.scores,
                runner_up=p.runner_up,
                runner_up_score=p.runner_up_score,
            )
            for p in self.proposals
        )
        main = self.refusals[0] if self.refusals else RefusalCount(reason=Reason.UNSCHEDULABLE)
        return placed + tuple(
            DecisionEntry(
                replica=m.name,
                uid=m.uid,
                attempt=m.attempt,
                result="Unplaced",
                reason=main.reason,
                message=main.message,
            )
            for m in self.unplaced
        )


class SchedulePlan(msgspec.Struct, frozen=True):
    snapshot: Snapshot
    seed: int
    request_plans: tuple[RequestPlan, ...]


def plan(
    snapshot: Snapshot, asks: Sequence[ReplicaRequirements], rules: PolicyRules, now: float, seed: int, *, standing: SiblingStatusSource = UNKNOWN_SIBLINGS
) -> SchedulePlan:
    """Plans the requests in the given order; each sees the placements before it. `standing` tells which possible
    victims serve."""
    planning = _Planning(snapshot, rules, now, seed, standing)
    return SchedulePlan(snapshot, seed, tuple(planning.plan(ask) for ask in asks))


class _Planning:
    """State of one plan while it is computed."""

    def __init__(self, snapshot: Snapshot, rules: PolicyRules, now: float, seed: int, standing: SiblingStatusSource) -> None:
        self._scratch = Scratch(snapshot, now)
        self._standing = standing
        self._rules = rules
        self._seed = seed
        self._preemption: PreemptionPlanner | None = None
        self._evicted: dict[str, int] = {}
        """Victims caused so far in this plan, by tenant."""
        self._spent: dict[str, Amounts] = {}
        """Quota used by this plan's proposals so far, by tenant."""
        self._in_vain: dict[bytes, tuple[RefusalCount, ...]] = {}
        """Refusals of infeasible requests, by equivalence key. Valid until the plan places another replica."""
        self._in_vain_at = 0

    def plan(self, ask: ReplicaRequirements) -> RequestPlan:
        if self._in_vain_at != len(self._scratch.touched):
            self._in_vain.clear()
            self._in_vain_at = len(self._scratch.touched)
        if ask.quota_headroom is not None and ask.namespace in self._spent:
            ask = msgspec.structs.replace(ask, quota_headroom=quota_headroom.headroom_after(ask.quota_headroom, self._spent[ask.namespace]))
        if self._evicted.get(ask.namespace):
            left = max(0, ask.evictions_left - self._evicted[ask.namespace])
            ask = msgspec.structs.replace(ask, evictions_left=left)
        paid = quota_headroom.affordable_members(ask)
        if not paid:
            return RequestPlan(ask, (), ask.members, (quota_headroom.headroom_refusal(ask),), self._scratch.snapshot.node_count, 0)
        all_paid = paid == len(ask.members)
        made = self._find(ask if all_paid else msgspec.structs.replace(ask, members=ask.members[:paid]))
        if made.proposals:
            add(self._spent.setdefault(ask.namespace, {}), quota_headroom.quota_cost(ask, len(made.proposals)))
        if all_paid:
            return made
        # The refusal of the next member comes first: the nodes' if even covered members were refused, else the quota's.
        short = (quota_headroom.headroom_refusal(msgspec.structs.replace(ask, quota_headroom=quota_headroom.headroom_after(ask.quota_headroom, quota_headroom.quota_cost(ask, paid)))),)
        refusals = (*made.refusals, *short) if made.unplaced else short
        unplaced = ask.members[len(made.proposals) :]
        return msgspec.structs.replace(made, requirements=ask, unplaced=unplaced, refusals=refusals)

    def _find(self, ask: ReplicaRequirements) -> RequestPlan:
        """Plans the request, or reuses the refusals of an equivalent infeasible one. Only node refusals are reused;
        quota is checked per request."""
        key = refusal_cache_key(self._scratch, ask) if self._in_vain else b""
        known = self._in_vain.get(key)
        if known is not None:
            return RequestPlan(ask, (), ask.members, known, self._scratch.snapshot.node_count, 0)
        made = self._place(ask)
        if not made.feasible and made.unplaced:
            key = key or refusal_cache_key(self._scratch, ask)
            if key:
                self._in_vain[key] = made.refusals
        return made

    def _place(self, ask: ReplicaRequirements) -> RequestPlan:
        """Places as many members as fit, with preemption where the rules allow it."""
        scratch = self._scratch
        found = place_identical(scratch, ask, self._rules, self._seed)
        nodes = scratch.snapshot.node_count
        if found.final_codes is None:
            refusals = refusal_counts(scratch, ask, found.initial_codes, explained=False)
            if len(found.proposals) + ask.bound_members < ask.gang_min:  # all listed members fit, but they are too few
                self._undo(ask, found, [])
                gang = _incomplete(ask, len(found.proposals))
                return RequestPlan(ask, (), ask.members, (gang, *refusals), nodes, found.feasible)
            return RequestPlan(ask, tuple(found.proposals), (), refusals, nodes, found.feasible)
        refusals = refusal_counts(scratch, ask, found.final_codes, explained=True)
        evictions: list[Eviction] = []
        nominated: list[Proposal] = []
        weighed: PreemptionEvidence | None = None
        if ask.uses_recovery_slots or self._preempts(ask):
            without = ask.members[len(found.proposals) :]
            nominated, evictions, refusal = self._nominate(ask, found, without)
            refusals = (*refusals, refusal) if refusal is not None else refusals
            weighed = self._preemption.victim_selection.preemption_evidence() if self._preemption is not None else None
        proposals = (*found.proposals, *nominated)
        if len(proposals) + ask.bound_members < ask.gang_min:
            self._undo(ask, found, evictions)
            gang = _incomplete(ask, len(proposals))
            return RequestPlan(ask, (), ask.members, (gang, *refusals), nodes, found.feasible, preemption_evidence=weighed)
        evicted = sum(len(e.victims) for e in evictions if not e.reclaimed)
        self._evicted[ask.namespace] = self._evicted.get(ask.namespace, 0) + evicted
        left = ask.members[len(proposals) :]
        return RequestPlan(ask, proposals, left, refusals, nodes, found.feasible, evicted, weighed)

    def _preempts(self, ask: ReplicaRequirements) -> bool:
        return ask.may_preempt and self._rules.preemption.enabled

    def _nominate(
        self, ask: ReplicaRequirements, found: IdenticalReplicasPlan, members: Sequence[RequestMember]
    ) -> tuple[list[Proposal], list[Eviction], RefusalCount | None]:
        """Nominates nodes with victims for as many members as rules and budgets allow."""
        if self._preemption is None:
            self._preemption = PreemptionPlanner(self._scratch, self._standing)
        preemption, scratch = self._preemption, self._scratch
        preemption.victim_selection.begin_request()
        left = ask.evictions_left
        proposals: list[Proposal] = []
        evictions: list[Eviction] = []
        allowed = gates.nodes_where_preemption_may_help(scratch, ask, self._rules, found.eligible, found.skew)
        for member in members:
            eviction = preemption.choose_reclaimable(ask, allowed, seed=self._seed) if ask.uses_recovery_slots else None
            if eviction is None and self._preempts(ask):
                if left < 1:
                    spent = f"tenant {ask.namespace} has used its evictions of this minute"
                    return proposals, evictions, RefusalCount(reason=Reason.PREEMPTION_BUDGET_SPENT, message=spent)
                eviction = preemption.choose_victims(ask, allowed, most=min(left, limits.VICTIMS_PER_REPLICA_MAX), seed=self._seed)
            if eviction is None:
                return proposals, evictions, self._no_victims(ask, preemption)
            preemption.nominate(ask, eviction)
            evictions.append(eviction)
            left -= 0 if eviction.reclaimed else len(eviction.victims)
            names = tuple(sorted(prey.name for prey in eviction.victims))
            proposals.append(Proposal(member, scratch.snapshot.name(eviction.slot), (), 0, (), victims=names))
            found.skew.add(eviction.slot)
            if found.skew.limited:
                allowed = gates.nodes_where_preemption_may_help(scratch, ask, self._rules, found.eligible, found.skew)
        return proposals, evictions, None

    def _no_victims(self, ask: ReplicaRequirements, preemption: PreemptionPlanner) -> RefusalCount:
        rank = preemption.priority_of(ask)
        whom = f"replicas below priority {rank}" if self._preempts(ask) else "reclaimable replicas"
        message = f"evicting {whom} would not free enough resources on any node"
        if preemption.victim_selection.protected_tenants:
            message += f"; protected quota exempts replicas of {', '.join(sorted(preemption.victim_selection.protected_tenants))}"
        return RefusalCount(reason=Reason.NO_VICTIMS, message=message)

    def _undo(self, ask: ReplicaRequirements, found: IdenticalReplicasPlan, evictions: Sequence[Eviction]) -> None:
        for eviction in reversed(evictions):
            if self._preemption is not None:
                self._preemption.undo(ask, eviction)
        for place in reversed(found.placements):
            self._scratch.undo(ask, place.slot, place.devices)


def _incomplete(ask: ReplicaRequirements, fitting: int) -> RefusalCount:
    return RefusalCount(
        reason=Reason.GANG_INCOMPLETE,
        message=(
            f"the gang needs {ask.gang_min} members placed together "
            f"(found nodes for {fitting + ask.bound_members} of {len(ask.members) + ask.bound_members})"
        ),
    )
