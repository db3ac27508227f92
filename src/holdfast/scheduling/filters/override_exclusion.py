"""Whether an active override keeps new work away from the node's zone, or from the whole region."""

from __future__ import annotations

from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, ask: ReplicaRequirements) -> list[Refusal]:
    if not scratch.avoidances(ask):
        return []
    zones = scratch.snapshot.static.zone
    return [(Reason.NODE_EXCLUDED_BY_OVERRIDE, zones.where(lambda zone: scratch.avoidance_of(ask, zone) is not None))]
