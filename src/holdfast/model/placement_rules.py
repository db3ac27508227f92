"""Placement rules of a workload: regions, zones, pools, node selectors, taints, spread and affinity."""

from __future__ import annotations

import enum
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
    """Keeps replicas of one workload apart by zone or node; hard unless `preferred`."""

    topology: str = visible_default("zone")
    max_skew: int = visible_default(1)
    preferred: bool = False


class AffinityRule(ApiStruct, frozen=True):
    """Near (or, with `apart`, not near) replicas of other workloads of the tenant, by their labels."""

    workload_labels: dict[str, str] = {}
    topology: str = visible_default("node")
    apart: bool = False
    preferred: bool = False


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
            try:
                left, right = int(value or ""), int(expression.values[0])
            except (ValueError, IndexError):
                return False
            return left > right if expression.operator is Operator.GT else left < right


def required_anti_affinity(rules: PlacementRules) -> tuple[AffinityRule, ...]:
    """The required anti-affinity rules. They also hold for replicas that are placed later."""
    return tuple(rule for rule in rules.affinity if rule.apart and not rule.preferred)


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
    yield from check_range(f"{field}.spreadRegions", rules.spread_regions, 0, 100)
    yield from check_labels(f"{field}.nodeSelector", rules.node_selector)
    for index, expression in enumerate(rules.expressions):
        path = f"{field}.expressions[{index}]"
        yield from check_label_key(f"{path}.key", expression.key)
        if expression.operator in (Operator.IN, Operator.NOT_IN) and not expression.values:
            yield required(f"{path}.values", f"{expression.operator} needs at least one value")
        if expression.operator in (Operator.GT, Operator.LT):
            if len(expression.values) != 1 or not _is_int(expression.values[0]):
                yield invalid(
                    f"{path}.values", list(expression.values), f"{expression.operator} needs exactly one integer"
                )
        elif expression.operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST) and expression.values:
            yield forbidden(f"{path}.values", f"{expression.operator} takes no values")
    for index, rule in enumerate(rules.spread):
        yield from check_range(f"{field}.spread[{index}].maxSkew", rule.max_skew, 1, 1000)
        if rule.topology not in ("zone", "node"):
            yield invalid(f"{field}.spread[{index}].topology", rule.topology, "must be zone or node")
    for index, near in enumerate(rules.affinity):
        if near.topology not in ("zone", "node"):
            yield invalid(f"{field}.affinity[{index}].topology", near.topology, "must be zone or node")
        if not near.workload_labels:
            yield required(f"{field}.affinity[{index}].workloadLabels")
        yield from check_labels(f"{field}.affinity[{index}].workloadLabels", near.workload_labels)


def _is_int(text: str) -> bool:
    return text.lstrip("+-").isdigit()
