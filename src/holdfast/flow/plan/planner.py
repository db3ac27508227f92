"""`plan`: from a snapshot, asks in order and rules, to proposals and reasons. Pure: the same inputs, the same plan.

The way of a choice: a node must pass every gate; the highest weighted score wins; equal scores are decided by
`tie.tie_number(seed, node)`, the lowest first, and then by name. A gang is placed whole or leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.flow.ask import Ask
from holdfast.flow.explain import histogram
from holdfast.flow.plan.like import LikePlan, Proposal, place_like
from holdfast.flow.scratch import Scratch
from holdfast.flow.snapshot import Snapshot
from holdfast.model.decision import DecisionEntry
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import Rules
from holdfast.model.scheduling_request import Member, RefusalCount

PLANNER_VERSION = "1"
"""Raised with every change that can alter an outcome, so that a replay knows whether it may be compared."""


class AskPlan(msgspec.Struct, frozen=True):
    """What became of one ask. `refusals` say why the unplaced have no place; if all have one, which nodes were out."""

    ask: Ask
    proposals: tuple[Proposal, ...]
    unplaced: tuple[Member, ...]
    refusals: tuple[RefusalCount, ...]
    nodes: int
    feasible: int

    def entries(self) -> tuple[DecisionEntry, ...]:
        """The Decision's entry for every member."""
        placed = tuple(
            DecisionEntry(
                replica=p.member.name,
                uid=p.member.uid,
                attempt=p.member.attempt,
                node=p.node,
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


def plan(snapshot: Snapshot, asks: Sequence[Ask], rules: Rules, now: float, seed: int) -> Plan:
    """Plans the asks in the order given; each sees what the ones before it took."""
    scratch = Scratch(snapshot, now)
    return Plan(snapshot, seed, tuple(_plan_ask(scratch, ask, rules, seed) for ask in asks))


def _plan_ask(scratch: Scratch, ask: Ask, rules: Rules, seed: int) -> AskPlan:
    found = place_like(scratch, ask, rules, seed)
    nodes = scratch.snapshot.node_count
    if found.last_why is None:
        refusals = histogram(scratch, ask, found.first_why, explained=False)
        return AskPlan(ask, tuple(found.proposals), (), refusals, nodes, found.feasible)
    refusals = histogram(scratch, ask, found.last_why, explained=True)
    if len(found.proposals) + ask.bound < ask.gang_min:
        return _without_gang(scratch, ask, found, refusals)
    unplaced = ask.members[len(found.proposals) :]
    return AskPlan(ask, tuple(found.proposals), unplaced, refusals, nodes, found.feasible)


def _without_gang(scratch: Scratch, ask: Ask, found: LikePlan, refusals: tuple[RefusalCount, ...]) -> AskPlan:
    for place in reversed(found.places):
        scratch.undo(ask, place.slot, place.devices)
    gang = RefusalCount(
        reason=Reason.GANG_INCOMPLETE,
        message=(
            f"{ask.gang_min} members must be placed together; "
            f"{len(found.proposals) + ask.bound} of {len(ask.members) + ask.bound} fit"
        ),
    )
    return AskPlan(ask, (), ask.members, (gang, *refusals), scratch.snapshot.node_count, found.feasible)
