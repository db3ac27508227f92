"""Node labels against the selector and the expressions; each test runs once per distinct value of its key."""

from __future__ import annotations

import numpy as np

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.flow.snapshot import Bools, Snapshot
from holdfast.model.placement_rules import Expression, Operator, matches
from holdfast.model.reasons import Reason


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    expressions = expressions_of(ask)
    if not expressions:
        return []
    snapshot = scratch.snapshot
    matched: Bools = np.ones(len(snapshot.static.live), dtype=np.bool_)
    for expression in expressions:
        matched &= _matching(snapshot, expression)
    return [(Reason.LABELS_DO_NOT_MATCH, ~matched)]


def expressions_of(ask: Ask) -> tuple[Expression, ...]:
    """The selector is a list of In expressions with one value each."""
    selector = (
        Expression(key=key, operator=Operator.IN, values=(value,))
        for key, value in sorted(ask.placement.node_selector.items())
    )
    return (*selector, *ask.placement.expressions)


def _matching(snapshot: Snapshot, expression: Expression) -> Bools:
    column = snapshot.static.labels.get(expression.key)
    if column is None:  # no node has the label
        return np.full(len(snapshot.static.live), matches(expression, {}), dtype=np.bool_)
    key = expression.key
    return column.where(lambda value: matches(expression, {} if value is None else {key: value}))
