"""Where a workload may run, one predicate per rule: region, residency, zone, pool, driver and tenancy (S4).

The planner, the authority and the controllers of both cells call these predicates and never restate a rule; each has
its own refusal message. Overrides are checked in `override`, node state in `node`, quota in `grant_limit`. The checkers
of the simulation must not import this module, because they check its callers.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.model.placement_rules import PlacementRules


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
