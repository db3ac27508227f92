"""Requires the node that holds the replica's persistent volumes. A replica whose volumes do not exist yet is free.

If that node takes no work, every node is refused with VolumeNodeLost: the replica waits for the node.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.reasons import Reason
from holdfast.model.volume import HeldVolume, volume_refusal
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch
from holdfast.scheduling.snapshot import Snapshot


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    found: list[Refusal] = []
    snapshot = scratch.snapshot
    every = snapshot.static.has_node
    for held in requirements.held_volumes:
        if node_problem(snapshot, held):
            found.append((Reason.VOLUME_NODE_LOST, every))
            continue
        refused = {reason: np.zeros(len(every), dtype=np.bool_) for reason in (Reason.VOLUME_TERMINATING, _ELSEWHERE)}
        for name, slot in snapshot.slots.items():
            reason = volume_refusal(name, held.node, terminating=held.terminating)
            if reason is not None:
                refused[reason][slot] = True
        found += list(refused.items())
    return found


_ELSEWHERE = Reason.VOLUME_ON_OTHER_NODE


def node_problem(snapshot: Snapshot, held: HeldVolume) -> str:
    """Why the node that holds the volume takes no work; empty if it does."""
    slot = snapshot.slots.get(held.node)
    return Reason.NODE_NOT_FOUND.value if slot is None else snapshot.static.unschedulable_reason.at(slot)


def volumes_text(snapshot: Snapshot, requirements: ReplicaRequirements) -> str:
    """Which volumes are where, and why their node takes no work."""
    parts = []
    for held in requirements.held_volumes:
        problem = node_problem(snapshot, held)
        state = f", which takes no work ({problem})" if problem else ""
        parts.append(f"volume {held.name} is on node {held.node}{state}")
    return "; ".join(parts)
