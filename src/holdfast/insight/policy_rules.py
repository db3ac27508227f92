"""Errors in the expressions of a policy that is not stored yet, as the API would report them. Pure."""

from __future__ import annotations

from holdfast.model import limits
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.validation import Causes, invalid
from holdfast.scheduling import policy_expressions


def expression_errors(field: str, rules: PolicyRules) -> Causes:
    """The expressions that admission would refuse. Too long ones are not compiled: `validate_rules` reports them."""
    written = [("filterExpressions", i, e.expression, False) for i, e in enumerate(rules.filter_expressions)]
    written += [("scoreExpressions", i, e.expression, True) for i, e in enumerate(rules.score_expressions)]
    for kind, index, text, score in written:
        wrong = policy_expressions.find_error(text, score=score) if len(text) <= limits.EXPRESSION_CHARS_MAX else None
        if wrong is not None:
            yield invalid(f"{field}.{kind}[{index}].expression", text, wrong.text)
