"""Where the workload's rules let it be: region, residency, zone and pool (S4)."""

from __future__ import annotations

import numpy as np

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.flow.snapshot import Snapshot
from holdfast.model.placement_rules import Placement
from holdfast.model.reasons import Reason


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    snapshot, rules = scratch.snapshot, ask.placement
    static = snapshot.static
    if not region_allowed(rules, snapshot):
        return [(Reason.RESIDENCY_VIOLATED, np.ones(len(static.live), dtype=np.bool_))]
    refusals: list[Refusal] = []
    if rules.zones:
        refusals.append((Reason.ZONE_NOT_ALLOWED, static.zone.where(lambda zone: zone not in rules.zones)))
    if rules.pools:
        refusals.append((Reason.POOL_NOT_ALLOWED, static.pool.where(lambda pool: pool not in rules.pools)))
    return refusals


def region_allowed(rules: Placement, snapshot: Snapshot) -> bool:
    """An unknown residency of this region satisfies no rule: of two views, the stricter decides."""
    if rules.regions and snapshot.region not in rules.regions:
        return False
    if snapshot.region in rules.excluded_regions:
        return False
    return not rules.residency or any(tag in rules.residency for tag in snapshot.residency or ())
