"""Why a replica cannot use a node, and the smallest change that would make it fit. Pure; uses the planner's filters.

The planner stops at a node's first refusal. Here every filter runs on every node, so that all blockers are named and
the node with the fewest blockers is the nearest miss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.insight.expression_refusals import expression_refusal_text
from holdfast.insight.fitting_amounts import fitting_amounts, missing_shares, rounded_down
from holdfast.insight.quota_needs import QuotaNeed
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
    priority_may_help: bool = True
    """Whether a node would fit if work on it were evicted."""


class _NodeRemedy(NamedTuple):
    """The changes that let the replica fit on one node. `rank`: blockers, size, gap and name."""

    rank: tuple[int, float, float, str]
    slot: int
    changes: list[Remedy]


class WhyNotQuery:
    """One replica's requirements against one snapshot. Runs every filter once. The tenant's quota counts if the
    requirements know its headroom; it refuses every node alike. `policy` names the revision of the rules. `quota_need`
    is what the Quota lacks in all regions; it is known only where the global cell's objects are."""

    def __init__(
        self,
        snapshot: Snapshot,
        requirements: ReplicaRequirements,
        rules: PolicyRules,
        now: float,
        *,
        policy: str = "",
        quota_need: QuotaNeed | None = None,
    ) -> None:
        if template_claims(requirements.template) and requirements.members:
            requirements = for_member(requirements, requirements.members[0], snapshot.volumes)
        self._scratch = Scratch(snapshot, now)
        self._requirements = requirements
        self._rules = rules
        self._policy = policy
        self._quota_need = quota_need
        self._now = now
        self._at_most: dict[str, int] | None = None
        self._eligible = filters.eligible_nodes(self._scratch, requirements, rules)
        self._skew = filters.skew_of(self._scratch, requirements, rules, self._eligible)
        self._refusals: list[Refusal] = self._without_duplicate_gpus(
            filters.all_refusals(self._scratch, requirements, rules, self._skew)
        )
        if not affordable_members(requirements):
            refusal = Reason(headroom_refusal(requirements).reason)  # type: ignore[call-arg]
            self._refusals.insert(0, (refusal, snapshot.static.has_node.copy()))

    def fitting_amounts(self) -> dict[str, int]:
        """The largest amounts per replica with which all waiting members fit now, of the resources that nodes lack;
        empty if no smaller request is sufficient."""
        if self._at_most is None:
            usable = self._scratch.snapshot.static.has_node.copy()
            for reason, refused in self._refusals:
                if reason not in {*resources.REASONS, Reason.QUOTA_EXCEEDED, Reason.NO_GRANT}:
                    usable &= ~refused
            refusing = {reason for reason, refused in self._refusals if (refused & usable).any()}
            lacking = [name for name in self._requirements.amounts if resources.reason_for(name) in refusing]
            self._at_most = (
                fitting_amounts(
                    self._scratch, self._requirements, self._rules, self._now, usable=usable, lacking=lacking
                )
                if lacking
                else {}
            )
        return self._at_most

    def matching_nodes(self, reasons: Collection[str]) -> int:
        """Number of nodes that refuse the replica for none of these reasons."""
        found = self._scratch.snapshot.static.has_node.copy()
        for reason, refused in self._refusals:
            if reason in reasons:
                found &= ~refused
        return int(found.sum())

    def ask_for_no_more(self, amounts: Mapping[str, int]) -> None:
        """Lowers the suggested amounts: other regions, where replicas of the workload wait too, have room for these."""
        own = self.fitting_amounts()
        self._at_most = {name: min(amount, amounts.get(name, amount)) for name, amount in own.items()}

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
        gaps = missing_shares(self._scratch, self._requirements)
        foreign = next((refused for reason, refused in self._refusals if reason is Reason.TENANCY_VIOLATED), ~live)
        # A node of another tenant is worth no change, unless there is no other node.
        for slot in np.flatnonzero(live & ~foreign if (live & ~foreign).any() else live).tolist():
            blockers = [self._remedies(reason, slot) for reason, refused in self._refusals if refused[slot]]
            if not blockers:
                return SuggestedFix("nothing: it fits now and is placed at the next attempt", snapshot.name(slot))
            for effort in Effort:
                chosen = _remedies_within(blockers, effort)
                if chosen:
                    rank = (len(blockers), sum(c.size for c in chosen), float(gaps[slot]), snapshot.name(slot))
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
        helps = any(self._fits_when_empty(slot) for slot in np.flatnonzero(live).tolist())
        return SuggestedFix(as_choice(choices), snapshot.name(first), tuple(reasons), choices, helps)

    # Inside

    def _fits_when_empty(self, slot: int) -> bool:
        """Whether the node refuses the replica only for what other work uses."""
        snapshot = self._scratch.snapshot
        refusing = {reason for reason, refused in self._refusals if refused[slot]}
        rows = ((snapshot.resources.get(name), amount) for name, amount in self._requirements.amounts.items())
        return refusing <= resources.REASONS | {Reason.INSUFFICIENT_DEVICES} and all(
            row is not None and int(snapshot.capacity[row, slot]) >= amount for row, amount in rows if amount
        )

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
            case Reason.LABELS_DO_NOT_MATCH:
                return {**facts, "command": self._label_command(slot)}
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

    def _label_command(self, slot: int) -> str:
        """The command that gives the node the labels of the selector; empty if other rules refuse it too."""
        snapshot, placement = self._scratch.snapshot, self._requirements.placement
        if placement.expressions or placement.node_terms:
            return ""
        present = {key: column.at(slot) for key, column in snapshot.static.labels.items()}
        wrong = {key: value for key, value in sorted(placement.node_selector.items()) if present.get(key) != value}
        overwrite = "--overwrite " if any(present.get(key) is not None for key in wrong) else ""
        labels = " ".join(f"{key}={value}" for key, value in wrong.items())
        return f" (kubectl --context {snapshot.region} label {overwrite}node {snapshot.name(slot)} {labels})"

    def _amount_remedies(self, reason: Reason, slot: int) -> list[Remedy]:
        """Asks for less, frees the missing amounts, or adds a node; all resources of the reason together. The smaller
        request fits now, for all members; what the empty node could hold is said beside it."""
        snapshot, requirements = self._scratch.snapshot, self._requirements
        node = snapshot.name(slot)
        members = len(requirements.members)
        less, freed, larger, cut, freed_part = [], [], [], 0.0, 0.0
        for resource, amount in requirements.amounts.items():
            free = max(0, int(resources.free_of(self._scratch, requirements, resource)[slot]))
            if resources.reason_for(resource) is not reason or free >= amount:
                continue
            row = snapshot.resources.get(resource)
            capacity = int(snapshot.capacity[row, slot]) if row is not None else 0
            larger += [f"{amount_text(resource, amount)} {resource}"] if capacity < amount else []
            fits = self._fitting_amount(resource, slot, free)
            cut = max(cut, (amount - fits) / amount)
            whole = f" (node {node} has {amount_text(resource, capacity)} in all)" if fits < capacity < amount else ""
            less.append(f"{amount_text(resource, fits)} {resource} instead of {amount_text(resource, amount)}{whole}")
            freed.append(f"{amount_text(resource, amount - free)} {resource}")
            freed_part = max(freed_part, (amount - free) / max(1, capacity))
        found = [asking_for_less(less, cut)] if cut < 1 else []
        if larger:
            nodes = (
                f"nodes with {' and '.join(larger)} for each of {members} replicas"
                if members > 1
                else (f"a node with {' and '.join(larger)}")
            )
            return [*found, Remedy(Effort.CAPACITY, f"add {nodes} (node {node} is the nearest)", 1.0)]
        first = f", for the first of {members} replicas" if members > 1 else ""
        text = f"free {' and '.join(freed)} on node {node}{first}"
        return [*found, Remedy(Effort.CAPACITY, text, min(0.99, freed_part))]

    def _fitting_amount(self, resource: str, slot: int, free: int) -> int:
        """What each member may request of a resource that the node lacks; 0 if no smaller request is sufficient. If the
        node refuses the members for other reasons as well, they would all have to fit there."""
        members = len(self._requirements.members)
        if members > 1 and self._lacks_only_amounts(slot):
            fits = self.fitting_amounts().get(resource, 0)
            return fits if fits < self._requirements.amounts[resource] else 0
        fits = rounded_down(resource, free // max(1, members))
        return min(fits, (self._at_most or {}).get(resource, fits))

    def _lacks_only_amounts(self, slot: int) -> bool:
        others = {reason for reason, refused in self._refusals if refused[slot]} - resources.REASONS
        return not others - {Reason.QUOTA_EXCEEDED, Reason.NO_GRANT}

    def _quota_remedies(self) -> list[Remedy]:
        """Raises the Quota until it covers all that waits of the tenant, or asks for what it covers for each replica.
        Where only this region is known, no amount is named: other replicas of the tenant might take it."""
        requirements, need = self._requirements, self._quota_need
        stop, quota = cluster_level_remedies(Reason.QUOTA_EXCEEDED, requirements.namespace)
        if need is None or self._scratch.snapshot.region in need.unreachable:
            return [stop, quota]
        text = need.raise_text()
        if not text:
            known = f"nothing: the Quota of tenant {need.tenant} covers it, and the region's grant follows"
            return [Remedy(Effort.WAIT, known, 0.0)]
        share = need.shares.get(requirements.workload, {})
        missing = {n: a for n, a in requirements.amounts.items() if n in need.missing and share.get(n, 0) < a}
        found = [msgspec.structs.replace(quota, text=text)]
        if stopped := need.stop_text(requirements.workload):
            found.append(msgspec.structs.replace(stop, text=stopped))
        if missing and all(share.get(name) for name in missing) and not need.missing.keys() - requirements.amounts:
            cut = max((amount - share[name]) / amount for name, amount in missing.items())
            less = [f"{amount_text(n, share[n])} {n} instead of {amount_text(n, a)}" for n, a in missing.items()]
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
    useless = fix is not None and not fix.priority_may_help
    named = [r for r in reasons if r not in told and not (useless and r == Reason.NO_VICTIMS)]
    beyond = [change for r in named for change in cluster_level_remedies(r, tenant)]
    if on_nodes:
        beyond = [change for change in beyond if not change.text.startswith("nothing")]
    return in_order([*on_nodes, *beyond])


def suggestion(fix: SuggestedFix | None, reasons: Iterable[str], tenant: str) -> str:
    """The suggested changes as one sentence."""
    return as_choice(suggested_remedies(fix, reasons, tenant)) or (fix.text if fix is not None else "")
