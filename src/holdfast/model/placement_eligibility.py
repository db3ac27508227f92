"""Where a workload may run, one predicate per rule: region, residency, zone, pool, driver and tenancy (S4).

The planner, the authority and the controllers of both cells call these predicates and never restate a rule. Each has
its own words for a refusal. Overrides are judged in `override`, the node's own state in `node`, quota in `grant_limit`.
The checkers of the simulation must not import this module: they judge its callers.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.model.placement_rules import PlacementRules


def allows_region(rules: PlacementRules, region: str) -> bool:
    return (not rules.regions or region in rules.regions) and region not in rules.excluded_regions


def satisfies_residency(rules: PlacementRules, tags: Collection[str] | None) -> bool:
    """One common tag is enough. A region whose tags are unknown satisfies no residency rule: the stricter side wins."""
    return not rules.residency or not set(rules.residency).isdisjoint(tags or ())


def allows_zone(rules: PlacementRules, zone: str) -> bool:
    return not rules.zones or zone in rules.zones


def allows_pool(rules: PlacementRules, pool: str) -> bool:
    return not rules.pools or pool in rules.pools


def has_driver(installed: Collection[str], driver: str) -> bool:
    """Whether a node with these drivers can start work that needs `driver`."""
    return driver in installed


def can_use_node(tenant: str, owner: str, *, dedicated: bool) -> bool:
    """A dedicated tenant runs only on the nodes it owns, and no other tenant runs there. A shared node has no owner."""
    return owner == (tenant if dedicated else "")


def can_use_slots(tenants: tuple[str, ...], tenant: str, *, dedicated: bool) -> bool:
    """Whether a RecoveryBudget for these tenants (empty: every tenant) has recovery slots for the tenant. A budget for
    one dedicated tenant alone has its slots on that tenant's nodes. Every other budget has them on shared nodes."""
    return tenants == (tenant,) if dedicated else not tenants or tenant in tenants
