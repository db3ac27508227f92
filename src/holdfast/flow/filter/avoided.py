"""Whether an active override keeps new work away from the node's zone, or from the whole region."""

from __future__ import annotations

import numpy as np

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.model.override import OverrideKind
from holdfast.model.reasons import Reason


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    static = scratch.snapshot.static
    avoidances = scratch.avoidances(ask)
    if any(o.spec.kind is OverrideKind.AVOID_REGION for o in avoidances):
        return [(Reason.NODE_AVOIDED, np.ones(len(static.live), dtype=np.bool_))]
    zones = {o.spec.scope.zone for o in avoidances}
    if not zones:
        return []
    return [(Reason.NODE_AVOIDED, static.zone.where(lambda zone: zone in zones))]
