"""Anti-affinity and spread as obstacles that the eviction of lower-priority claims may remove. Pure.

- An obstacle is a number per node of replicas that must leave it, and the claims that count. A replica that keeps the
  preemptor off must leave whoever has the rule; of the workload's own replicas as many as the hard spread exceeds.
- All victims are on the node itself. A replica elsewhere in the zone, or one that is stopping, is never removed: the
  obstacle stays until it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from holdfast.model.placement_eligibility import is_kept_apart, is_neighbour, selector_of
from holdfast.model.placement_rules import AffinityRule, required_anti_affinity
from holdfast.model.scheduler_policy import FilterName, PolicyRules
from holdfast.scheduling.filters.affinity import kept_apart
from holdfast.scheduling.filters.spread import Skew
from holdfast.scheduling.plan.victim_selection import Victim
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools, Counts, SnapshotClaim
from holdfast.scheduling.snapshot.frozen import AntiAffinityGuard


class Obstacle(NamedTuple):
    """`needs` [slot]: claims that must leave the node. `gives` [candidate]: whether the candidate is one of them."""

    needs: Counts
    gives: Bools


class CandidateIndex:
    """Possible victims by workload, built on first use."""

    def __init__(self, candidates: Sequence[Victim]) -> None:
        self._candidates = candidates
        self._by_workload: dict[tuple[str, str], list[int]] | None = None

    def select(self, namespace: str, workload: str | None, counts: Callable[[SnapshotClaim], bool]) -> Bools:
        """[candidate]: those of the tenant, and of the workload if it is given, that `counts` accepts."""
        if self._by_workload is None:
            self._by_workload = {}
            for index, victim in enumerate(self._candidates):
                key = (victim.claim.namespace, victim.claim.workload)
                self._by_workload.setdefault(key, []).append(index)
        found: Bools = np.zeros(len(self._candidates), dtype=np.bool_)
        keys = [(namespace, workload)] if workload is not None else [k for k in self._by_workload if k[0] == namespace]
        for key in keys:
            chosen = [i for i in self._by_workload.get(key, ()) if counts(self._candidates[i].claim)]
            found[chosen] = True
        return found


def obstacles(
    scratch: Scratch, requirements: ReplicaRequirements, rules: PolicyRules, skew: Skew, index: CandidateIndex
) -> list[Obstacle]:
    """The obstacles of the request's next replica; empty if no rule keeps it off any node."""
    found: list[Obstacle] = []
    if FilterName.AFFINITY in rules.filters:
        found += _anti_affinity(scratch, requirements, index)
    if skew.limited:
        needs = skew.excess()
        if needs.max(initial=0) > 0:
            own = index.select(requirements.namespace, requirements.workload, lambda _: True)
            found.append(Obstacle(needs, own))
    return found


def _anti_affinity(scratch: Scratch, requirements: ReplicaRequirements, index: CandidateIndex) -> Iterator[Obstacle]:
    namespace, own, labels = requirements.namespace, requirements.workload, requirements.labels
    for rule in required_anti_affinity(requirements.placement) if requirements.placement.affinity else ():
        there = kept_apart(scratch, requirements, rule)
        if there:
            gives = index.select(namespace, None, partial(_is_about, rule, own))
            yield Obstacle(_by_domain(scratch, there, rule.topology), gives)
    for guard, slots in scratch.guards(namespace):
        if slots and is_kept_apart(guard.workload, guard.selector, own, labels):
            gives = index.select(namespace, guard.workload, partial(_has_guard, guard))
            yield Obstacle(_by_domain(scratch, slots, guard.topology), gives)


def _is_about(rule: AffinityRule, workload: str, claim: SnapshotClaim) -> bool:
    return is_neighbour(rule, workload, claim.workload, claim.labels)


def _has_guard(guard: AntiAffinityGuard, claim: SnapshotClaim) -> bool:
    return any(rule.topology == guard.topology and selector_of(rule) == guard.selector for rule in claim.anti_affinity)


def _by_domain(scratch: Scratch, there: Mapping[int, int], topology: str) -> Counts:
    """[slot]: number of these replicas in the slot's domain."""
    counts: Counts = np.zeros(len(scratch.snapshot.static.has_node), dtype=np.int64)
    counts[list(there)] = list(there.values())
    if topology == "node":
        return counts
    ids = scratch.snapshot.domain_ids(topology)
    by_domain: Counts = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
    np.add.at(by_domain, ids[ids >= 0], counts[ids >= 0])
    return np.where(ids >= 0, by_domain[ids], 0)
