"""Placement rules of a workload: regions, zones, pools, node selectors, taints, spread and affinity."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

from holdfast.model.meta import ApiStruct, visible_default
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_label_key,
    check_labels,
    check_range,
    check_unique,
    forbidden,
    invalid,
    required,
)

BUILT_IN_TOPOLOGIES = ("zone", "node")
"""Topologies of spread and affinity that are not the key of a node label."""

_DECIMAL = re.compile("-?[0-9]{1,18}", re.ASCII)


class Operator(enum.StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class Expression(ApiStruct, frozen=True):
    """One test on a node's labels."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class TaintEffect(enum.StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Taint(ApiStruct, frozen=True):
    key: str
    value: str = ""
    effect: TaintEffect = visible_default(TaintEffect.NO_SCHEDULE)


class Toleration(ApiStruct, frozen=True):
    """Tolerates taints with this key (empty: any), value (unless `exists`) and effect (empty: any)."""

    key: str = ""
    value: str = ""
    exists: bool = False
    effect: TaintEffect | None = None


class SpreadRule(ApiStruct, frozen=True):
    """Keeps replicas of one workload apart by zone, by node or by the value of a node label; hard unless
    `preferred`."""

    topology: str = visible_default("zone")
    max_skew: int = visible_default(1)
    preferred: bool = False
    min_domains: int = 0


class AffinityRule(ApiStruct, frozen=True):
    """Near (or, with `apart`, not near) replicas of the tenant, by the labels of their templates: they have all of
    `workloadLabels` and satisfy all `expressions`. Replicas of the workload itself count only with `ownReplicas`."""

    workload_labels: dict[str, str] = {}
    topology: str = visible_default("node")
    apart: bool = False
    preferred: bool = False
    expressions: tuple[Expression, ...] = ()
    own_replicas: bool = False


class NodeTerm(ApiStruct, frozen=True):
    """One alternative of `nodeTerms`: all its expressions must hold for a node's labels."""

    expressions: tuple[Expression, ...] = ()


class NodePreference(ApiStruct, frozen=True):
    """Prefers nodes whose labels satisfy all expressions. The weight compares it with the workload's other
    preferences."""

    expressions: tuple[Expression, ...] = ()
    weight: int = visible_default(1)


class LatencyTarget(ApiStruct, frozen=True):
    """Prefers regions whose measured round trip to `toRegion` is at most `maxMs`."""

    to_region: str
    max_ms: float


