"""The planner: from a snapshot, ordered requirements and policy rules to proposals and refusals. Pure, deterministic.

- A node must pass every filter. The highest weighted score wins; ties go to the lowest `tie_number(seed, node)`, then
  to the name.
- A replica without a feasible node may preempt lower-priority work, by the rule in `preemption`.
- A gang is placed as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.flow import filter as gates
from holdfast.flow import purse
from holdfast.flow.alike import refused_key
from holdfast.flow.ask import Ask
from holdfast.flow.explain import histogram
from holdfast.flow.plan.like import LikePlan, Proposal, place_like
from holdfast.flow.plan.preempt import Eviction, Preemption
from holdfast.flow.plan.sparing import UNKNOWN, Standing
from holdfast.flow.scratch import Scratch
from holdfast.flow.snapshot import Snapshot
from holdfast.model import limits
from holdfast.model.decision import DecisionEntry, Weighed
from holdfast.model.quantity import Amounts, add
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import Rules
from holdfast.model.scheduling_request import Member, RefusalCount

PLANNER_VERSION = "6"
"""Raised with every change that can alter an outcome: a replay compares only Decisions of the same version."""


class AskPlan(msgspec.Struct, frozen=True):
    """The plan of one request. Proposals with victims come last.

    `refusals` explain the unplaced members; if all members are placed, they count the infeasible nodes.
    """

    ask: Ask
    proposals: tuple[Proposal, ...]
    unplaced: tuple[Member, ...]
    refusals: tuple[RefusalCount, ...]
    nodes: int
    feasible: int
    evicted: int = 0
    """Victims that count against the tenant's eviction budget; reclaiming by recovery work does not count."""
    weighed: Weighed | None = None
    """Sibling counts read while victims were selected."""

    def entries(self) -> tuple[DecisionEntry, ...]:
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
        main = self.refusals[0] if self.refusals else RefusalCount(reason=Reason.CANNOT_PLACE)
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


class Plan(msgspec.Struct, frozen=True):
    snapshot: Snapshot
    seed: int
    asks: tuple[AskPlan, ...]


def plan(
    snapshot: Snapshot, asks: Sequence[Ask], rules: Rules, now: float, seed: int, *, standing: Standing = UNKNOWN
) -> Plan:
    """Plans the requests in the given order; each sees the placements before it. `standing` tells which possible
    victims serve."""
    planning = _Planning(snapshot, rules, now, seed, standing)
    return Plan(snapshot, seed, tuple(planning.plan(ask) for ask in asks))


