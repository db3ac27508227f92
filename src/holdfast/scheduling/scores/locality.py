"""Applies the workload's preferences: preferred affinity rules, and preferred nodes by their labels."""

from __future__ import annotations

import numpy as np

from holdfast.scheduling.filters.affinity import near_nodes
from holdfast.scheduling.filters.labels import matching_all
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
    nodes = candidate.requirements.placement.preferred_nodes
    for preference in nodes:
        met += matching_all(candidate.scratch.snapshot, preference.expressions) * preference.weight
    return met * 100 // max(len(rules) + sum(preference.weight for preference in nodes), 1)
