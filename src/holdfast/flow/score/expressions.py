"""Score expressions of the policy: 0 to 100 per node; 0 if the expression has no valid value for the node."""

from __future__ import annotations

import numpy as np

from holdfast.flow import cel
from holdfast.flow.score.standing import Standing
from holdfast.flow.snapshot import Counts


def score(at: Standing, text: str) -> Counts:
    return at.once(f"expression {text}", lambda standing: _scores(standing, text))


def _scores(at: Standing, text: str) -> Counts:
    """Scores of all slots; cached while no node changes, because they depend only on nodes and requirements."""
    snapshot, ask = at.scratch.snapshot, at.ask
    key = ("score expression", text, cel.ask_key(ask))
    found = snapshot.static.memo.get(key)
    if found is None:
        request = cel.request_facts(ask)
        values: Counts = np.zeros(len(snapshot.static.live), dtype=np.int64)
        for slot, node in enumerate(snapshot.static.nodes):
            if node is None:
                continue
            try:
                values[slot] = cel.number(text, {"node": cel.node_facts(node), "request": request})
            except (cel.Unsound, RuntimeError):
                values[slot] = 0
        found = snapshot.remember(key, values)
    scores: Counts = found
    return scores
