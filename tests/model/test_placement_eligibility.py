"""Each placement predicate as a table: what it allows, at its boundaries."""

from __future__ import annotations

import pytest

from holdfast.model.placement_eligibility import (
    NeighbourSelector,
    allows_pool,
    allows_region,
    allows_skew,
    allows_zone,
    can_use_node,
    can_use_slots,
    counted_fewest,
    domain_of,
    evicting_taint,
    first_untolerated_taint,
    has_driver,
    is_kept_apart,
    is_neighbour,
    matches_node_labels,
    may_be_first,
    satisfies_residency,
    selector_of,
)
from holdfast.model.placement_rules import (
    AffinityRule,
    Expression,
    NodeTerm,
    Operator,
    PlacementRules,
    Taint,
    TaintEffect,
    Toleration,
)


@pytest.mark.parametrize(
    ("regions", "excluded", "allowed"),
    [((), (), True), (("a",), (), True), (("b",), (), False), ((), ("a",), False), (("a",), ("a",), False)],
)
def test_region_is_named_or_nothing_is_and_not_excluded(
    regions: tuple[str, ...], excluded: tuple[str, ...], *, allowed: bool
) -> None:
    assert allows_region(PlacementRules(regions=regions, excluded_regions=excluded), "a") is allowed


@pytest.mark.parametrize(
    ("rule", "tags", "satisfied"),
    [
        ((), None, True),
        ((), ("eu",), True),
        (("eu",), None, False),
        (("eu",), (), False),
        (("eu", "ch"), ("ch",), True),
        (("eu",), ("us",), False),
    ],
)
def test_residency_needs_one_common_tag(
    rule: tuple[str, ...], tags: tuple[str, ...] | None, *, satisfied: bool
) -> None:
    assert satisfies_residency(PlacementRules(residency=rule), tags) is satisfied


@pytest.mark.parametrize(("named", "allowed"), [((), True), (("x",), True), (("y", "x"), True), (("y",), False)])
def test_zone_and_pool_are_named_or_nothing_is(named: tuple[str, ...], *, allowed: bool) -> None:
    assert allows_zone(PlacementRules(zones=named), "x") is allowed
    assert allows_pool(PlacementRules(pools=named), "x") is allowed
    assert has_driver(named or ("x",), "x") is allowed


@pytest.mark.parametrize(
    ("owner", "dedicated", "allowed"),
    [("", False, True), ("acme", False, False), ("acme", True, True), ("", True, False), ("rival", True, False)],
)
def test_dedicated_tenant_runs_on_its_own_nodes_alone(owner: str, *, dedicated: bool, allowed: bool) -> None:
    assert can_use_node("acme", owner, dedicated=dedicated) is allowed


@pytest.mark.parametrize(
    ("tenants", "dedicated", "allowed"),
    [
        ((), False, True),
        (("acme",), False, True),
        (("rival", "acme"), False, True),
        (("rival",), False, False),
        ((), True, False),
        (("acme",), True, True),
        (("acme", "rival"), True, False),
    ],
)
def test_slots_of_a_budget_are_for_its_tenants(tenants: tuple[str, ...], *, dedicated: bool, allowed: bool) -> None:
    assert can_use_slots(tenants, "acme", dedicated=dedicated) is allowed


SSD = Expression("disk", Operator.IN, ("ssd",))
NEW = Expression("age", Operator.LT, ("3",))


@pytest.mark.parametrize(
    ("rules", "labels", "matches"),
    [
        (PlacementRules(), {}, True),
        (PlacementRules(node_selector={"disk": "ssd"}), {"disk": "ssd"}, True),
        (PlacementRules(node_selector={"disk": "ssd"}), {"disk": "hdd"}, False),
        (PlacementRules(node_selector={"disk": "ssd"}), {}, False),
        (PlacementRules(expressions=(SSD, NEW)), {"disk": "ssd", "age": "2"}, True),
        (PlacementRules(expressions=(SSD, NEW)), {"disk": "ssd", "age": "3"}, False),
        (PlacementRules(node_terms=(NodeTerm((SSD,)), NodeTerm((NEW,)))), {"age": "2"}, True),
        (PlacementRules(node_terms=(NodeTerm((SSD,)), NodeTerm((NEW,)))), {}, False),
        (PlacementRules(node_terms=(NodeTerm((SSD, NEW)),)), {"disk": "ssd"}, False),
        (PlacementRules(node_selector={"a": "b"}, node_terms=(NodeTerm((SSD,)),)), {"disk": "ssd"}, False),
    ],
)
def test_node_labels_satisfy_selector_expressions_and_one_term(
    rules: PlacementRules, labels: dict[str, str], *, matches: bool
) -> None:
    assert matches_node_labels(rules, labels) is matches


