"""Whether an active override keeps new work away from the node's zone, or from the whole region."""

from __future__ import annotations

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.model.reasons import Reason


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    if not scratch.avoidances(ask):
        return []
    zones = scratch.snapshot.static.zone
    return [(Reason.NODE_AVOIDED, zones.where(lambda zone: scratch.avoidance_of(ask, zone) is not None))]