class _Planning:
    """State of one plan while it is computed."""

    def __init__(self, snapshot: Snapshot, rules: Rules, now: float, seed: int, standing: Standing) -> None:
        self._scratch = Scratch(snapshot, now)
        self._standing = standing
        self._rules = rules
        self._seed = seed
        self._preemption: Preemption | None = None
        self._evicted: dict[str, int] = {}
        """Victims caused so far in this plan, by tenant."""
        self._spent: dict[str, Amounts] = {}
        """Quota used by this plan's proposals so far, by tenant."""
        self._in_vain: dict[bytes, tuple[RefusalCount, ...]] = {}
        """Refusals of infeasible requests, by equivalence key. Valid until the plan places another replica."""
        self._in_vain_at = 0

    def plan(self, ask: Ask) -> AskPlan:
        if self._in_vain_at != len(self._scratch.touched):
            self._in_vain.clear()
            self._in_vain_at = len(self._scratch.touched)
        if ask.room is not None and ask.namespace in self._spent:
            ask = msgspec.structs.replace(ask, room=purse.less(ask.room, self._spent[ask.namespace]))
        if self._evicted.get(ask.namespace):
            left = max(0, ask.evictions - self._evicted[ask.namespace])
            ask = msgspec.structs.replace(ask, evictions=left)
        paid = purse.affordable(ask)
        if not paid:
            return AskPlan(ask, (), ask.members, (purse.refusal(ask),), self._scratch.snapshot.node_count, 0)
        all_paid = paid == len(ask.members)
        made = self._find(ask if all_paid else msgspec.structs.replace(ask, members=ask.members[:paid]))
        if made.proposals:
            add(self._spent.setdefault(ask.namespace, {}), purse.spent(ask, len(made.proposals)))
        if all_paid:
            return made
        # The refusal of the next member comes first: the nodes' if even covered members were refused, else the quota's.
        short = (purse.refusal(msgspec.structs.replace(ask, room=purse.less(ask.room, purse.spent(ask, paid)))),)
        refusals = (*made.refusals, *short) if made.unplaced else short
        unplaced = ask.members[len(made.proposals) :]
        return msgspec.structs.replace(made, ask=ask, unplaced=unplaced, refusals=refusals)

    def _find(self, ask: Ask) -> AskPlan:
        """Plans the request, or reuses the refusals of an equivalent infeasible one. Only node refusals are reused;
        quota is checked per request."""
        key = refused_key(self._scratch, ask) if self._in_vain else b""
        known = self._in_vain.get(key)
        if known is not None:
            return AskPlan(ask, (), ask.members, known, self._scratch.snapshot.node_count, 0)
        made = self._place(ask)
        if not made.feasible and made.unplaced:
            key = key or refused_key(self._scratch, ask)
            if key:
                self._in_vain[key] = made.refusals
        return made

    def _place(self, ask: Ask) -> AskPlan:
        """Places as many members as fit, with preemption where the rules allow it."""
        scratch = self._scratch
        found = place_like(scratch, ask, self._rules, self._seed)
        nodes = scratch.snapshot.node_count
        if found.last_why is None:
            refusals = histogram(scratch, ask, found.first_why, explained=False)
            if len(found.proposals) + ask.bound < ask.gang_min:  # all listed members fit, but they are too few
                self._undo(ask, found, [])
                gang = _incomplete(ask, len(found.proposals))
                return AskPlan(ask, (), ask.members, (gang, *refusals), nodes, found.feasible)
            return AskPlan(ask, tuple(found.proposals), (), refusals, nodes, found.feasible)
        refusals = histogram(scratch, ask, found.last_why, explained=True)
        evictions: list[Eviction] = []
        nominated: list[Proposal] = []
        weighed: Weighed | None = None
        if ask.draws or self._preempts(ask):
            without = ask.members[len(found.proposals) :]
            nominated, evictions, refusal = self._nominate(ask, found, without)
            refusals = (*refusals, refusal) if refusal is not None else refusals
            weighed = self._preemption.sparing.weighed() if self._preemption is not None else None
        proposals = (*found.proposals, *nominated)
        if len(proposals) + ask.bound < ask.gang_min:
            self._undo(ask, found, evictions)
            gang = _incomplete(ask, len(proposals))
            return AskPlan(ask, (), ask.members, (gang, *refusals), nodes, found.feasible, weighed=weighed)
        evicted = sum(len(e.victims) for e in evictions if not e.reclaimed)
        self._evicted[ask.namespace] = self._evicted.get(ask.namespace, 0) + evicted
        left = ask.members[len(proposals) :]
        return AskPlan(ask, proposals, left, refusals, nodes, found.feasible, evicted, weighed)

    def _preempts(self, ask: Ask) -> bool:
        return ask.may_preempt and self._rules.preemption.enabled

    def _nominate(
        self, ask: Ask, found: LikePlan, members: Sequence[Member]
    ) -> tuple[list[Proposal], list[Eviction], RefusalCount | None]:
        """Nominates nodes with victims for as many members as rules and budgets allow."""
        if self._preemption is None:
            self._preemption = Preemption(self._scratch, self._standing)
        preemption, scratch = self._preemption, self._scratch
        preemption.sparing.begin()
        left = ask.evictions
        proposals: list[Proposal] = []
        evictions: list[Eviction] = []
        allowed = gates.open_but_full(scratch, ask, self._rules, found.among, found.skew)
        for member in members:
            eviction = preemption.reclaim(ask, allowed, seed=self._seed) if ask.draws else None
            if eviction is None and self._preempts(ask):
                if left < 1:
                    spent = f"tenant {ask.namespace} has used its evictions of this minute"
                    return proposals, evictions, RefusalCount(reason=Reason.PREEMPTION_BUDGET_SPENT, message=spent)
                eviction = preemption.choose(ask, allowed, most=min(left, limits.VICTIMS_PER_REPLICA), seed=self._seed)
            if eviction is None:
                return proposals, evictions, self._no_victims(ask, preemption)
            preemption.take(ask, eviction)
            evictions.append(eviction)
            left -= 0 if eviction.reclaimed else len(eviction.victims)
            names = tuple(sorted(prey.name for prey in eviction.victims))
            proposals.append(Proposal(member, scratch.snapshot.name(eviction.slot), (), 0, (), victims=names))
            found.skew.add(eviction.slot)
            if found.skew.limited:
                allowed = gates.open_but_full(scratch, ask, self._rules, found.among, found.skew)
        return proposals, evictions, None

    def _no_victims(self, ask: Ask, preemption: Preemption) -> RefusalCount:
        rank = preemption.rank_of(ask)
        whom = f"replicas below priority {rank}" if self._preempts(ask) else "reclaimable replicas"
        message = f"evicting {whom} would not free enough resources on any node"
        if preemption.sparing.kept:
            message += f"; protected quota exempts replicas of {', '.join(sorted(preemption.sparing.kept))}"
        return RefusalCount(reason=Reason.NO_VICTIMS, message=message)

    def _undo(self, ask: Ask, found: LikePlan, evictions: Sequence[Eviction]) -> None:
        for eviction in reversed(evictions):
            if self._preemption is not None:
                self._preemption.give_back(ask, eviction)
        for place in reversed(found.places):
            self._scratch.undo(ask, place.slot, place.devices)


def _incomplete(ask: Ask, fitting: int) -> RefusalCount:
    return RefusalCount(
        reason=Reason.GANG_INCOMPLETE,
        message=(
            f"the gang needs {ask.gang_min} members placed together "
            f"(found nodes for {fitting + ask.bound} of {len(ask.members) + ask.bound})"
        ),
    )