class PlacementRules(ApiStruct, frozen=True):
    """Where replicas may run. Every list allows only its entries, and an empty list allows all, except
    `excludedRegions`."""

    regions: tuple[str, ...] = ()
    excluded_regions: tuple[str, ...] = ()
    residency: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    spread_regions: int = 0
    node_selector: dict[str, str] = {}
    expressions: tuple[Expression, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    spread: tuple[SpreadRule, ...] = ()
    affinity: tuple[AffinityRule, ...] = ()
    node_terms: tuple[NodeTerm, ...] = ()
    preferred_nodes: tuple[NodePreference, ...] = ()
    latency: LatencyTarget | None = None


def matches_expression(expression: Expression, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy one expression; absent keys satisfy NotIn and DoesNotExist only."""
    value = labels.get(expression.key)
    match expression.operator:
        case Operator.EXISTS:
            return value is not None
        case Operator.DOES_NOT_EXIST:
            return value is None
        case Operator.IN:
            return value is not None and value in expression.values
        case Operator.NOT_IN:
            return value is None or value not in expression.values
        case Operator.GT | Operator.LT:
            left = decimal_integer(value or "")
            right = decimal_integer(expression.values[0]) if expression.values else None
            if left is None or right is None:
                return False
            return left > right if expression.operator is Operator.GT else left < right


def has_preferences(rules: PlacementRules) -> bool:
    """Whether the score Locality distinguishes nodes for the workload."""
    return bool(rules.preferred_nodes) or any(rule.preferred for rule in rules.affinity)


def required_affinity(rules: PlacementRules) -> tuple[AffinityRule, ...]:
    """The required rules to be near other replicas."""
    return tuple(rule for rule in rules.affinity if not rule.apart and not rule.preferred)


def required_anti_affinity(rules: PlacementRules) -> tuple[AffinityRule, ...]:
    """The required anti-affinity rules. They also hold for replicas that are placed later."""
    return tuple(rule for rule in rules.affinity if rule.apart and not rule.preferred)


def selects_own_replicas(rules: PlacementRules) -> bool:
    """Whether each placement of a replica changes where the workload's next replica may or should go."""
    return any(rule.own_replicas for rule in rules.affinity)


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    return any(
        (not t.key or t.key == taint.key)
        and (t.exists or not t.key or t.value == taint.value)
        and (t.effect is None or t.effect == taint.effect)
        for t in tolerations
    )


def validate_placement(field: str, rules: PlacementRules) -> Causes:
    for name in ("regions", "excluded_regions", "zones", "pools"):
        camel = {"excluded_regions": "excludedRegions"}.get(name, name)
        values: tuple[str, ...] = getattr(rules, name)
        yield from check_unique(f"{field}.{camel}", values)
        for index, value in enumerate(values):
            yield from check_dns_label(f"{field}.{camel}[{index}]", value)
    for region in sorted(set(rules.regions) & set(rules.excluded_regions)):
        yield forbidden(f"{field}.excludedRegions", f"region {region!r} is both allowed and excluded")
    if rules.latency is not None:
        yield from check_dns_label(f"{field}.latency.toRegion", rules.latency.to_region)
        yield from check_range(f"{field}.latency.maxMs", rules.latency.max_ms, 0.1, 60_000)
    yield from check_range(f"{field}.spreadRegions", rules.spread_regions, 0, 100)
    yield from check_labels(f"{field}.nodeSelector", rules.node_selector)
    yield from _validate_expressions(field, rules.expressions)
    terms = [(f"{field}.nodeTerms[{n}]", term.expressions) for n, term in enumerate(rules.node_terms)]
    terms += [(f"{field}.preferredNodes[{n}]", soft.expressions) for n, soft in enumerate(rules.preferred_nodes)]
    for path, expressions in terms:
        if not expressions:
            yield required(f"{path}.expressions")
        yield from _validate_expressions(path, expressions)
    for index, preference in enumerate(rules.preferred_nodes):
        yield from check_range(f"{field}.preferredNodes[{index}].weight", preference.weight, 1, 100)
    for index, rule in enumerate(rules.spread):
        yield from check_range(f"{field}.spread[{index}].maxSkew", rule.max_skew, 1, 1000)
        yield from check_range(f"{field}.spread[{index}].minDomains", rule.min_domains, 0, 1000)
        yield from _validate_topology(f"{field}.spread[{index}].topology", rule.topology)
        if rule.preferred and rule.topology not in BUILT_IN_TOPOLOGIES:
            yield forbidden(f"{field}.spread[{index}].topology", "a preferred spread is by zone or node")
        if rule.preferred and rule.min_domains:
            yield forbidden(f"{field}.spread[{index}].minDomains", "only a required spread has a number of domains")
    for index, near in enumerate(rules.affinity):
        yield from _validate_topology(f"{field}.affinity[{index}].topology", near.topology)
        if not near.workload_labels and not near.expressions:
            yield required(f"{field}.affinity[{index}].workloadLabels")
        yield from check_labels(f"{field}.affinity[{index}].workloadLabels", near.workload_labels)
        yield from _validate_expressions(f"{field}.affinity[{index}]", near.expressions)


def _validate_topology(field: str, topology: str) -> Causes:
    if topology not in BUILT_IN_TOPOLOGIES:
        yield from check_label_key(field, topology)


def _validate_expressions(field: str, expressions: tuple[Expression, ...]) -> Causes:
    for index, expression in enumerate(expressions):
        path = f"{field}.expressions[{index}]"
        yield from check_label_key(f"{path}.key", expression.key)
        if expression.operator in (Operator.IN, Operator.NOT_IN) and not expression.values:
            yield required(f"{path}.values", f"{expression.operator} needs at least one value")
        if expression.operator in (Operator.GT, Operator.LT):
            if len(expression.values) != 1 or decimal_integer(expression.values[0]) is None:
                yield invalid(
                    f"{path}.values", list(expression.values), f"{expression.operator} needs exactly one integer"
                )
        elif expression.operator in (Operator.IN, Operator.NOT_IN):
            for value in expression.values:
                yield from check_labels(f"{path}.values", {expression.key: value})
        elif expression.operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST) and expression.values:
            yield forbidden(f"{path}.values", f"{expression.operator} takes no values")


def decimal_integer(text: str) -> int | None:
    """The value of a plain decimal integer, such as `7` or `-12`; None for anything else."""
    return int(text) if _DECIMAL.fullmatch(text) else None
