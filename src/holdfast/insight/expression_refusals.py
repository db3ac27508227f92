"""Names the filter expressions that refuse nodes, and tells an expression that fails from one that is false. Pure.

Decisions record only the reason `ExpressionRefused`. The text is made when it is shown, so that it changes no replay.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.scheduler_policy import PolicyRules
from holdfast.scheduling import policy_expressions
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.snapshot import Snapshot


def expression_refusal_text(
    snapshot: Snapshot, requirements: ReplicaRequirements, rules: PolicyRules, slots: Iterable[int], policy: str = ""
) -> str:
    """The expressions that refuse any of these nodes; empty if there is none. `policy` is the revision, if known."""
    request = policy_expressions.request_facts(requirements)
    false: dict[str, None] = {}
    failing: dict[str, str] = {}
    for slot in slots:
        node = snapshot.static.nodes[slot]
        if node is None:
            continue
        facts = {"node": policy_expressions.node_facts(node), "request": request}
        for item in rules.filter_expressions:
            error = policy_expressions.filter_failure(item.expression, facts)
            if error:
                failing.setdefault(item.name, f"fails on node {snapshot.name(slot)} ({error})")
            elif not policy_expressions.passes_filter(item.expression, facts):
                false[item.name] = None
    of = f"of policy revision {policy}" if policy else "of the policy"
    return "; ".join(
        [f"filter expression {name} {of} is false" for name in false]
        + [f"filter expression {name} {of} {how}" for name, how in failing.items()]
    )
