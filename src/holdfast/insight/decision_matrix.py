"""Nodes by filter and score for one decision, grouped by cause. Pure; uses the planner's filters and scores.

The groups are those of the planner: a node belongs to the first filter that refuses it. Every other refusal of the node
is shown as well, so that the node with the fewest of them is the nearest miss.
"""

from __future__ import annotations

import msgspec
import numpy as np

from holdfast.insight.expression_refusals import expression_refusal_text
from holdfast.insight.fitting_amounts import missing_shares
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.scheduling import filters
from holdfast.scheduling.refusal_summary import refusal_message
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scores import NodeScorer
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Snapshot

# Nodes of one group that are listed. The rest is counted.
MEMBERS_MAX = 50
# Feasible nodes that are listed, the best first.
FEASIBLE_MAX = 50


class FilterColumn(msgspec.Struct, frozen=True, rename="camel"):
    """`left` counts the nodes that remain after this filter and those before it."""

    name: str
    left: int


class ScoreColumn(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    weight: int


class MatrixRow(msgspec.Struct, frozen=True, rename="camel"):
    """One node. `refused` maps filters to reasons; `scores` are in the order of the score columns."""

    node: str
    zone: str
    refused: dict[str, str] = {}
    messages: tuple[str, ...] = ()
    scores: tuple[int, ...] = ()
    total: int = 0


class MatrixGroup(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes with the same first refusal. `rows` begin with the nearest miss of the group."""

    reason: str
    filter: str
    nodes: int
    message: str
    rows: tuple[MatrixRow, ...] = ()


class DecisionMatrix(msgspec.Struct, frozen=True, rename="camel"):
    filters: tuple[FilterColumn, ...]
    scores: tuple[ScoreColumn, ...]
    feasible: tuple[MatrixRow, ...]
    feasible_count: int
    groups: tuple[MatrixGroup, ...]
    nodes: int
    nearest: str = ""
    passes: int = 0
    """`nearest` is the refused node with the fewest refusing filters, of those the one that lacks least. It passes
    `passes` filters."""


def decision_matrix(
    snapshot: Snapshot, requirements: ReplicaRequirements, rules: PolicyRules, now: float, policy: str = ""
) -> DecisionMatrix:
    """`policy` names the revision of the rules."""
    scratch = Scratch(snapshot, now)
    eligible = filters.eligible_nodes(scratch, requirements, rules)
    skew = filters.skew_of(scratch, requirements, rules, eligible)
    refusals = filters.refusals_by_filter(scratch, requirements, rules, skew)
    names = filters.applied_filters(rules)
    live: Bools = snapshot.static.has_node
    left = live.copy()
    columns = []
    first: dict[int, tuple[str, Reason]] = {}
    count = np.zeros(len(live), dtype=np.int64)
    for name in names:
        refused: Bools = np.zeros(len(live), dtype=bool)
        for owner, (reason, slots) in refusals:
            if owner == name:
                refused |= slots
                for slot in np.flatnonzero(slots & left).tolist():
                    first.setdefault(slot, (name, reason))
        count += refused & live
        left &= ~refused
        columns.append(FilterColumn(name, int(left.sum())))

    def group_message(reason: Reason, slots: list[int]) -> str:
        if reason is Reason.EXPRESSION_REFUSED:
            return expression_refusal_text(snapshot, requirements, rules, slots[:1], policy)
        return refusal_message(scratch, requirements, reason, slots)

    def row(slot: int) -> MatrixRow:
        mine = [(owner, reason) for owner, (reason, slots) in refusals if slots[slot]]
        messages = tuple(group_message(reason, [slot]) for _, reason in mine)
        return MatrixRow(
            snapshot.name(slot), snapshot.zone(slot), {owner: reason.value for owner, reason in mine}, messages
        )

    gaps = missing_shares(scratch, requirements)
    order = sorted(first, key=lambda slot: (int(count[slot]), float(gaps[slot]), snapshot.name(slot)))
    groups: dict[tuple[str, Reason], list[int]] = {}
    for slot in order:
        groups.setdefault(first[slot], []).append(slot)
    nearest = order[0] if order else None
    scores, feasible = _scored(scratch, requirements, rules, skew, left) if left.any() else ((), ())
    return DecisionMatrix(
        filters=tuple(columns),
        scores=scores,
        feasible=feasible,
        feasible_count=int(left.sum()),
        groups=tuple(
            MatrixGroup(
                reason.value,
                name,
                len(slots),
                group_message(reason, slots),
                tuple(row(slot) for slot in slots[:MEMBERS_MAX]),
            )
            for (name, reason), slots in sorted(groups.items(), key=lambda g: (nearest not in g[1], -len(g[1]), g[0]))
        ),
        nodes=int(live.sum()),
        nearest=snapshot.name(nearest) if nearest is not None else "",
        passes=len(names) - _refusing(refusals, nearest) if nearest is not None else 0,
    )


def _refusing(refusals: list[tuple[str, filters.Refusal]], slot: int) -> int:
    return len({owner for owner, (_, slots) in refusals if slots[slot]})


def _scored(
    scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, skew: filters.Skew, open_slots: Bools
) -> tuple[tuple[ScoreColumn, ...], tuple[MatrixRow, ...]]:
    snapshot = scratch.snapshot
    scorer = NodeScorer(scratch, requirements, rules, skew)
    scored = scorer.score()
    zones = snapshot.static.zone
    points = np.zeros(len(zones.values), dtype=np.int64)
    for zone in skew.zones:
        points[zone] = scorer.zone_points(zone)
    totals = scored.total + points[zones.ids]
    slots = sorted(np.flatnonzero(open_slots).tolist(), key=lambda s: (-int(totals[s]), snapshot.name(s)))
    parts = {slot: scorer.score_parts(scored, slot, int(zones.ids[slot])) for slot in slots[:FEASIBLE_MAX]}
    columns = tuple(ScoreColumn(p.name, p.weight) for p in parts[slots[0]])
    rows = tuple(
        MatrixRow(
            snapshot.name(slot),
            snapshot.zone(slot),
            scores=tuple(p.value for p in parts[slot]),
            total=int(totals[slot]),
        )
        for slot in slots[:FEASIBLE_MAX]
    )
    return columns, rows
