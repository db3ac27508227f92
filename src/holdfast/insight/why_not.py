"""Why not this node, and what the least change is that would let the work fit. Pure; the same gates as the planner's.

The planner stops at a node's first refusal. Here every gate is asked about every node, so that the answer names all
that stands in the way, and the node with the least of it is the nearest miss.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from holdfast.model.decision import ScoreComponent
from holdfast.model.quantity import GPU, amount_text
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.scheduling import filters as gates
from holdfast.scheduling.filters import resources
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.refusal_summary import refusal_message
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scores import NodeScorer
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Snapshot


class Blocker(msgspec.Struct, frozen=True):
    """One thing in the way on one node, and what would remove it."""

    reason: str
    message: str
    fix: str


class WhyNotResult(msgspec.Struct, frozen=True):
    """One node for one replica: what stands in the way, or how it scores where nothing does."""

    node: str
    blockers: tuple[Blocker, ...]
    score: int = 0
    scores: tuple[ScoreComponent, ...] = ()
    position: int = 0
    feasible: int = 0
    best: str = ""
    best_score: int = 0


class SuggestedFix(msgspec.Struct, frozen=True):
    """The least change that would let one replica fit: everything in the way on the node that comes nearest."""

    text: str
    node: str = ""
    reasons: tuple[str, ...] = ()


class WhyNotQuery:
    """One ask against one state. Asking costs one pass of every gate."""

    def __init__(self, snapshot: Snapshot, ask: ReplicaRequirements, rules: PolicyRules, now: float) -> None:
        self._scratch = Scratch(snapshot, now)
        self._ask = ask
        self._rules = rules
        self._among = gates.eligible_nodes(self._scratch, ask, rules)
        self._skew = gates.skew_of(self._scratch, ask, rules, self._among)
        self._refusals: list[Refusal] = self._told_once(gates.all_refusals(self._scratch, ask, rules, self._skew))

    def _told_once(self, found: list[Refusal]) -> list[Refusal]:
        """Missing GPUs are refused as devices and as an amount: the devices say more."""
        devices = next((refused for reason, refused in found if reason is Reason.INSUFFICIENT_DEVICES), None)
        others = [n for n in self._ask.amounts if resources.reason_for(n) is Reason.INSUFFICIENT_RESOURCE and n != GPU]
        if devices is None or others:
            return found
        kept = [(r, refused & ~devices if r is Reason.INSUFFICIENT_RESOURCE else refused) for r, refused in found]
        return [(reason, refused) for reason, refused in kept if refused.any()]

    def explain_node(self, node: str) -> WhyNotResult | None:
        """What stands between the work and this node; None when there is no such node."""
        snapshot = self._scratch.snapshot
        slot = snapshot.slots.get(node)
        if slot is None:
            return None
        obstacles = tuple(self._obstacle(reason, slot) for reason, refused in self._refusals if refused[slot])
        if obstacles:
            return WhyNotResult(node, obstacles)
        return self._scored(node, slot)

    def suggested_fix(self) -> SuggestedFix:
        """The least change: on the node with the fewest obstacles, then the easiest, the smallest gap, and by name."""
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
            return SuggestedFix("nothing: it fits now and is placed at its next turn", snapshot.name(nearest))
        found = [(reason, refused) for reason, refused in self._refusals if refused[nearest]]
        texts = [self._obstacle(reason, nearest).fix for reason, _ in found]
        return SuggestedFix(
            " and ".join(dict.fromkeys(texts)), snapshot.name(nearest), tuple(dict.fromkeys(r.value for r, _ in found))
        )

    # Inside

    def _scored(self, node: str, slot: int) -> WhyNotResult:
        scratch, snapshot = self._scratch, self._scratch.snapshot
        board = NodeScorer(scratch, self._ask, self._rules, self._skew)
        scored = board.score()
        zones = snapshot.static.zone
        points = np.zeros(len(zones.values), dtype=np.int64)
        for zone in self._skew.zones:
            points[zone] = board.zone_points(zone)
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
            scores=board.score_parts(scored, slot, int(zones.ids[slot])),
            position=ranked.index(slot) + 1,
            feasible=len(ranked),
            best=snapshot.name(ranked[0]),
            best_score=int(totals[ranked[0]]),
        )

    def _gap(self, slot: int) -> float:
        """How much is missing on the node, in parts of what is asked for."""
        gap = 0.0
        for name, amount in self._ask.amounts.items():
            free = int(resources.free_of(self._scratch, self._ask, name)[slot])
            gap += max(0, amount - free) / amount
        return gap

    def _obstacle(self, reason: Reason, slot: int) -> Blocker:
        message = refusal_message(self._scratch, self._ask, reason, [slot])
        return Blocker(reason.value, message, self._cure_for(reason, slot))

    def _cure_for(self, reason: Reason, slot: int) -> str:
        snapshot, ask = self._scratch.snapshot, self._ask
        name = snapshot.name(slot)
        match reason:
            case Reason.INSUFFICIENT_CPU | Reason.INSUFFICIENT_MEMORY | Reason.INSUFFICIENT_RESOURCE:
                return " and ".join(self._missing(reason, slot))
            case Reason.INSUFFICIENT_DEVICES:
                wanted = f"{amount_text(GPU, ask.gpu_milli)} gpu"
                models = f" of model {' or '.join(ask.template.gpu_models)}" if ask.template.gpu_models else ""
                return f"free {wanted}{models} on node {name}, or ask for fewer"
            case Reason.ZONE_NOT_ALLOWED:
                return f"add zone {snapshot.zone(slot)} to spec.placement.zones"
            case Reason.POOL_NOT_ALLOWED:
                return f"add pool {snapshot.static.pool.at(slot)} to spec.placement.pools"
            case Reason.RESIDENCY_VIOLATED:
                return f"let spec.placement allow region {snapshot.region}, or place the workload in another region"
            case Reason.TENANCY_VIOLATED:
                owner = snapshot.static.tenant.at(slot) or "everyone"
                return f"add nodes for tenant {ask.namespace}: node {name} belongs to {owner}"
            case Reason.NODE_EXCLUDED_BY_OVERRIDE:
                override = self._scratch.avoidance_of(ask, snapshot.zone(slot))
                name = override.metadata.name if override is not None else ""
                return f"end override {name}, or wait until it expires"
            case _:
                return _CURES.get(reason, reason.sentence).format(node=name)

    def _missing(self, reason: Reason, slot: int) -> Iterator[str]:
        snapshot, ask = self._scratch.snapshot, self._ask
        for resource, amount in ask.amounts.items():
            if resources.reason_for(resource) is not reason:
                continue
            free = int(resources.free_of(self._scratch, ask, resource)[slot])
            if free >= amount:
                continue
            row = snapshot.resources.get(resource)
            has = int(snapshot.capacity[row, slot]) if row is not None else 0
            if has < amount:
                yield (
                    f"ask for at most {amount_text(resource, has)} {resource} instead of "
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
    Reason.INSUFFICIENT_DEVICES: 3,
    Reason.NODE_CORDONED: 1,
    Reason.RESIDENCY_VIOLATED: 9,
    Reason.TENANCY_VIOLATED: 9,
}
"""How much a change asks of people; what is not listed is in the middle."""

_CURES: dict[Reason, str] = {
    Reason.NODE_UNREACHABLE: "bring the agent of node {node} back",
    Reason.NODE_CORDONED: "uncordon node {node}",
    Reason.NODE_DRAINING: "end the drain of node {node}",
    Reason.NODE_TERMINATING: "register node {node} again, or add another one",
    Reason.NODE_FENCED: "let the agent of node {node} register anew",
    Reason.NODE_RECONCILING: "wait until node {node} has matched what it runs",
    Reason.NODE_QUARANTINED: "repair node {node}, which fails at starting work",
    Reason.DRIVER_MISSING: "add a node with the driver, or use one that node {node} has",
    Reason.PORT_IN_USE: "let the node choose the port (port 0), or free it on node {node}",
    Reason.PORTS_EXHAUSTED: "widen the port range of node {node}",
    Reason.LABELS_DO_NOT_MATCH: "label node {node} as the selector wants, or relax the selector",
    Reason.TAINT_NOT_TOLERATED: "tolerate the taint of node {node} in spec.placement.tolerations, or remove it",
    Reason.SPREAD_VIOLATED: "raise maxSkew, or make room in the emptier zones or nodes",
    Reason.AFFINITY_NOT_MET: "place the workload it wants to be near first, or make the rule preferred",
    Reason.ANTI_AFFINITY_VIOLATED: "make the rule that keeps them apart preferred, or add nodes without the other",
    Reason.EXPRESSION_REFUSED: "change the policy's filter expression, or what it looks at on node {node}",
}

_BEYOND_NODES: dict[str, str] = {
    Reason.NO_NODES: "add a node: the region has none",
    Reason.NO_GRANT: "create a Quota for tenant {tenant}; the region then receives a grant",
    Reason.QUOTA_EXCEEDED: "raise the Quota of tenant {tenant}, or end other work of it",
    Reason.GRANT_EXPIRED: "restore the link between the region and the global cell: the grant cannot be renewed",
    Reason.NOT_ALLOWED_WHILE_PARTITIONED: "restore the link between the region and the global cell: until then only provisional "
    "work is placed",
    Reason.GANG_INCOMPLETE: "make room for the missing members, or lower spec.gang.minAvailable",
    Reason.NO_VICTIMS: "free room, or raise the rank: no weaker work may leave that would make enough room",
    Reason.PREEMPTION_BUDGET_SPENT: "wait a minute, or raise preemption.perTenantPerMinute in the policy",
    Reason.WAITING_FOR_VICTIMS: "nothing: a place is reserved and its holders are leaving",
    Reason.WAITING_FOR_GANG: "nothing: a place is reserved until the other members of the gang have one",
    Reason.WAITING: "nothing: it is tried again",
    Reason.VICTIM_NOT_ALLOWED: "nothing: it is planned again with other victims",
    Reason.DEVICE_IN_USE: "nothing: another one was given the device first, and it is planned again",
    Reason.NODE_NOT_FOUND: "nothing: the node went away meanwhile, and it is planned again on the others",
    Reason.ALREADY_CLAIMED: "nothing: a replica of the same name is still leaving its node; see that it is released",
    Reason.DEADLINE_AT_RISK: "raise the priority, or free room soon",
    Reason.DEADLINE_MISSED: "start the batch again with a later deadline",
}


def cluster_level_fix(reason: str, tenant: str) -> str:
    """What helps against a reason that no single node is the cause of; empty where that is not so."""
    return _BEYOND_NODES.get(reason, "").format(tenant=tenant)
