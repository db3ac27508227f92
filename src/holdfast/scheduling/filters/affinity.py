"""Near, or not near, replicas of the tenant's other workloads, found by their template's labels.

Keeping apart works both ways: work that was placed with such a rule keeps later work off as well. A workload's own
replicas never count here: how they keep apart is a spread rule.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.placement_rules import AffinityRule
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Bools


def refuse(scratch: Scratch, ask: ReplicaRequirements) -> list[Refusal]:
    refusals: list[Refusal] = []
    for rule in ask.placement.affinity:
        if rule.preferred:
            continue
        near = near_nodes(scratch, ask, rule)
        reason = Reason.ANTI_AFFINITY_VIOLATED if rule.apart else Reason.AFFINITY_NOT_MET
        refusals.append((reason, near if rule.apart else ~near))
    guarded = anti_affinity_nodes(scratch, ask)
    if guarded is not None:
        refusals.append((Reason.ANTI_AFFINITY_VIOLATED, guarded))
    return refusals


def anti_affinity_nodes(scratch: Scratch, ask: ReplicaRequirements) -> Bools | None:
    """Nodes on which placed work keeps work with these labels off; None when there are none."""
    carried = frozenset(ask.labels)
    refused: Bools | None = None
    for guard, slots in scratch.guards(ask.namespace):
        if guard.workload == ask.workload or not carried.issuperset(guard.labels):
            continue
        there: Bools = np.zeros(len(scratch.snapshot.static.has_node), dtype=np.bool_)
        there[slots] = True
        if guard.topology == "zone":
            zones = scratch.snapshot.static.zone.ids
            there = np.isin(zones, zones[there])
        refused = there if refused is None else refused | there
    return refused


def near_nodes(scratch: Scratch, ask: ReplicaRequirements, rule: AffinityRule) -> Bools:
    """Nodes with a matching replica on them, or, by zone, in the same zone as one."""
    wanted = rule.workload_labels.items()
    near: Bools = np.zeros(len(scratch.snapshot.static.has_node), dtype=np.bool_)
    for workload, labels, counts in scratch.groups(ask.namespace):
        if workload != ask.workload and wanted <= dict(labels).items():
            near[list(counts)] = True
    if rule.topology == "zone":
        zones = scratch.snapshot.static.zone.ids
        near = np.isin(zones, zones[near])
    return near
