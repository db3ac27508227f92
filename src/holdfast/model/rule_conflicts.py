"""Placement rules that contradict each other, so that no node can ever satisfy them. Admission refuses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.model.placement_rules import (
    BUILT_IN_TOPOLOGIES,
    AffinityRule,
    Expression,
    Operator,
    PlacementRules,
    decimal_integer,
    matches_expression,
    required_affinity,
    required_anti_affinity,
)
from holdfast.model.validation import Causes, forbidden


def validate_conflicts(rules: PlacementRules, labels: dict[str, str]) -> Causes:
    """Rules that no node can satisfy: replicas would be pending forever."""
    for key in contradictory_keys(rules):
        yield forbidden("spec.placement.expressions", f"no node can satisfy the rules for label {key!r} together")
    if contradicts_every_term(rules):
        yield forbidden("spec.placement.nodeTerms", "no node can satisfy one of the terms and the other label rules")
    for key in contradictory_neighbour_keys(rules):
        yield forbidden("spec.placement.affinity", f"no replica can satisfy the rules for label {key!r} together")
    for near, apart in contradictory_affinity(rules):
        yield forbidden(
            "spec.placement.affinity",
            f"no node is near {dict(near.workload_labels)} (by {near.topology}) and apart from "
            f"{dict(apart.workload_labels)} (by {apart.topology})",
        )
    for index in mismatched_own_rules(rules, labels):
        yield forbidden(
            f"spec.placement.affinity[{index}].ownReplicas", "the labels of spec.template do not match the rule"
        )


def contradictory_keys(rules: PlacementRules) -> Iterator[str]:
    """Keys of node labels for which no value satisfies the selector and all expressions, and is there if it is the
    topology of a required rule."""
    yield from _contradictory(rules.node_selector, (*rules.expressions, *_topology_labels(rules)))


def contradicts_every_term(rules: PlacementRules) -> bool:
    """Whether no node satisfies one of the terms together with the other label rules."""
    return bool(rules.node_terms) and all(
        any(_contradictory(rules.node_selector, (*rules.expressions, *_topology_labels(rules), *term.expressions)))
        for term in rules.node_terms
    )


def _topology_labels(rules: PlacementRules) -> Iterator[Expression]:
    """Labels that a node must have because a required spread or affinity rule is by their values."""
    spread = (rule.topology for rule in rules.spread if not rule.preferred)
    for topology in (*spread, *(rule.topology for rule in required_affinity(rules))):
        if topology not in BUILT_IN_TOPOLOGIES:
            yield Expression(key=topology, operator=Operator.EXISTS)


def contradictory_neighbour_keys(rules: PlacementRules) -> Iterator[str]:
    """Label keys for which no neighbour satisfies a required affinity rule."""
    for rule in required_affinity(rules):
        yield from _contradictory(rule.workload_labels, rule.expressions)


def _contradictory(equal: Mapping[str, str], expressions: Sequence[Expression]) -> Iterator[str]:
    """Keys for which no value, and not its absence either, satisfies all these tests."""
    by_key: dict[str, list[Expression]] = {}
    for key, value in equal.items():
        by_key.setdefault(key, []).append(Expression(key=key, operator=Operator.IN, values=(value,)))
    for expression in expressions:
        by_key.setdefault(expression.key, []).append(expression)
    for key, tests in by_key.items():
        if not any(_all_match(tests, labels) for labels in _labels_to_try(key, tests)):
            yield key


def contradictory_affinity(rules: PlacementRules) -> Iterator[tuple[AffinityRule, AffinityRule]]:
    """Pairs of required rules of which one needs the neighbours that the other keeps apart."""
    for near in required_affinity(rules):
        for apart in required_anti_affinity(rules):
            covers = apart.topology == near.topology or (near.topology, apart.topology) == ("node", "zone")
            if near.own_replicas and not apart.own_replicas:
                continue  # the neighbours may be the workload's own replicas
            if covers and not apart.expressions and apart.workload_labels.items() <= near.workload_labels.items():
                yield near, apart


def mismatched_own_rules(rules: PlacementRules, labels: Mapping[str, str]) -> Iterator[int]:
    """Positions of the affinity rules with `ownReplicas` that do not match the labels of the workload's replicas."""
    for index, rule in enumerate(rules.affinity):
        tests = [Expression(key=key, operator=Operator.IN, values=(v,)) for key, v in rule.workload_labels.items()]
        if rule.own_replicas and not _all_match([*tests, *rule.expressions], dict(labels)):
            yield index


def _all_match(expressions: list[Expression], labels: dict[str, str]) -> bool:
    return all(matches_expression(expression, labels) for expression in expressions)


def _labels_to_try(key: str, expressions: list[Expression]) -> Iterator[dict[str, str]]:
    """If any labels satisfy the expressions, some of these do: no label, each named value, a value that is not named,
    and for bounds as many integers between them as `NotIn` could exclude, and one more."""
    yield {}
    named = {value for expression in expressions for value in expression.values}
    yield from ({key: value} for value in sorted(named))
    yield {key: _unnamed(named)}
    bounds = [
        decimal_integer(e.values[0]) for e in expressions if e.operator in (Operator.GT, Operator.LT) and e.values
    ]
    for bound in bounds:
        for step in range(1, len(named) + 2):
            if bound is not None:
                yield {key: str(bound + step)}
                yield {key: str(bound - step)}


def _unnamed(named: set[str]) -> str:
    return next(text for text in (f"v{number}" for number in range(len(named) + 1)) if text not in named)
