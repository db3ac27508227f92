"""Requires free fixed ports, and enough free dynamic ports in the node's range."""

from __future__ import annotations

import numpy as np

from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    refusals: list[Refusal] = []
    if requirements.fixed_ports:
        fixed_ports_needed = frozenset(requirements.fixed_ports)
        refused = np.array(
            [not fixed_ports_needed.isdisjoint(in_use) for in_use in scratch.snapshot.ports], dtype=np.bool_
        )
        for slot, in_use in scratch.changed_ports().items():
            refused[slot] = not fixed_ports_needed.isdisjoint(in_use)
        refusals.append((Reason.PORT_IN_USE, refused))
    if requirements.open_ports:
        refusals.append((Reason.PORTS_EXHAUSTED, scratch.ports_free < requirements.open_ports))
    return refusals
