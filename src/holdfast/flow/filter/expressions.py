"""The policy's own filter expressions: a node must pass every one of them; one that fails refuses it."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.flow import cel
from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.flow.snapshot import Bools
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import Rules


def key(ask: Ask, rules: Rules) -> tuple[Any, ...]:
    """What the answer depends on besides the nodes; empty for a policy without expressions."""
    return (rules.filter_expressions, cel.ask_key(ask)) if rules.filter_expressions else ()


def refuse(scratch: Scratch, ask: Ask, rules: Rules) -> list[Refusal]:
    static = scratch.snapshot.static
    refused: Bools = np.zeros(len(static.live), dtype=np.bool_)
    request = cel.request_facts(ask)
    for slot, node in enumerate(static.nodes):
        if node is None:
            continue
        facts = {"node": cel.node_facts(node), "request": request}
        refused[slot] = not all(_passes(e.expression, facts) for e in rules.filter_expressions)
    return [(Reason.EXPRESSION_REFUSED, refused)]


def _passes(text: str, facts: dict[str, Any]) -> bool:
    try:
        return cel.truth(text, facts)
    except (cel.Unsound, RuntimeError):
        return False
