"""The hard gates, in the order in which a node's first refusal is reported.

Gates that guard a promise are always on. A policy chooses among the others by naming them. Those that depend on the
nodes alone are asked once per kind of ask and remembered until a node changes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from holdfast.model.scheduler_policy import FilterName, PolicyRules
from holdfast.scheduling.filters import (
    affinity,
    devices,
    drivers,
    expressions,
    labels,
    override_exclusion,
    ports,
    residency,
    resources,
    schedulable,
    taints,
    tenancy,
)
from holdfast.scheduling.filters.refusal import ACCEPTED, NO_NODE, Refusal, mark_refused
from holdfast.scheduling.filters.spread import Skew
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Codes

__all__ = ["ALWAYS_ON", "EligibleNodes", "Skew", "eligible_nodes", "all_refusals", "nodes_where_preemption_may_help", "skew_of", "refusal_codes"]

FilterFunction = Callable[[Scratch, ReplicaRequirements], list[Refusal]]

ALWAYS_ON = frozenset(
    {
        FilterName.HEALTH,
        FilterName.SCHEDULABLE,
        FilterName.RESIDENCY,
        FilterName.TENANCY,
        FilterName.RESOURCES,
        FilterName.DEVICES,
        FilterName.PORTS,
    }
)

_BY_NODE: tuple[tuple[FilterName, FilterFunction], ...] = (
    (FilterName.HEALTH, schedulable.refuse),
    (FilterName.SCHEDULABLE, override_exclusion.refuse),
    (FilterName.RESIDENCY, residency.refuse),
    (FilterName.TENANCY, tenancy.refuse),
    (FilterName.SCHEDULABLE, drivers.refuse),
    (FilterName.LABELS, labels.refuse),
    (FilterName.TAINTS, taints.refuse),
)
_BY_CLAIMS: tuple[tuple[FilterName, FilterFunction], ...] = (
    (FilterName.AFFINITY, affinity.refuse),
    (FilterName.DEVICES, devices.refuse),
    (FilterName.RESOURCES, resources.refuse),
    (FilterName.PORTS, ports.refuse),
)


class EligibleNodes(msgspec.Struct, frozen=True):
    """What the nodes' own facts say: codes, who passed, and the zones that have one that did."""

    codes: Codes
    passed: Bools
    zones: tuple[int, ...]


def eligible_nodes(scratch: Scratch, ask: ReplicaRequirements, rules: PolicyRules) -> EligibleNodes:
    """Which nodes the work may use at all, whatever is free on them."""
    snapshot, placement = scratch.snapshot, ask.placement
    key = (
        "eligible", ask.namespace if ask.dedicated else "", ask.dedicated, ask.template.driver,
        placement.regions, placement.excluded_regions, placement.residency, placement.zones, placement.pools,
        tuple(sorted(placement.node_selector.items())), placement.expressions, placement.tolerations,
        rules.filters, expressions.key(ask, rules), snapshot.residency,
        tuple((o.spec.kind, o.spec.scope.zone) for o in scratch.avoidances(ask)),
    )  # fmt: skip
    found = snapshot.static.memo.get(key)
    if found is None:
        static = snapshot.static
        codes: Codes = np.where(static.has_node, ACCEPTED, NO_NODE).astype(np.uint8)
        for name, gate in _BY_NODE:
            if name in ALWAYS_ON or name in rules.filters:
                mark_refused(codes, gate(scratch, ask))
        if rules.filter_expressions:
            mark_refused(codes, expressions.refuse(scratch, ask, rules))
        passed = codes == ACCEPTED
        zones = tuple(np.flatnonzero(np.bincount(static.zone.ids[passed])).tolist()) if passed.any() else ()
        found = snapshot.memoize(key, EligibleNodes(codes, passed, zones))
    answer: EligibleNodes = found
    return answer


def refusal_codes(scratch: Scratch, ask: ReplicaRequirements, rules: PolicyRules, among: EligibleNodes, skew: Skew | None = None) -> Codes:
    """Every node's first refusal, 0 for none. Spread counts only if given: it moves with each placement."""
    codes = among.codes.copy()
    for name, gate in _BY_CLAIMS:
        if name in ALWAYS_ON or name in rules.filters:
            mark_refused(codes, gate(scratch, ask))
    if skew is not None and skew.limited:
        mark_refused(codes, skew.refuse())
    return codes


def all_refusals(scratch: Scratch, ask: ReplicaRequirements, rules: PolicyRules, skew: Skew) -> list[Refusal]:
    """All that every gate has against every node: what explanations are made of."""
    found: list[Refusal] = []
    for name, gate in (*_BY_NODE, *_BY_CLAIMS):
        if name in ALWAYS_ON or name in rules.filters:
            found.extend(gate(scratch, ask))
    if rules.filter_expressions:
        found.extend(expressions.refuse(scratch, ask, rules))
    if skew.limited:
        found.extend(skew.refuse())
    return [(reason, refused) for reason, refused in found if refused.any()]


def nodes_where_preemption_may_help(scratch: Scratch, ask: ReplicaRequirements, rules: PolicyRules, among: EligibleNodes, skew: Skew) -> Bools:
    """Nodes that nothing but what is claimed on them keeps the work from: where an eviction could help."""
    codes = among.codes.copy()
    if FilterName.AFFINITY in rules.filters:
        mark_refused(codes, affinity.refuse(scratch, ask))
    if skew.limited:
        mark_refused(codes, skew.refuse())
    allowed: Bools = codes == ACCEPTED
    return allowed


def skew_of(scratch: Scratch, ask: ReplicaRequirements, rules: PolicyRules, among: EligibleNodes) -> Skew:
    return Skew(scratch, ask, among.passed, among.zones, hard=FilterName.SPREAD in rules.filters)
