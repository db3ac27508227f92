"""Why a replica cannot use a node, and the smallest change that would make it fit. Pure; uses the planner's filters.

The planner stops at a node's first refusal. Here every filter runs on every node, so that all blockers are named and
the node with the fewest blockers is the nearest miss.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from holdfast.model.decision import ScoreComponent
from holdfast.model.quantity import GPU, amount_text
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.template import template_claims
from holdfast.scheduling import filters
from holdfast.scheduling.filters import resources
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.refusal_summary import refusal_message
from holdfast.scheduling.replica_requirements import ReplicaRequirements, for_member
from holdfast.scheduling.scores import NodeScorer
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Snapshot


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
    """The smallest change that lets one replica fit: all blockers on the nearest node."""

    text: str
    node: str = ""
    reasons: tuple[str, ...] = ()


class WhyNotQuery:
    """One replica's requirements against one snapshot. Runs every filter once."""

    def __init__(self, snapshot: Snapshot, requirements: ReplicaRequirements, rules: PolicyRules, now: float) -> None:
        if template_claims(requirements.template) and requirements.members:
            requirements = for_member(requirements, requirements.members[0], snapshot.volumes)
        self._scratch = Scratch(snapshot, now)
        self._requirements = requirements
        self._rules = rules
        self._eligible = filters.eligible_nodes(self._scratch, requirements, rules)
        self._skew = filters.skew_of(self._scratch, requirements, rules, self._eligible)
        self._refusals: list[Refusal] = self._without_duplicate_gpus(
            filters.all_refusals(self._scratch, requirements, rules, self._skew)
        )

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

    def suggested_fix(self) -> SuggestedFix:
        """The change on the node with the fewest blockers, then the least effort, the smallest gap, and by name."""
        snapshot, live = self._scratch.snapshot, self._scratch.snapshot.static.has_node
        if not snapshot.node_count:
            return SuggestedFix("add a node: the region has none", reasons=(Reason.NO_NODES.value,))
        effort: dict[int, int] = {}
        count = np.zeros(len(live), dtype=np.int64)
        for reason, refused in self._refusals:
            count += refused & live
            for slot in np.flatnonzero(refused & live).tolist():
                effort[slot] = effort.get(slot, 0) + _EFFORT.get(reason, 5)
        slots = np.flatnonzero(live).tolist()
        nearest = min(slots, key=lambda s: (int(count[s]), effort.get(s, 0), self._gap(s), snapshot.name(s)))
        if not count[nearest]:
            return SuggestedFix("nothing: it fits now and is placed at the next attempt", snapshot.name(nearest))
        found = [(reason, refused) for reason, refused in self._refusals if refused[nearest]]
        fixes = [self._blocker(reason, nearest).fix for reason, _ in found]
        return SuggestedFix(
            " and ".join(dict.fromkeys(fixes)), snapshot.name(nearest), tuple(dict.fromkeys(r.value for r, _ in found))
        )

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
        message = refusal_message(self._scratch, self._requirements, reason, [slot])
        return Blocker(reason.value, message, self._fix_for(reason, slot))

    def _fix_for(self, reason: Reason, slot: int) -> str:
        snapshot, requirements = self._scratch.snapshot, self._requirements
        name = snapshot.name(slot)
        match reason:
            case (
                Reason.INSUFFICIENT_CPU
                | Reason.INSUFFICIENT_MEMORY
                | Reason.INSUFFICIENT_STORAGE
                | Reason.INSUFFICIENT_RESOURCE
            ):
                return " and ".join(self._missing(reason, slot))
            case Reason.INSUFFICIENT_DEVICES:
                required_gpus = f"{amount_text(GPU, requirements.gpu_milli)} gpu"
                models = (
                    f" of model {' or '.join(requirements.template.gpu_models)}"
                    if requirements.template.gpu_models
                    else ""
                )
                return f"free {required_gpus}{models} on node {name}, or ask for fewer"
            case Reason.ZONE_NOT_ALLOWED:
                return f"add zone {snapshot.zone(slot)} to spec.placement.zones"
            case Reason.POOL_NOT_ALLOWED:
                return f"add pool {snapshot.static.pool.at(slot)} to spec.placement.pools"
            case Reason.RESIDENCY_VIOLATED:
                return f"let spec.placement allow region {snapshot.region}, or place the workload in another region"
            case Reason.TENANCY_VIOLATED:
                owner = snapshot.static.tenant.at(slot) or "everyone"
                return f"add nodes for tenant {requirements.namespace}: node {name} belongs to {owner}"
            case Reason.NODE_EXCLUDED_BY_OVERRIDE:
                override = self._scratch.avoidance_of(requirements, snapshot.zone(slot), name)
                name = override.metadata.name if override is not None else ""
                return f"end override {name}, or wait until it expires"
            case _:
                return _FIXES.get(reason, reason.sentence).format(node=name)

    def _missing(self, reason: Reason, slot: int) -> Iterator[str]:
        snapshot, requirements = self._scratch.snapshot, self._requirements
        for resource, amount in requirements.amounts.items():
            if resources.reason_for(resource) is not reason:
                continue
            free = int(resources.free_of(self._scratch, requirements, resource)[slot])
            if free >= amount:
                continue
            row = snapshot.resources.get(resource)
            capacity = int(snapshot.capacity[row, slot]) if row is not None else 0
            if capacity < amount:
                yield (
                    f"ask for at most {amount_text(resource, capacity)} {resource} instead of "
                    f"{amount_text(resource, amount)}, or add a larger node (node {snapshot.name(slot)} is the nearest)"
                )
            else:
                yield (
                    f"free {amount_text(resource, amount - max(0, free))} {resource} on node {snapshot.name(slot)}, "
                    f"or ask for {amount_text(resource, max(0, free))}"
                )


