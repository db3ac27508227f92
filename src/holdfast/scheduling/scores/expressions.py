"""Score expressions of the policy: 0 to 100 per node; 0 if the expression has no valid value for the node."""

from __future__ import annotations

import numpy as np

from holdfast.scheduling import policy_expressions
from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts


def score(candidate: CandidateState, text: str) -> Counts:
    return candidate.cached_for_request(f"expression {text}", lambda current: _scores(current, text))


def _scores(candidate: CandidateState, text: str) -> Counts:
    """Scores of all slots; cached while no node changes, because they depend only on nodes and requirements."""
    snapshot, requirements = candidate.scratch.snapshot, candidate.requirements
    key = ("score expression", text, policy_expressions.requirements_key(requirements))
    found = snapshot.static.memo.get(key)
    if found is None:
        request = policy_expressions.request_facts(requirements)
        values: Counts = np.zeros(len(snapshot.static.has_node), dtype=np.int64)
        for slot, node in enumerate(snapshot.static.nodes):
            if node is None:
                continue
            try:
                values[slot] = policy_expressions.evaluate_score(
                    text, {"node": policy_expressions.node_facts(node), "request": request}
                )
            except (policy_expressions.EvaluationFailed, RuntimeError):
                values[slot] = 0
        found = snapshot.memoize(key, values)
    scores: Counts = found
    return scores
