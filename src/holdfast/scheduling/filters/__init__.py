"""Hard node filters, in the order in which a node's first refusal is reported.

Filters that guard an invariant are always on; a policy enables the others by name. Results of filters that depend only
on nodes are cached per set of requirements until a node changes.
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

__all__ = [
    "ALWAYS_ON",
    "EligibleNodes",
    "Skew",
    "all_refusals",
    "eligible_nodes",
    "nodes_where_preemption_may_help",
    "refusal_codes",
    "skew_of",
]

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
    """Result of the node-only filters: refusal code per slot, slots that passed, and zones with such a slot."""

    codes: Codes
    passed: Bools
    zones: tuple[int, ...]


def eligible_nodes(scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules) -> EligibleNodes:
    """Nodes that the replica may use, regardless of free capacity."""
    snapshot, placement = scratch.snapshot, requirements.placement
    key = (
        "eligible",
        requirements.namespace if requirements.dedicated else "",
        requirements.dedicated,
        requirements.template.driver,
        placement.regions,
        placement.excluded_regions,
        placement.residency,
        placement.zones,
        placement.pools,
        tuple(sorted(placement.node_selector.items())),
        placement.expressions,
        placement.tolerations,
        rules.filters,
        expressions.key(requirements, rules),
        snapshot.residency,
        tuple((o.spec.kind, o.spec.scope.zone) for o in scratch.avoidances(requirements)),
    )
    found = snapshot.static.memo.get(key)
    if found is None:
        static = snapshot.static
        codes: Codes = np.where(static.has_node, ACCEPTED, NO_NODE).astype(np.uint8)
        for name, node_filter in _BY_NODE:
            if name in ALWAYS_ON or name in rules.filters:
                mark_refused(codes, node_filter(scratch, requirements))
        if rules.filter_expressions:
            mark_refused(codes, expressions.refuse(scratch, requirements, rules))
        passed = codes == ACCEPTED
        zones = tuple(np.flatnonzero(np.bincount(static.zone.ids[passed])).tolist()) if passed.any() else ()
        found = snapshot.memoize(key, EligibleNodes(codes, passed, zones))
    answer: EligibleNodes = found
    return answer


def refusal_codes(
    scratch: Scratch,
    requirements: ReplicaRequirements,
    rules: PolicyRules,
    eligible: EligibleNodes,
    skew: Skew | None = None,
) -> Codes:
    """Each node's first refusal code, 0 for none. Spread is checked only if given: each placement changes it."""
    codes = eligible.codes.copy()
    for name, node_filter in _BY_CLAIMS:
        if name in ALWAYS_ON or name in rules.filters:
            mark_refused(codes, node_filter(scratch, requirements))
    if skew is not None and skew.limited:
        mark_refused(codes, skew.refuse())
    return codes


def all_refusals(scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, skew: Skew) -> list[Refusal]:
    """All refusals of all filters for all nodes, for explanations."""
    found: list[Refusal] = []
    for name, node_filter in (*_BY_NODE, *_BY_CLAIMS):
        if name in ALWAYS_ON or name in rules.filters:
            found.extend(node_filter(scratch, requirements))
    if rules.filter_expressions:
        found.extend(expressions.refuse(scratch, requirements, rules))
    if skew.limited:
        found.extend(skew.refuse())
    return [(reason, refused) for reason, refused in found if refused.any()]


def nodes_where_preemption_may_help(
    scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, eligible: EligibleNodes, skew: Skew
) -> Bools:
    """Nodes that only existing claims make infeasible, so that an eviction may help."""
    codes = eligible.codes.copy()
    if FilterName.AFFINITY in rules.filters:
        mark_refused(codes, affinity.refuse(scratch, requirements))
    if skew.limited:
        mark_refused(codes, skew.refuse())
    allowed: Bools = codes == ACCEPTED
    return allowed


def skew_of(scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, eligible: EligibleNodes) -> Skew:
    return Skew(scratch, requirements, eligible.passed, eligible.zones, hard=FilterName.SPREAD in rules.filters)
