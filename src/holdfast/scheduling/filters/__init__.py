"""Hard node filters, in the order in which a node's first refusal is reported.

Filters that guard an invariant are always on; a policy enables the others by name. Results of filters that depend only
on nodes are cached per set of requirements until a node changes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from holdfast.model.scheduler_policy import FilterName, PolicyRules
from holdfast.model.template import required_driver
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
    volumes,
)
from holdfast.scheduling.filters.refusal import ACCEPTED, NO_NODE, Refusal, mark_refused
from holdfast.scheduling.filters.spread import Skew
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Codes

__all__ = [
    "ALWAYS_ON",
    "EligibleNodes",
    "Refusal",
    "Skew",
    "all_refusals",
    "applied_filters",
    "eligible_nodes",
    "nodes_where_preemption_may_help",
    "refusal_codes",
    "refusals_by_filter",
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
        FilterName.VOLUMES,
    }
)

_BY_NODE: tuple[tuple[FilterName, FilterFunction], ...] = (
    (FilterName.VOLUMES, volumes.refuse),
    (FilterName.HEALTH, schedulable.refuse),
    (FilterName.SCHEDULABLE, override_exclusion.refuse),
    (FilterName.RESIDENCY, residency.refuse),
    (FilterName.TENANCY, tenancy.refuse),
    (FilterName.SCHEDULABLE, drivers.refuse),
    (FilterName.LABELS, labels.refuse),
    (FilterName.TAINTS, taints.refuse),
    (FilterName.SCHEDULABLE, taints.refuse_evicting),
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
        required_driver(requirements.template),
        drivers.host_path_key(requirements),
        requirements.held_volumes,
        placement.regions,
        placement.excluded_regions,
        placement.residency,
        placement.zones,
        placement.pools,
        tuple(sorted(placement.node_selector.items())),
        placement.expressions,
        placement.node_terms,
        placement.tolerations,
        rules.filters,
        expressions.key(requirements, rules),
        snapshot.residency,
        tuple(
            (o.spec.kind, o.spec.scope.zone, o.spec.maintenance.nodes if o.spec.maintenance is not None else ())
            for o in scratch.avoidances(requirements)
        ),
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
    return [refusal for _, refusal in refusals_by_filter(scratch, requirements, rules, skew) if refusal[1].any()]


def refusals_by_filter(
    scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, skew: Skew
) -> list[tuple[str, Refusal]]:
    """All refusals with the filter that makes them, in the order in which a node's first refusal is reported."""
    found: list[tuple[str, Refusal]] = []
    for name, node_filter in (*_BY_NODE, *_BY_CLAIMS):
        if name in ALWAYS_ON or name in rules.filters:
            found.extend((name.value, refusal) for refusal in node_filter(scratch, requirements))
    if rules.filter_expressions:
        found.extend(("Expressions", refusal) for refusal in expressions.refuse(scratch, requirements, rules))
    if skew.limited:
        found.extend((FilterName.SPREAD.value, refusal) for refusal in skew.refuse())
    return found


def applied_filters(rules: PolicyRules) -> list[str]:
    """Names of the filters that apply under these rules, in the order in which they run, each once."""
    names = [name.value for name, _ in (*_BY_NODE, *_BY_CLAIMS) if name in ALWAYS_ON or name in rules.filters]
    if rules.filter_expressions:
        names.append("Expressions")
    if FilterName.SPREAD in rules.filters:
        names.append(FilterName.SPREAD.value)
    return list(dict.fromkeys(names))


def nodes_where_preemption_may_help(
    scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, eligible: EligibleNodes
) -> Bools:
    """Nodes that only existing claims make infeasible, so that an eviction may help."""
    codes = eligible.codes.copy()
    if FilterName.AFFINITY in rules.filters and requirements.placement.affinity:
        mark_refused(codes, affinity.refuse_far(scratch, requirements))
    allowed: Bools = codes == ACCEPTED
    return allowed


def skew_of(scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, eligible: EligibleNodes) -> Skew:
    return Skew(scratch, requirements, eligible.passed, eligible.zones, hard=FilterName.SPREAD in rules.filters)
