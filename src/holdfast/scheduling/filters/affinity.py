"""Affinity and anti-affinity to the tenant's other workloads, matched by template labels.

Anti-affinity is symmetric: a placed replica with such a rule also keeps later replicas off. Replicas of the same
workload never count; spread rules keep those apart.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.placement_rules import AffinityRule
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
        near = near_nodes(scratch, requirements, rule)
        reason = Reason.ANTI_AFFINITY_VIOLATED if rule.apart else Reason.AFFINITY_NOT_MET
        refusals.append((reason, near if rule.apart else ~near))
    guarded = anti_affinity_nodes(scratch, requirements)
    if guarded is not None:
        refusals.append((Reason.ANTI_AFFINITY_VIOLATED, guarded))
    return refusals


def anti_affinity_nodes(scratch: Scratch, requirements: ReplicaRequirements) -> Bools | None:
    """Nodes where placed work has anti-affinity against these labels; None if there are none."""
    carried = frozenset(requirements.labels)
    refused: Bools | None = None
    for guard, slots in scratch.guards(requirements.namespace):
        if guard.workload == requirements.workload or not carried.issuperset(guard.labels):
            continue
        there: Bools = np.zeros(len(scratch.snapshot.static.has_node), dtype=np.bool_)
        there[slots] = True
        if guard.topology == "zone":
            zones = scratch.snapshot.static.zone.ids
            there = np.isin(zones, zones[there])
        refused = there if refused is None else refused | there
    return refused


def near_nodes(scratch: Scratch, requirements: ReplicaRequirements, rule: AffinityRule) -> Bools:
    """Nodes with a matching replica, or, for topology zone, in a zone with one."""
    rule_labels = rule.workload_labels.items()
    near: Bools = np.zeros(len(scratch.snapshot.static.has_node), dtype=np.bool_)
    for workload, labels, counts in scratch.groups(requirements.namespace):
        if workload != requirements.workload and rule_labels <= dict(labels).items():
            near[list(counts)] = True
    if rule.topology == "zone":
        zones = scratch.snapshot.static.zone.ids
        near = np.isin(zones, zones[near])
    return near
