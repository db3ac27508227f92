"""The hard gates, in the order in which a node's first refusal is reported.

Gates that guard a promise are always on. A policy chooses among the others by naming them. Those that depend on the
nodes alone are asked once per kind of ask and remembered until a node changes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from holdfast.flow.ask import Ask
from holdfast.flow.filter import (
    affinity,
    avoided,
    devices,
    drivers,
    expressions,
    labels,
    ports,
    residency,
    resources,
    schedulable,
    taints,
    tenancy,
)
from holdfast.flow.filter.refusal import ACCEPTED, NO_NODE, Refusal, mark
from holdfast.flow.filter.spread import Skew
from holdfast.flow.scratch import Scratch
from holdfast.flow.snapshot import Bools, Codes
from holdfast.model.scheduler_policy import FilterName, Rules

__all__ = ["ALWAYS_ON", "Eligible", "Skew", "eligible", "every_refusal", "open_but_full", "skew_of", "why"]

Gate = Callable[[Scratch, Ask], list[Refusal]]

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

_BY_NODE: tuple[tuple[FilterName, Gate], ...] = (
    (FilterName.HEALTH, schedulable.refuse),
    (FilterName.SCHEDULABLE, avoided.refuse),
    (FilterName.RESIDENCY, residency.refuse),
    (FilterName.TENANCY, tenancy.refuse),
    (FilterName.SCHEDULABLE, drivers.refuse),
    (FilterName.LABELS, labels.refuse),
    (FilterName.TAINTS, taints.refuse),
)
_BY_CLAIMS: tuple[tuple[FilterName, Gate], ...] = (
    (FilterName.AFFINITY, affinity.refuse),
    (FilterName.DEVICES, devices.refuse),
    (FilterName.RESOURCES, resources.refuse),
    (FilterName.PORTS, ports.refuse),
)


class Eligible(msgspec.Struct, frozen=True):
    """What the nodes' own facts say: codes, who passed, and the zones that have one that did."""

    why: Codes
    passed: Bools
    zones: tuple[int, ...]


def eligible(scratch: Scratch, ask: Ask, rules: Rules) -> Eligible:
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
        codes: Codes = np.where(static.live, ACCEPTED, NO_NODE).astype(np.uint8)
        for name, gate in _BY_NODE:
            if name in ALWAYS_ON or name in rules.filters:
                mark(codes, gate(scratch, ask))
        if rules.filter_expressions:
            mark(codes, expressions.refuse(scratch, ask, rules))
        passed = codes == ACCEPTED
        zones = tuple(np.flatnonzero(np.bincount(static.zone.ids[passed])).tolist()) if passed.any() else ()
        found = snapshot.remember(key, Eligible(codes, passed, zones))
    answer: Eligible = found
    return answer


def why(scratch: Scratch, ask: Ask, rules: Rules, among: Eligible, skew: Skew | None = None) -> Codes:
    """Every node's first refusal, 0 for none. Spread counts only if given: it moves with each placement."""
    codes = among.why.copy()
    for name, gate in _BY_CLAIMS:
        if name in ALWAYS_ON or name in rules.filters:
            mark(codes, gate(scratch, ask))
    if skew is not None and skew.limited:
        mark(codes, skew.refuse())
    return codes


def every_refusal(scratch: Scratch, ask: Ask, rules: Rules, skew: Skew) -> list[Refusal]:
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


def open_but_full(scratch: Scratch, ask: Ask, rules: Rules, among: Eligible, skew: Skew) -> Bools:
    """Nodes that nothing but what is claimed on them keeps the work from: where an eviction could help."""
    codes = among.why.copy()
    if FilterName.AFFINITY in rules.filters:
        mark(codes, affinity.refuse(scratch, ask))
    if skew.limited:
        mark(codes, skew.refuse())
    allowed: Bools = codes == ACCEPTED
    return allowed


def skew_of(scratch: Scratch, ask: Ask, rules: Rules, among: Eligible) -> Skew:
    return Skew(scratch, ask, among.passed, among.zones, hard=FilterName.SPREAD in rules.filters)
