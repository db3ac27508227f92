"""Where the workload's rules let it be: region, residency, zone and pool (S4)."""

from __future__ import annotations

import numpy as np

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.model import placement_eligibility as eligibility
from holdfast.model.reasons import Reason


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    snapshot, rules = scratch.snapshot, ask.placement
    static = snapshot.static
    here = eligibility.allows_region(rules, snapshot.region)
    if not here or not eligibility.satisfies_residency(rules, snapshot.residency):
        return [(Reason.RESIDENCY_VIOLATED, np.ones(len(static.live), dtype=np.bool_))]
    refusals: list[Refusal] = []
    if rules.zones:
        refused = static.zone.where(lambda zone: not eligibility.allows_zone(rules, zone))
        refusals.append((Reason.ZONE_NOT_ALLOWED, refused))
    if rules.pools:
        refused = static.pool.where(lambda pool: not eligibility.allows_pool(rules, pool))
        refusals.append((Reason.POOL_NOT_ALLOWED, refused))
    return refusals