NO_SCHEDULE, NO_EXECUTE = Taint("a", "", TaintEffect.NO_SCHEDULE), Taint("b", "", TaintEffect.NO_EXECUTE)
PREFER = Taint("c", "", TaintEffect.PREFER_NO_SCHEDULE)


@pytest.mark.parametrize(
    ("taints", "tolerated", "keeps_off", "evicts"),
    [
        ((), (), None, None),
        ((PREFER,), (), None, None),
        ((PREFER, NO_SCHEDULE, NO_EXECUTE), (), NO_SCHEDULE, NO_EXECUTE),
        ((NO_SCHEDULE, NO_EXECUTE), ("a",), NO_EXECUTE, NO_EXECUTE),
        ((NO_SCHEDULE, NO_EXECUTE), ("a", "b"), None, None),
        ((NO_SCHEDULE,), ("b",), NO_SCHEDULE, None),
    ],
)
def test_untolerated_taints_keep_off_or_evict(
    taints: tuple[Taint, ...], tolerated: tuple[str, ...], keeps_off: Taint | None, evicts: Taint | None
) -> None:
    tolerations = tuple(Toleration(key, exists=True) for key in tolerated)
    assert first_untolerated_taint(taints, tolerations) == keeps_off
    assert evicting_taint(taints, tolerations) == evicts


LABELS = (("app", "db"), ("tier", "1"))


@pytest.mark.parametrize(
    ("rule", "other", "about"),
    [
        (AffinityRule(workload_labels={"app": "db"}), "db", True),
        (AffinityRule(workload_labels={"app": "web"}), "db", False),
        (AffinityRule(workload_labels=dict(LABELS)), "db", True),
        (AffinityRule(workload_labels={**dict(LABELS), "more": "1"}), "db", False),
        (AffinityRule(workload_labels={"app": "db"}), "own", False),
        (AffinityRule(workload_labels={"app": "db"}, own_replicas=True), "own", True),
        (AffinityRule(expressions=(Expression("tier", Operator.IN, ("1",)),)), "db", True),
        (AffinityRule(expressions=(Expression("tier", Operator.IN, ("2",)),)), "db", False),
        (AffinityRule(workload_labels={"app": "db"}, expressions=(Expression("x", Operator.EXISTS),)), "db", False),
    ],
)
def test_affinity_rule_is_about_replicas_that_it_selects(rule: AffinityRule, other: str, *, about: bool) -> None:
    assert is_neighbour(rule, "own", other, LABELS) is about
    assert is_kept_apart("own", selector_of(rule), other, LABELS) is about


def test_selector_excludes_the_own_workload_unless_it_says_otherwise() -> None:
    assert not is_kept_apart("own", NeighbourSelector((), ()), "own", LABELS)
    assert is_kept_apart("own", NeighbourSelector((), ()), "db", LABELS)


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        (AffinityRule(workload_labels={"app": "db"}, own_replicas=True), True),
        (AffinityRule(workload_labels={"app": "db"}), False),
        (AffinityRule(workload_labels={"app": "web"}, own_replicas=True), False),
    ],
)
def test_replica_that_matches_its_own_rule_may_be_the_first(rule: AffinityRule, *, first: bool) -> None:
    assert may_be_first(rule, "own", LABELS) is first


@pytest.mark.parametrize(("topology", "domain"), [("zone", "z1"), ("node", "n1"), ("rack", "r1"), ("room", None)])
def test_domain_of_a_node_is_its_zone_itself_or_a_label(topology: str, domain: str | None) -> None:
    assert domain_of(topology, "n1", "z1", {"rack": "r1"}) == domain


@pytest.mark.parametrize(("domains", "expected"), [(1, 0), (2, 4), (3, 4)])
def test_emptiest_domain_is_empty_while_there_are_too_few(domains: int, expected: int) -> None:
    assert counted_fewest(4, domains, 2) == expected


@pytest.mark.parametrize(("count", "fewest", "allowed"), [(0, 0, True), (1, 0, False), (1, 1, True), (2, 1, False)])
def test_domain_gets_one_more_within_the_skew(count: int, fewest: int, *, allowed: bool) -> None:
    assert allows_skew(1, count, fewest) is allowed
