"""Filter expressions of the policy: a node must pass all of them; an evaluation error refuses the node."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.scheduling import policy_expressions
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools


def key(requirements: ReplicaRequirements, rules: PolicyRules) -> tuple[Any, ...]:
    """Cache key of the result, besides the nodes; empty for a policy without expressions."""
    return (
        (rules.filter_expressions, policy_expressions.requirements_key(requirements))
        if rules.filter_expressions
        else ()
    )


def refuse(scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules) -> list[Refusal]:
    static = scratch.snapshot.static
    refused: Bools = np.zeros(len(static.has_node), dtype=np.bool_)
    request = policy_expressions.request_facts(requirements)
    for slot, node in enumerate(static.nodes):
        if node is None:
            continue
        facts = {"node": policy_expressions.node_facts(node), "request": request}
        refused[slot] = not all(policy_expressions.passes_filter(e.expression, facts) for e in rules.filter_expressions)
    return [(Reason.EXPRESSION_REFUSED, refused)]
