"""Prefers cheap nodes. The price is the label `holdfast.dev/cost`, an integer in one unit for all nodes.

The cheapest node scores 100, a node at twice its price 50, a node without a price 50.
"""

from __future__ import annotations

import numpy as np

from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts

COST_LABEL = "holdfast.dev/cost"
_UNKNOWN = 50
_MAX_PRICE = 10**12


def score(candidate: CandidateState) -> Counts:
    return candidate.cached_for_request("cost", _score)


def _score(candidate: CandidateState) -> Counts:
    static = candidate.scratch.snapshot.static
    column = static.labels.get(COST_LABEL)
    if column is None:
        return np.full(len(static.has_node), _UNKNOWN, dtype=np.int64)
    prices = column.numbers(_price)
    known = prices[static.has_node & (prices > 0)]
    if not known.size:
        return np.full(len(static.has_node), _UNKNOWN, dtype=np.int64)
    return np.where(prices > 0, int(known.min()) * 100 // np.maximum(prices, 1), _UNKNOWN)


def _price(text: str | None) -> int:
    """The price; 0 if the label is missing or not a positive integer."""
    return min(int(text), _MAX_PRICE) if text and len(text) < 16 and text.isascii() and text.isdigit() else 0
