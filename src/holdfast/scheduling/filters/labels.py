"""Matches node labels against the workload's nodeSelector and expressions, once per distinct label value."""

from __future__ import annotations

import numpy as np

from holdfast.model.placement_rules import Expression, Operator, matches_expression
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Snapshot


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    expressions, terms = expressions_of(requirements), requirements.placement.node_terms
    if not expressions and not terms:
        return []
    matched = matching_all(scratch.snapshot, expressions)
    if terms:
        matched &= np.logical_or.reduce([matching_all(scratch.snapshot, term.expressions) for term in terms])
    return [(Reason.LABELS_DO_NOT_MATCH, ~matched)]


def matching_all(snapshot: Snapshot, expressions: tuple[Expression, ...]) -> Bools:
    """Nodes whose labels satisfy all expressions."""
    matched: Bools = np.ones(len(snapshot.static.has_node), dtype=np.bool_)
    for expression in expressions:
        matched &= _matching(snapshot, expression)
    return matched


def expressions_of(requirements: ReplicaRequirements) -> tuple[Expression, ...]:
    """All label requirements; the selector becomes In expressions with one value each."""
    selector = (
        Expression(key=key, operator=Operator.IN, values=(value,))
        for key, value in sorted(requirements.placement.node_selector.items())
    )
    return (*selector, *requirements.placement.expressions)


def _matching(snapshot: Snapshot, expression: Expression) -> Bools:
    column = snapshot.static.labels.get(expression.key)
    if column is None:  # no node has the label
        return np.full(len(snapshot.static.has_node), matches_expression(expression, {}), dtype=np.bool_)
    key = expression.key
    return column.where(lambda value: matches_expression(expression, {} if value is None else {key: value}))
