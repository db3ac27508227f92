"""Affinity and anti-affinity to the tenant's replicas, matched by template labels.

Anti-affinity is symmetric: a placed replica with such a rule also keeps later replicas off. Replicas of the same
workload count only for rules with `ownReplicas`; then each placement changes the refusals of the next replica.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from holdfast.model.placement_eligibility import is_kept_apart, is_neighbour, may_be_first
from holdfast.model.placement_rules import AffinityRule, required_affinity
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    refusals: list[Refusal] = []
    for rule in requirements.placement.affinity:
        if rule.preferred:
            continue
        if rule.apart:
            refusals.append((Reason.ANTI_AFFINITY_VIOLATED, near_nodes(scratch, requirements, rule)))
        else:
            refusals.append(_far_nodes(scratch, requirements, rule))
    guarded = anti_affinity_nodes(scratch, requirements)
    if guarded is not None:
        refusals.append((Reason.ANTI_AFFINITY_VIOLATED, guarded))
    return refusals


def refuse_far(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    """The refusals that no eviction resolves: a required neighbour is missing."""
    rules = required_affinity(requirements.placement)
    return [_far_nodes(scratch, requirements, rule) for rule in rules]


def _far_nodes(scratch: Scratch, requirements: ReplicaRequirements, rule: AffinityRule) -> Refusal:
    near = near_nodes(scratch, requirements, rule)
    if may_be_first(rule, requirements.workload, requirements.labels):
        near |= _first_nodes(scratch, requirements, rule)
    return Reason.AFFINITY_NOT_MET, ~near


def anti_affinity_nodes(scratch: Scratch, requirements: ReplicaRequirements) -> Bools | None:
    """Nodes where placed work has anti-affinity against these labels; None if there are none."""
    refused: Bools | None = None
    for guard, slots in scratch.guards(requirements.namespace):
        if not is_kept_apart(guard.workload, guard.selector, requirements.workload, requirements.labels):
            continue
        there = _in_domains(scratch, slots, guard.topology)
        refused = there if refused is None else refused | there
    return refused


def near_nodes(scratch: Scratch, requirements: ReplicaRequirements, rule: AffinityRule) -> Bools:
    """Nodes with a matching replica in the same domain of the rule's topology.

    A replica that leaves (it stops, or is a victim) still keeps others apart, but nothing may rely on being near it.
    """
    if not rule.apart:
        return _in_domains(scratch, staying_neighbours(scratch, requirements, rule), rule.topology)
    return _in_domains(scratch, kept_apart(scratch, requirements, rule), rule.topology)


def kept_apart(scratch: Scratch, requirements: ReplicaRequirements, rule: AffinityRule) -> dict[int, int]:
    """Matching replicas per slot, also those that are stopping."""
    found: dict[int, int] = {}
    for workload, labels, counts in (
        *scratch.groups(requirements.namespace),
        *scratch.stopping_groups(requirements.namespace),
    ):
        if is_neighbour(rule, requirements.workload, workload, labels):
            for slot, count in counts.items():
                found[slot] = found.get(slot, 0) + count
    return found


def _first_nodes(scratch: Scratch, requirements: ReplicaRequirements, rule: AffinityRule) -> Bools:
    """Nodes whose domain has every matching replica that does not leave: all with a domain if there is none."""
    existing = matching_replicas(scratch, requirements, rule)
    if not existing:
        everywhere: Bools = scratch.snapshot.domain_ids(rule.topology) >= 0
        return everywhere
    domain = _in_domains(scratch, existing[:1], rule.topology)
    return domain if domain[existing].all() else np.zeros_like(domain)


def _in_domains(scratch: Scratch, slots: Collection[int], topology: str) -> Bools:
    """Nodes in the same domain as one of these. A node without a domain is near none, not even itself."""
    there: Bools = np.zeros(len(scratch.snapshot.static.has_node), dtype=np.bool_)
    there[list(slots)] = True
    if topology != "node":
        ids = scratch.snapshot.domain_ids(topology)
        there = np.isin(ids, ids[there]) & (ids >= 0)
    return there


def staying_neighbours(scratch: Scratch, requirements: ReplicaRequirements, rule: AffinityRule) -> dict[int, int]:
    """Matching replicas per slot, without those that are stopping, are victims, or wait for victims."""
    return _matching(scratch, requirements, rule, nominated=False)


def matching_replicas(scratch: Scratch, requirements: ReplicaRequirements, rule: AffinityRule) -> list[int]:
    """Slots with matching replicas, without those that are stopping or are victims."""
    return list(_matching(scratch, requirements, rule, nominated=True))


def _matching(
    scratch: Scratch, requirements: ReplicaRequirements, rule: AffinityRule, *, nominated: bool
) -> dict[int, int]:
    found: dict[int, int] = {}
    for workload, labels, counts in scratch.groups(requirements.namespace):
        if is_neighbour(rule, requirements.workload, workload, labels):
            for slot, count in counts.items():
                found[slot] = found.get(slot, 0) + count
    if found:
        for slot, workload, labels in scratch.unreliable_neighbours(requirements.namespace, nominated=not nominated):
            if slot in found and is_neighbour(rule, requirements.workload, workload, labels):
                found[slot] -= 1
                if not found[slot]:
                    del found[slot]
    return found
