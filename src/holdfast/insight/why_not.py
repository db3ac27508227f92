"""Why a replica cannot use a node, and the smallest change that would make it fit. Pure; uses the planner's filters.

The planner stops at a node's first refusal. Here every filter runs on every node, so that all blockers are named and
the node with the fewest blockers is the nearest miss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.insight.expression_refusals import expression_refusal_text
from holdfast.insight.remedies import BEYOND_NODES, ON_NODE, Effort, Remedy, as_choice, cluster_level_remedies, in_order
from holdfast.model.decision import ScoreComponent
from holdfast.model.quantity import GPU, amount_text
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.template import template_claims
from holdfast.scheduling import filters
from holdfast.scheduling.filters import resources
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.quota_headroom import affordable_members, headroom_refusal
from holdfast.scheduling.refusal_summary import refusal_message
from holdfast.scheduling.replica_requirements import ReplicaRequirements, for_member
from holdfast.scheduling.scores import NodeScorer
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Snapshot

# Suggested changes of different effort. The reader chooses among them.
CHOICES_MAX = 3
# Fraction of its request that a workload is likely to do without. A larger cut is suggested behind changes of nodes.
LIKELY_CUT = 0.5


class Blocker(msgspec.Struct, frozen=True):
    """One refusal on one node, and the change that would remove it."""

    reason: str
    message: str
    fix: str


class WhyNotResult(msgspec.Struct, frozen=True):
    """One node for one replica: its blockers, or its score if it is feasible."""

    node: str
    blockers: tuple[Blocker, ...]
    score: int = 0
    scores: tuple[ScoreComponent, ...] = ()
    position: int = 0
    feasible: int = 0
    best: str = ""
    best_score: int = 0


class SuggestedFix(msgspec.Struct, frozen=True):
    """The smallest changes that let one replica fit, each sufficient alone: by effort, then by size. `node` and
    `reasons` belong to the first one. Without choices, `text` says why nothing has to change."""

    text: str
    node: str = ""
    reasons: tuple[str, ...] = ()
    choices: tuple[Remedy, ...] = ()


class _NodeRemedy(NamedTuple):
    """The changes that let the replica fit on one node. `rank`: blockers, size, gap and name."""

    rank: tuple[int, float, float, str]
    slot: int
    changes: list[Remedy]


class WhyNotQuery:
    """One replica's requirements against one snapshot. Runs every filter once. The tenant's quota counts if the
    requirements know its headroom; it refuses every node alike. `policy` names the revision of the rules."""

    def __init__(
        self, snapshot: Snapshot, requirements: ReplicaRequirements, rules: PolicyRules, now: float, policy: str = ""
    ) -> None:
        if template_claims(requirements.template) and requirements.members:
            requirements = for_member(requirements, requirements.members[0], snapshot.volumes)
        self._scratch = Scratch(snapshot, now)
        self._requirements = requirements
        self._rules = rules
        self._policy = policy
        self._eligible = filters.eligible_nodes(self._scratch, requirements, rules)
        self._skew = filters.skew_of(self._scratch, requirements, rules, self._eligible)
        self._refusals: list[Refusal] = self._without_duplicate_gpus(
            filters.all_refusals(self._scratch, requirements, rules, self._skew)
        )
        if not affordable_members(requirements):
            refusal = Reason(headroom_refusal(requirements).reason)  # type: ignore[call-arg]
            self._refusals.insert(0, (refusal, snapshot.static.has_node.copy()))

    def _without_duplicate_gpus(self, found: list[Refusal]) -> list[Refusal]:
        """Drops the resource refusal of missing GPUs where a device refusal explains it better."""
        devices = next((refused for reason, refused in found if reason is Reason.INSUFFICIENT_DEVICES), None)
        others = [
            n
            for n in self._requirements.amounts
            if resources.reason_for(n) is Reason.INSUFFICIENT_RESOURCE and n != GPU
        ]
        if devices is None or others:
            return found
        remaining = [(r, refused & ~devices if r is Reason.INSUFFICIENT_RESOURCE else refused) for r, refused in found]
        return [(reason, refused) for reason, refused in remaining if refused.any()]

    def explain_node(self, node: str) -> WhyNotResult | None:
        """The result for this node; None if there is no such node."""
        snapshot = self._scratch.snapshot
        slot = snapshot.slots.get(node)
        if slot is None:
            return None
        blockers = tuple(self._blocker(reason, slot) for reason, refused in self._refusals if refused[slot])
        if blockers:
            return WhyNotResult(node, blockers)
        return self._scored(node, slot)

    def expression_refusal(self) -> str:
        """The filter expressions that refuse nodes; empty if there is none."""
        refused = next((slots for reason, slots in self._refusals if reason is Reason.EXPRESSION_REFUSED), None)
        return self._expression_text(np.flatnonzero(refused).tolist()) if refused is not None else ""

    def suggested_fix(self) -> SuggestedFix:
        """For each effort the change on the nearest node: fewest blockers, then smallest change, smallest gap, name."""
        snapshot, live = self._scratch.snapshot, self._scratch.snapshot.static.has_node
        if not snapshot.node_count:
            (add,) = BEYOND_NODES[Reason.NO_NODES]
            return SuggestedFix(add.text, reasons=(Reason.NO_NODES.value,), choices=(add,))
        nearest: dict[Effort, _NodeRemedy] = {}
        for slot in np.flatnonzero(live).tolist():
            blockers = [self._remedies(reason, slot) for reason, refused in self._refusals if refused[slot]]
            if not blockers:
                return SuggestedFix("nothing: it fits now and is placed at the next attempt", snapshot.name(slot))
            for effort in Effort:
                chosen = _remedies_within(blockers, effort)
                if chosen:
                    rank = (len(blockers), sum(c.size for c in chosen), self._gap(slot), snapshot.name(slot))
                    if effort not in nearest or rank < nearest[effort].rank:
                        nearest[effort] = _NodeRemedy(rank, slot, chosen)
        if Effort.WORKLOAD in nearest:
            nearest.pop(Effort.SHRINK, None)
        found = [nearest[effort] for effort in sorted(nearest)][:CHOICES_MAX]
        choices = tuple(
            Remedy(max(c.effort for c in n.changes), " and ".join(dict.fromkeys(c.text for c in n.changes)), n.rank[1])
            for n in found
        )
        first = found[0].slot
        reasons = dict.fromkeys(reason.value for reason, refused in self._refusals if refused[first])
        return SuggestedFix(as_choice(choices), snapshot.name(first), tuple(reasons), choices)

    # Inside

    def _scored(self, node: str, slot: int) -> WhyNotResult:
        scratch, snapshot = self._scratch, self._scratch.snapshot
        scorer = NodeScorer(scratch, self._requirements, self._rules, self._skew)
        scored = scorer.score()
        zones = snapshot.static.zone
        points = np.zeros(len(zones.values), dtype=np.int64)
        for zone in self._skew.zones:
            points[zone] = scorer.zone_points(zone)
        totals = scored.total + points[zones.ids]
        open_slots = snapshot.static.has_node.copy()
        for _, refused in self._refusals:
            open_slots &= ~refused
        candidates = np.flatnonzero(open_slots).tolist()
        ranked = sorted(candidates, key=lambda s: (-int(totals[s]), snapshot.name(s)))
        return WhyNotResult(
            node,
            (),
            score=int(totals[slot]),
            scores=scorer.score_parts(scored, slot, int(zones.ids[slot])),
            position=ranked.index(slot) + 1,
            feasible=len(ranked),
            best=snapshot.name(ranked[0]),
            best_score=int(totals[ranked[0]]),
        )

    def _gap(self, slot: int) -> float:
        """Missing resources on the node, as a fraction of the request."""
        gap = 0.0
        for name, amount in self._requirements.amounts.items():
            free = int(resources.free_of(self._scratch, self._requirements, name)[slot])
            gap += max(0, amount - free) / amount
        return gap

    def _blocker(self, reason: Reason, slot: int) -> Blocker:
        if reason in (Reason.QUOTA_EXCEEDED, Reason.NO_GRANT):
            message = headroom_refusal(self._requirements).message
        elif reason is Reason.EXPRESSION_REFUSED:
            message = self._expression_text([slot])
        else:
            message = refusal_message(self._scratch, self._requirements, reason, [slot])
        return Blocker(reason.value, message, as_choice(self._remedies(reason, slot)))

    def _expression_text(self, slots: list[int]) -> str:
        return expression_refusal_text(self._scratch.snapshot, self._requirements, self._rules, slots, self._policy)

    def _remedies(self, reason: Reason, slot: int) -> list[Remedy]:
        """The changes that remove this refusal of the node; one of them is sufficient."""
        if reason in resources.REASONS:
            return self._amount_remedies(reason, slot)
        if reason is Reason.QUOTA_EXCEEDED:
            return self._quota_remedies()
        known = (*ON_NODE.get(reason, ()), *BEYOND_NODES.get(reason, ()))
        facts = self._facts(reason, slot)
        return [msgspec.structs.replace(change, text=change.text.format_map(facts)) for change in known] or [
            Remedy(Effort.OPERATOR, reason.sentence, 1.0)
        ]

    def _facts(self, reason: Reason, slot: int) -> dict[str, str]:
        snapshot, requirements = self._scratch.snapshot, self._requirements
        facts = {"node": snapshot.name(slot), "region": snapshot.region, "tenant": requirements.namespace}
        match reason:
            case Reason.INSUFFICIENT_DEVICES:
                models = " or ".join(requirements.template.gpu_models)
                gpus = f"{amount_text(GPU, requirements.gpu_milli)} gpu{' of model ' + models if models else ''}"
                return {**facts, "gpus": gpus}
            case Reason.ZONE_NOT_ALLOWED:
                return {**facts, "zone": snapshot.zone(slot)}
            case Reason.POOL_NOT_ALLOWED:
                return {**facts, "pool": snapshot.static.pool.at(slot)}
            case Reason.TENANCY_VIOLATED:
                return {**facts, "owner": snapshot.static.tenant.at(slot) or "everyone"}
            case Reason.NODE_EXCLUDED_BY_OVERRIDE:
                override = self._scratch.avoidance_of(requirements, snapshot.zone(slot), snapshot.name(slot))
                return {**facts, "override": override.metadata.name if override is not None else ""}
        return facts

    def _amount_remedies(self, reason: Reason, slot: int) -> list[Remedy]:
        """Asks for less, frees the missing amounts, or adds a node; all resources of the reason together."""
        snapshot, requirements = self._scratch.snapshot, self._requirements
        node = snapshot.name(slot)
        less, freed, larger, cut, freed_part = [], [], [], 0.0, 0.0
        for resource, amount in requirements.amounts.items():
            free = int(resources.free_of(self._scratch, requirements, resource)[slot])
            if resources.reason_for(resource) is not reason or free >= amount:
                continue
            row = snapshot.resources.get(resource)
            capacity = int(snapshot.capacity[row, slot]) if row is not None else 0
            usable = min(capacity, max(0, free)) if capacity >= amount else capacity
            larger += [f"{amount_text(resource, amount)} {resource}"] if capacity < amount else []
            cut = max(cut, (amount - usable) / amount)
            less.append(f"{amount_text(resource, usable)} {resource} instead of {amount_text(resource, amount)}")
            freed.append(f"{amount_text(resource, amount - max(0, free))} {resource}")
            freed_part = max(freed_part, (amount - max(0, free)) / max(1, capacity))
        found = [asking_for_less(less, cut)] if cut < 1 else []
        if larger:
            text = f"add a node with {' and '.join(larger)} (node {node} is the nearest)"
            return [*found, Remedy(Effort.CAPACITY, text, 1.0)]
        return [*found, Remedy(Effort.CAPACITY, f"free {' and '.join(freed)} on node {node}", min(0.99, freed_part))]

    def _quota_remedies(self) -> list[Remedy]:
        """Asks for what the tenant's grant still covers, or raises the Quota by what is missing."""
        requirements, available = self._requirements, self._requirements.quota_headroom or {}
        missing = {n: a - available.get(n, 0) for n, a in requirements.amounts.items() if a > available.get(n, 0)}
        stop, quota = cluster_level_remedies(Reason.QUOTA_EXCEEDED, requirements.namespace)
        by = " and ".join(f"{amount_text(name, amount)} {name}" for name, amount in missing.items())
        found = [stop, msgspec.structs.replace(quota, text=f"{quota.text} by {by}")]
        cut = max((short / requirements.amounts[name] for name, short in missing.items()), default=1.0)
        if cut < 1:
            less = [
                f"{amount_text(n, available.get(n, 0))} {n} instead of {amount_text(n, requirements.amounts[n])}"
                for n in missing
            ]
            found.append(asking_for_less(less, cut))
        return found


