"""Whether fixed ports are free on the node, and enough others are left in its range."""

from __future__ import annotations

import numpy as np

from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, ask: ReplicaRequirements) -> list[Refusal]:
    refusals: list[Refusal] = []
    if ask.fixed_ports:
        wanted = frozenset(ask.fixed_ports)
        taken = np.array([not wanted.isdisjoint(there) for there in scratch.snapshot.ports], dtype=np.bool_)
        for slot, there in scratch.changed_ports().items():
            taken[slot] = not wanted.isdisjoint(there)
        refusals.append((Reason.PORT_IN_USE, taken))
    if ask.open_ports:
        refusals.append((Reason.PORTS_EXHAUSTED, scratch.ports_free < ask.open_ports))
    return refusals
