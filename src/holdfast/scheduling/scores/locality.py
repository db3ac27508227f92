"""Applies preferred affinity rules: near some of the tenant's workloads, apart from others."""

from __future__ import annotations

import numpy as np

from holdfast.scheduling.filters.affinity import near_nodes
from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts


def score(at: CandidateState) -> Counts:
    return at.cached_for_request("locality", _score)


def _score(at: CandidateState) -> Counts:
    rules = [rule for rule in at.requirements.placement.affinity if rule.preferred]
    met: Counts = np.zeros(len(at.scratch.snapshot.static.has_node), dtype=np.int64)
    for rule in rules:
        near = near_nodes(at.scratch, at.requirements, rule)
        met += ~near if rule.apart else near
    return met * 100 // max(len(rules), 1)