def asking_for_less(amounts: Sequence[str], cut: float) -> Remedy:
    """A request lowered by this fraction."""
    return Remedy(
        Effort.WORKLOAD if cut <= LIKELY_CUT else Effort.SHRINK, f"ask for at most {' and '.join(amounts)}", cut
    )


def _remedies_within(blockers: Sequence[Sequence[Remedy]], effort: Effort) -> list[Remedy]:
    """One change for each blocker, of this effort where there is one, else of less; none if a blocker needs more or no
    change has this effort."""
    found = []
    for changes in blockers:
        possible = [c for c in changes if c.effort <= effort]
        if not possible:
            return []
        found.append(max(possible, key=lambda c: (c.effort, -c.size)))
    return found if any(c.effort is effort for c in found) else []


def suggested_remedies(fix: SuggestedFix | None, reasons: Iterable[str], tenant: str) -> list[Remedy]:
    """The changes on nodes and those for reasons that no node causes, in one order. A reason that ends by itself is
    named only if there is nothing to change."""
    on_nodes, told = (fix.choices, fix.reasons) if fix is not None else ((), ())
    beyond = [change for r in reasons if r not in told for change in cluster_level_remedies(r, tenant)]
    if on_nodes:
        beyond = [change for change in beyond if not change.text.startswith("nothing")]
    return in_order([*on_nodes, *beyond])


def suggestion(fix: SuggestedFix | None, reasons: Iterable[str], tenant: str) -> str:
    """The suggested changes as one sentence."""
    return as_choice(suggested_remedies(fix, reasons, tenant)) or (fix.text if fix is not None else "")
