"""The planner: from a snapshot, ordered requirements and policy rules to proposals and refusals. Pure, deterministic.

- A node must pass every filter. The highest weighted score wins; ties go to the lowest `tie_number(seed, node)`, then
  to the name.
- A replica without a feasible node may preempt lower-priority work, by the rule in `preemption`.
- A gang is placed as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.decision import DecisionEntry, PreemptionEvidence
from holdfast.model.placement_rules import selects_own_replicas
from holdfast.model.quantity import Amounts, add
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RefusalCount, RequestMember
from holdfast.model.template import template_claims
from holdfast.scheduling import filters as gates
from holdfast.scheduling import quota_headroom
from holdfast.scheduling.equivalence import refusal_cache_key
from holdfast.scheduling.plan.identical_replicas import IdenticalReplicasPlan, Proposal, place_identical
from holdfast.scheduling.plan.obstacles import obstacles
from holdfast.scheduling.plan.preemption import VICTIMS_PER_REPLICA_MAX, Eviction, PreemptionPlanner
from holdfast.scheduling.plan.victim_selection import UNKNOWN_SIBLINGS, SiblingStatusSource
from holdfast.scheduling.refusal_summary import refusal_counts
from holdfast.scheduling.replica_requirements import ReplicaRequirements, for_member
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Snapshot

# Workloads named in the message of a refusal.
WORKLOADS_NAMED_MAX = 5

PLANNER_VERSION = "12"
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
    snapshot: Snapshot,
    requests: Sequence[ReplicaRequirements],
    rules: PolicyRules,
    now: float,
    seed: int,
    *,
    sibling_status: SiblingStatusSource = UNKNOWN_SIBLINGS,
) -> SchedulePlan:
    """Plans the requests in the given order; each sees the placements before it. `sibling_status` tells which possible
    victims serve."""
    run = _PlanRun(snapshot, rules, now, seed, sibling_status)
    return SchedulePlan(snapshot, seed, tuple(run.plan(requirements) for requirements in requests))


class _PlanRun:
    """State of one plan while it is computed."""

    def __init__(
        self, snapshot: Snapshot, rules: PolicyRules, now: float, seed: int, sibling_status: SiblingStatusSource
    ) -> None:
        self._scratch = Scratch(snapshot, now)
        self._sibling_status = sibling_status
        self._rules = rules
        self._seed = seed
        self._preemption: PreemptionPlanner | None = None
        self._evicted: dict[str, int] = {}
        """Victims caused so far in this plan, by tenant."""
        self._spent: dict[str, Amounts] = {}
        """Quota used by this plan's proposals so far, by tenant."""
        self._infeasible: dict[bytes, tuple[RefusalCount, ...]] = {}
        """Refusals of infeasible requests, by equivalence key. Valid until the plan places another replica."""
        self._infeasible_at = 0

    def plan(self, requirements: ReplicaRequirements) -> RequestPlan:
        if template_claims(requirements.template):
            return self._plan_each(requirements)
        return self._plan_together(requirements)

    def _plan_each(self, requirements: ReplicaRequirements) -> RequestPlan:
        """Replicas with persistent volumes are not identical: each may use only the node that holds its data."""
        volumes = self._scratch.snapshot.volumes
        plans = [self._plan_together(for_member(requirements, m, volumes)) for m in requirements.members]
        refused = next((p for p in plans if p.unplaced), plans[0] if plans else None)
        proposals = [p for part in plans for p in part.proposals]
        return RequestPlan(
            requirements,
            tuple(sorted(proposals, key=lambda p: bool(p.victims))),
            tuple(m for part in plans for m in part.unplaced),
            refused.refusals if refused is not None else (),
            self._scratch.snapshot.node_count,
            max((p.feasible for p in plans), default=0),
            sum(p.evictions for p in plans),
            next((p.preemption_evidence for p in reversed(plans) if p.preemption_evidence is not None), None),
        )

    def _plan_together(self, requirements: ReplicaRequirements) -> RequestPlan:
        if self._infeasible_at != len(self._scratch.touched):
            self._infeasible.clear()
            self._infeasible_at = len(self._scratch.touched)
        if requirements.quota_headroom is not None and requirements.namespace in self._spent:
            requirements = msgspec.structs.replace(
                requirements,
                quota_headroom=quota_headroom.headroom_after(
                    requirements.quota_headroom, self._spent[requirements.namespace]
                ),
            )
        if self._evicted.get(requirements.namespace):
            left = max(0, requirements.evictions_left - self._evicted[requirements.namespace])
            requirements = msgspec.structs.replace(requirements, evictions_left=left)
        covered = quota_headroom.affordable_members(requirements)
        if not covered:
            return RequestPlan(
                requirements,
                (),
                requirements.members,
                (quota_headroom.headroom_refusal(requirements),),
                self._scratch.snapshot.node_count,
                0,
            )
        all_covered = covered == len(requirements.members)
        planned = self._plan_members(
            requirements
            if all_covered
            else msgspec.structs.replace(requirements, members=requirements.members[:covered])
        )
        if planned.proposals:
            add(
                self._spent.setdefault(requirements.namespace, {}),
                quota_headroom.quota_cost(requirements, len(planned.proposals)),
            )
        if all_covered:
            return planned
        # The refusal of the next member comes first: the nodes' if even covered members were refused, else the quota's.
        short = (
            quota_headroom.headroom_refusal(
                msgspec.structs.replace(
                    requirements,
                    quota_headroom=quota_headroom.headroom_after(
                        requirements.quota_headroom, quota_headroom.quota_cost(requirements, covered)
                    ),
                )
            ),
        )
        refusals = (*planned.refusals, *short) if planned.unplaced else short
        unplaced = requirements.members[len(planned.proposals) :]
        return msgspec.structs.replace(planned, requirements=requirements, unplaced=unplaced, refusals=refusals)

    def _plan_members(self, requirements: ReplicaRequirements) -> RequestPlan:
        """Plans the request, or reuses the refusals of an equivalent infeasible one. Only node refusals are reused;
        quota is checked per request."""
        key = refusal_cache_key(self._scratch, requirements) if self._infeasible else b""
        known = self._infeasible.get(key)
        if known is not None:
            return RequestPlan(requirements, (), requirements.members, known, self._scratch.snapshot.node_count, 0)
        planned = self._place_members(requirements)
        if not planned.feasible and planned.unplaced:
            key = key or refusal_cache_key(self._scratch, requirements)
            if key:
                self._infeasible[key] = planned.refusals
        return planned

    def _place_members(self, requirements: ReplicaRequirements) -> RequestPlan:
        """Places as many members as fit, with preemption where the rules allow it."""
        scratch = self._scratch
        scratch.begin_request()
        placed = place_identical(scratch, requirements, self._rules, self._seed)
        nodes = scratch.snapshot.node_count
        if placed.final_codes is None:
            refusals = refusal_counts(scratch, requirements, placed.initial_codes, explained=False)
            if (
                len(placed.proposals) + requirements.bound_members < requirements.gang_min
            ):  # all listed members fit, but they are too few
                self._undo(requirements, placed, [])
                gang = _gang_refusal(requirements, len(placed.proposals))
                return RequestPlan(requirements, (), requirements.members, (gang, *refusals), nodes, placed.feasible)
            return RequestPlan(requirements, tuple(placed.proposals), (), refusals, nodes, placed.feasible)
        refusals = refusal_counts(scratch, requirements, placed.final_codes, explained=True)
        evictions: list[Eviction] = []
        nominated: list[Proposal] = []
        weighed: PreemptionEvidence | None = None
        preempts = requirements.uses_recovery_slots or self._preempts(requirements)
        if preempts and not requirements.creates_volumes:
            without = requirements.members[len(placed.proposals) :]
            nominated, evictions, refusal = self._nominate(requirements, placed, without)
            refusals = (*refusals, refusal) if refusal is not None else refusals
            weighed = self._preemption.victim_selection.preemption_evidence() if self._preemption is not None else None
        proposals = (*placed.proposals, *nominated)
        if len(proposals) + requirements.bound_members < requirements.gang_min:
            self._undo(requirements, placed, evictions)
            gang = _gang_refusal(requirements, len(proposals))
            return RequestPlan(
                requirements,
                (),
                requirements.members,
                (gang, *refusals),
                nodes,
                placed.feasible,
                preemption_evidence=weighed,
            )
        evicted = _counted_evictions(evictions)
        self._evicted[requirements.namespace] = self._evicted.get(requirements.namespace, 0) + evicted
        left = requirements.members[len(proposals) :]
        return RequestPlan(requirements, proposals, left, refusals, nodes, placed.feasible, evicted, weighed)

    def _preempts(self, requirements: ReplicaRequirements) -> bool:
        return requirements.may_preempt and self._rules.preemption.enabled

    def _nominate(
        self, requirements: ReplicaRequirements, placed: IdenticalReplicasPlan, members: Sequence[RequestMember]
    ) -> tuple[list[Proposal], list[Eviction], RefusalCount | None]:
        """Nominates nodes with victims for as many members as rules and budgets allow."""
        if self._preemption is None:
            self._preemption = PreemptionPlanner(self._scratch, self._sibling_status)
        preemption, scratch = self._preemption, self._scratch
        preemption.begin_request(requirements)
        left = requirements.evictions_left
        proposals: list[Proposal] = []
        evictions: list[Eviction] = []
        counted: set[str] = set()
        changes = placed.skew.limited or selects_own_replicas(requirements.placement)
        allowed = self._allowed_with_victims(requirements, placed, preemption)
        for member in members:
            eviction = (
                preemption.choose_reclaimable(requirements, allowed, seed=self._seed)
                if requirements.uses_recovery_slots
                else None
            )
            if eviction is None and self._preempts(requirements):
                if left < 1:
                    spent = f"tenant {requirements.namespace} has used its evictions of this minute"
                    return proposals, evictions, RefusalCount(reason=Reason.PREEMPTION_BUDGET_SPENT, message=spent)
                eviction = preemption.choose_victims(requirements, allowed, evictions_left=left, seed=self._seed)
            if eviction is None:
                return proposals, evictions, self._no_victims_refusal(requirements, preemption, left)
            preemption.nominate(requirements, eviction)
            evictions.append(eviction)
            counted |= _counted_claims(eviction)
            left = requirements.evictions_left - len(counted)
            names = tuple(sorted(victim.name for victim in eviction.victims))
            proposals.append(Proposal(member, scratch.snapshot.name(eviction.slot), (), 0, (), victims=names))
            placed.skew.add(eviction.slot)
            if changes:
                allowed = self._allowed_with_victims(requirements, placed, preemption)
        return proposals, evictions, None

    def _allowed_with_victims(
        self, requirements: ReplicaRequirements, placed: IdenticalReplicasPlan, preemption: PreemptionPlanner
    ) -> Bools:
        scratch, rules = self._scratch, self._rules
        preemption.set_obstacles(obstacles(scratch, requirements, rules, placed.skew, preemption.candidate_index))
        return gates.nodes_where_preemption_may_help(scratch, requirements, rules, placed.eligible)

    def _no_victims_refusal(
        self, requirements: ReplicaRequirements, preemption: PreemptionPlanner, left: int
    ) -> RefusalCount:
        priority = preemption.priority_of(requirements)
        evicted = f"replicas below priority {priority}" if self._preempts(requirements) else "reclaimable replicas"
        if preemption.over_limit and self._preempts(requirements) and left < VICTIMS_PER_REPLICA_MAX:
            spent = f"it needs more victims than the {left} evictions that tenant {requirements.namespace} has left"
            return RefusalCount(reason=Reason.PREEMPTION_BUDGET_SPENT, message=f"{spent} in this minute")
        if preemption.over_limit:
            message = f"evicting {evicted} would need more than {VICTIMS_PER_REPLICA_MAX} victims on any node"
            return RefusalCount(reason=Reason.TOO_MANY_VICTIMS, message=message)
        message = f"evicting {evicted} would not free enough resources on any node"
        budgeted = sorted("/".join(key) for key in preemption.victim_selection.budgeted_workloads)
        if budgeted:
            named = ", ".join(budgeted[:WORKLOADS_NAMED_MAX])
            message = f"evicting {evicted} would exceed the disruption budgets of {named}"
            return RefusalCount(reason=Reason.VICTIMS_WITHIN_BUDGET, message=message)
        protected = sorted(preemption.victim_selection.protected_tenants)
        if protected:
            message += f"; protected quota exempts replicas of {', '.join(protected)}"
        if requirements.excluded_victims:
            message += f"; {len(requirements.excluded_victims)} could not be evicted lately and are tried again later"
        return RefusalCount(reason=Reason.NO_VICTIMS, message=message)

    def _undo(
        self, requirements: ReplicaRequirements, placed: IdenticalReplicasPlan, evictions: Sequence[Eviction]
    ) -> None:
        for eviction in reversed(evictions):
            if self._preemption is not None:
                self._preemption.undo(requirements, eviction)
        for place in reversed(placed.placements):
            self._scratch.undo(requirements, place.slot, place.devices)


def _counted_evictions(evictions: Sequence[Eviction]) -> int:
    """Claims that leave and count against the tenant's eviction budget, each once."""
    return len({name for eviction in evictions for name in _counted_claims(eviction)})


def _counted_claims(eviction: Eviction) -> set[str]:
    return set() if eviction.reclaimed else {claim.name for claim in (*eviction.victims, *eviction.rest)}


def _gang_refusal(requirements: ReplicaRequirements, fitting: int) -> RefusalCount:
    bound = requirements.bound_members
    message = (
        f"the gang needs {requirements.gang_min} members placed together "
        f"(found nodes for {fitting + bound} of {len(requirements.members) + bound})"
    )
    return RefusalCount(reason=Reason.GANG_INCOMPLETE, message=message)
