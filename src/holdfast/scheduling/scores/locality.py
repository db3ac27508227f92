"""Applies preferred affinity rules: near some of the tenant's workloads, apart from others."""

from __future__ import annotations

import numpy as np

from holdfast.scheduling.filters.affinity import near_nodes
from holdfast.scheduling.scores.candidate import CandidateState
from holdfast.scheduling.snapshot import Counts


def score(candidate: CandidateState) -> Counts:
    return candidate.cached_for_request("locality", _score)


def _score(candidate: CandidateState) -> Counts:
    rules = [rule for rule in candidate.requirements.placement.affinity if rule.preferred]
    met: Counts = np.zeros(len(candidate.scratch.snapshot.static.has_node), dtype=np.int64)
    for rule in rules:
        near = near_nodes(candidate.scratch, candidate.requirements, rule)
        met += ~near if rule.apart else near
    return met * 100 // max(len(rules), 1)
