"""Requires free fixed ports, and enough free dynamic ports in the node's range beside the fixed ones."""

from __future__ import annotations

import numpy as np

from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Counts
from holdfast.scheduling.snapshot.claim import ports_in_range


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    refusals: list[Refusal] = []
    if requirements.fixed_ports:
        fixed_ports_needed = frozenset(requirements.fixed_ports)
        refused = np.array(
            [not fixed_ports_needed.isdisjoint(in_use) for in_use in scratch.snapshot.ports], dtype=np.bool_
        )
        for slot in scratch.slots_with_taken_ports():
            refused[slot] = not scratch.fixed_ports_free(fixed_ports_needed, slot)
        refusals.append((Reason.PORT_IN_USE, refused))
    if requirements.open_ports:
        needed = requirements.open_ports + _fixed_ports_in_range(scratch, requirements)
        refusals.append((Reason.PORTS_EXHAUSTED, scratch.ports_free < needed))
    return refusals


def _fixed_ports_in_range(scratch: Scratch, requirements: ReplicaRequirements) -> Counts | int:
    """Per slot: fixed ports of the request that lie in the node's range and so are not free for its dynamic ports."""
    if not requirements.fixed_ports:
        return 0
    snapshot = scratch.snapshot
    key = ("fixed ports in range", requirements.fixed_ports)
    found = snapshot.static.memo.get(key)
    if found is None:
        counts = [ports_in_range(node, requirements.fixed_ports) for node in snapshot.static.nodes]
        found = snapshot.memoize(key, np.array(counts, dtype=np.int64))
    in_range: Counts = found
    return in_range
