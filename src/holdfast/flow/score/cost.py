"""Prefers cheap nodes. The price is the label `holdfast.dev/cost`, a whole number in any unit, the same for all nodes.

The cheapest node known gets 100, one at twice its price 50; a node without a price is in the middle.
"""

from __future__ import annotations

import numpy as np

from holdfast.flow.score.standing import Standing
from holdfast.flow.snapshot import Counts

COST_LABEL = "holdfast.dev/cost"
_UNKNOWN = 50
_MAX_PRICE = 10**12


def score(at: Standing) -> Counts:
    return at.once("cost", _score)


def _score(at: Standing) -> Counts:
    static = at.scratch.snapshot.static
    column = static.labels.get(COST_LABEL)
    if column is None:
        return np.full(len(static.live), _UNKNOWN, dtype=np.int64)
    prices = column.numbers(_price)
    known = prices[static.live & (prices > 0)]
    if not known.size:
        return np.full(len(static.live), _UNKNOWN, dtype=np.int64)
    return np.where(prices > 0, int(known.min()) * 100 // np.maximum(prices, 1), _UNKNOWN)


def _price(text: str | None) -> int:
    """0 for none, or for one that is not a whole number above zero."""
    return min(int(text), _MAX_PRICE) if text and len(text) < 16 and text.isascii() and text.isdigit() else 0
