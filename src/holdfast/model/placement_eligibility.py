"""Where a workload may run, one predicate per rule: region, residency, zone, pool, driver, tenancy, node labels,
taints, affinity and spread (S4).

The planner, the authority and the controllers of both cells call these predicates and never restate a rule; each has
its own refusal message. Overrides are checked in `override`, node state in `node`, quota in `grant_limit`. The checkers
of the simulation must not import this module, because they check its callers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from holdfast.model.placement_rules import (
    AffinityRule,
    Expression,
    NodePreference,
    NodeTerm,
    PlacementRules,
    Taint,
    TaintEffect,
    Toleration,
    matches_expression,
    tolerates,
)

Labels = tuple[tuple[str, str], ...]
"""Labels as sorted pairs."""


class NeighbourSelector(NamedTuple):
    """The replicas that an affinity rule is about; hashable."""

    labels: Labels
    expressions: tuple[Expression, ...]
    own_replicas: bool = False


_KEEPS_OFF = frozenset({TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE})


def allows_region(rules: PlacementRules, region: str) -> bool:
    return (not rules.regions or region in rules.regions) and region not in rules.excluded_regions


def satisfies_residency(rules: PlacementRules, tags: Collection[str] | None) -> bool:
    """One common tag is enough. A region whose tags are unknown satisfies no residency rule."""
    return not rules.residency or not set(rules.residency).isdisjoint(tags or ())


def allows_zone(rules: PlacementRules, zone: str) -> bool:
    return not rules.zones or zone in rules.zones


def allows_pool(rules: PlacementRules, pool: str) -> bool:
    return not rules.pools or pool in rules.pools


def has_driver(installed: Collection[str], driver: str) -> bool:
    """Whether a node with these drivers can run a template that needs `driver`."""
    return driver in installed


def can_use_node(tenant: str, owner: str, *, dedicated: bool) -> bool:
    """A dedicated tenant runs only on its own nodes, and no other tenant runs there. A shared node has no owner."""
    return owner == (tenant if dedicated else "")


def can_use_slots(tenants: tuple[str, ...], tenant: str, *, dedicated: bool) -> bool:
    """Whether the tenant may use recovery slots of a RecoveryBudget for these tenants (empty: every tenant).

    A budget for exactly one dedicated tenant has its slots on that tenant's nodes, every other budget on shared nodes.
    """
    return tenants == (tenant,) if dedicated else not tenants or tenant in tenants


def matches_node_labels(rules: PlacementRules, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels satisfies the selector, every expression, and one of the terms if there are
    any."""
    return (
        all(labels.get(key) == value for key, value in rules.node_selector.items())
        and all(matches_expression(expression, labels) for expression in rules.expressions)
        and (not rules.node_terms or any(matches_term(term, labels) for term in rules.node_terms))
    )


def matches_term(term: NodeTerm | NodePreference, labels: Mapping[str, str]) -> bool:
    return all(matches_expression(expression, labels) for expression in term.expressions)


def first_untolerated_taint(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first untolerated NoSchedule or NoExecute taint; None if there is none."""
    return next((t for t in taints if t.effect in _KEEPS_OFF and not tolerates(tolerations, t)), None)


def evicting_taint(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first untolerated NoExecute taint. Running replicas leave such a node; no policy can switch that off."""
    return next((t for t in taints if t.effect is TaintEffect.NO_EXECUTE and not tolerates(tolerations, t)), None)


def selector_of(rule: AffinityRule) -> NeighbourSelector:
    return NeighbourSelector(tuple(sorted(rule.workload_labels.items())), rule.expressions, rule.own_replicas)


def is_neighbour(rule: AffinityRule, workload: str, other: str, labels: Labels) -> bool:
    """Whether an affinity rule of `workload` is about a replica of workload `other` with these labels."""
    return is_kept_apart(workload, selector_of(rule), other, labels)


def is_kept_apart(guarded: str, selector: NeighbourSelector, workload: str, labels: Labels) -> bool:
    """Whether a rule of workload `guarded` with this selector is about a replica of `workload` with these labels."""
    if (guarded == workload and not selector.own_replicas) or not set(selector.labels) <= set(labels):
        return False
    return not selector.expressions or all(matches_expression(e, dict(labels)) for e in selector.expressions)


def may_be_first(rule: AffinityRule, workload: str, labels: Labels) -> bool:
    """Whether a replica of `workload` with these labels satisfies its own required rule, so that it needs no neighbour
    while every matching replica that does not leave is in its domain. So the first replica can be placed, and the next
    ones follow it."""
    return is_neighbour(rule, workload, workload, labels)


def domain_of(topology: str, name: str, zone: str, labels: Mapping[str, str]) -> str | None:
    """The domain of a node: its zone, itself, or the value of the label `topology`. None if it has no such label."""
    if topology == "zone":
        return zone
    return name if topology == "node" else labels.get(topology)


def counted_fewest(fewest: int, domains: int, min_domains: int) -> int:
    """The number of replicas in the emptiest domain as spread counts it: 0 while there are too few domains."""
    return fewest if domains >= min_domains else 0


def allows_skew(max_skew: int, count: int, fewest: int) -> bool:
    """Whether a domain with `count` replicas may get one more, if the emptiest domain has `fewest`."""
    return count + 1 - fewest <= max_skew
