"""Applies the workload's placement rules: region, residency, zone and pool (S4)."""

from __future__ import annotations

import numpy as np

from holdfast.model import placement_eligibility as eligibility
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    snapshot, rules = scratch.snapshot, requirements.placement
    static = snapshot.static
    here = eligibility.allows_region(rules, snapshot.region)
    if not here or not eligibility.satisfies_residency(rules, snapshot.residency):
        return [(Reason.RESIDENCY_VIOLATED, np.ones(len(static.has_node), dtype=np.bool_))]
    refusals: list[Refusal] = []
    if rules.zones:
        refused = static.zone.where(lambda zone: not eligibility.allows_zone(rules, zone))
        refusals.append((Reason.ZONE_NOT_ALLOWED, refused))
    if rules.pools:
        refused = static.pool.where(lambda pool: not eligibility.allows_pool(rules, pool))
        refusals.append((Reason.POOL_NOT_ALLOWED, refused))
    return refusals