_EFFORT: dict[Reason, int] = {
    Reason.NODE_RECONCILING: 0,
    Reason.SPREAD_VIOLATED: 2,
    Reason.INSUFFICIENT_CPU: 2,
    Reason.INSUFFICIENT_MEMORY: 2,
    Reason.INSUFFICIENT_RESOURCE: 2,
    Reason.INSUFFICIENT_STORAGE: 2,
    Reason.INSUFFICIENT_DEVICES: 3,
    Reason.NODE_CORDONED: 1,
    Reason.RESIDENCY_VIOLATED: 9,
    Reason.TENANCY_VIOLATED: 9,
}
"""Estimated effort for an operator to remove a refusal; 5 if not listed. Among nodes with equally many refusals, the
node with the least total effort is suggested."""

_FIXES: dict[Reason, str] = {
    Reason.NODE_UNREACHABLE: "restart the agent of node {node}",
    Reason.NODE_CORDONED: "uncordon node {node}",
    Reason.NODE_DRAINING: "end the drain of node {node}",
    Reason.NODE_TERMINATING: "register node {node} again, or add another one",
    Reason.NODE_FENCED: "wait until the agent of node {node} registers again",
    Reason.NODE_RECONCILING: "wait until the agent of node {node} has reconciled its tasks",
    Reason.NODE_QUARANTINED: "repair node {node}: task starts fail on it",
    Reason.DRIVER_MISSING: "add a node with the driver, or use one that node {node} has",
    Reason.HOST_PATH_NOT_ALLOWED: "add the path to `volume_paths` of the agent of node {node}, or set readOnly",
    Reason.VOLUME_ON_OTHER_NODE: "use the node that holds the volume; to start empty elsewhere, delete the Volume",
    Reason.VOLUME_NODE_LOST: "bring the node that holds the volume back; to start empty elsewhere, delete the Volume",
    Reason.VOLUME_TERMINATING: "wait until the Volume is deleted",
    Reason.PORT_IN_USE: "let the node choose the port (port 0), or free it on node {node}",
    Reason.PORTS_EXHAUSTED: "widen the port range of node {node}",
    Reason.LABELS_DO_NOT_MATCH: "label node {node} to match the selector, or relax the selector",
    Reason.TAINT_NOT_TOLERATED: "tolerate the taint of node {node} in spec.placement.tolerations, or remove it",
    Reason.SPREAD_VIOLATED: "raise maxSkew, or free resources in the emptier zones or nodes",
    Reason.AFFINITY_NOT_MET: "place the workload of the affinity rule first, or make the rule preferred",
    Reason.ANTI_AFFINITY_VIOLATED: "make the anti-affinity rule preferred, or add nodes without the other workload",
    Reason.EXPRESSION_REFUSED: "change the policy's filter expression, or the attributes of node {node} that it reads",
}

_CLUSTER_FIXES: dict[str, str] = {
    Reason.NO_NODES: "add a node: the region has none",
    Reason.NO_GRANT: "create a Quota for tenant {tenant}; the region then receives a grant",
    Reason.QUOTA_EXCEEDED: "raise the Quota of tenant {tenant}, or stop other workloads of the tenant",
    Reason.GRANT_EXPIRED: "restore the link between the region and the global cell: the grant cannot be renewed",
    Reason.NOT_ALLOWED_WHILE_PARTITIONED: (
        "restore the link between the region and the global cell: until then only provisional work is placed"
    ),
    Reason.GANG_INCOMPLETE: "free resources for the missing members, or lower spec.gang.minAvailable",
    Reason.NO_VICTIMS: "free resources, or raise the priority: preemption would not free enough on any node",
    Reason.VICTIMS_WITHIN_BUDGET: (
        "free resources, wait until more replicas of the named workloads serve, or raise their maxUnavailable"
    ),
    Reason.TOO_MANY_VICTIMS: "free resources, or ask for less: too many small replicas would have to leave one node",
    Reason.PREEMPTION_BUDGET_SPENT: "wait a minute, or raise preemption.perTenantPerMinute in the policy",
    Reason.WAITING_FOR_VICTIMS: "nothing: the node is reserved and the victims are stopping",
    Reason.WAITING_FOR_GANG: "nothing: the node is reserved until the other gang members have one",
    Reason.WAITING: "nothing: it is retried",
    Reason.VICTIM_NOT_ALLOWED: "nothing: it is planned again with other victims",
    Reason.DEVICE_IN_USE: "nothing: another claim took the device first; it is planned again",
    Reason.NODE_NOT_FOUND: "nothing: the node was removed; it is planned again on other nodes",
    Reason.VOLUME_IN_USE: "nothing: the former attempt still holds the volume; it is planned again",
    Reason.VOLUME_NOT_BOUND: "nothing: it is planned again without victims",
    Reason.ALREADY_CLAIMED: "nothing: a replica of the same name is still being released",
    Reason.DEADLINE_AT_RISK: "raise the priority, or free resources soon",
    Reason.DEADLINE_MISSED: "start the batch again with a later deadline",
}


def cluster_level_fix(reason: str, tenant: str) -> str:
    """The fix for a reason that no single node causes; empty for other reasons."""
    return _CLUSTER_FIXES.get(reason, "").format(tenant=tenant)
