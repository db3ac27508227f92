"""Applies preferred affinity rules: near some of the tenant's workloads, apart from others."""

from __future__ import annotations

import numpy as np

from holdfast.flow.filter.affinity import near_nodes
from holdfast.flow.score.standing import Standing
from holdfast.flow.snapshot import Counts


def score(at: Standing) -> Counts:
    return at.once("locality", _score)


def _score(at: Standing) -> Counts:
    rules = [rule for rule in at.ask.placement.affinity if rule.preferred]
    met: Counts = np.zeros(len(at.scratch.snapshot.static.live), dtype=np.int64)
    for rule in rules:
        near = near_nodes(at.scratch, at.ask, rule)
        met += ~near if rule.apart else near
    return met * 100 // max(len(rules), 1)
