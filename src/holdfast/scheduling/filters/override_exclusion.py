"""Excludes nodes that an active AvoidZone or AvoidRegion override forbids, also that of planned maintenance."""

from __future__ import annotations

from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    found = scratch.avoidances(requirements)
    if not found:
        return []
    zones, slots = scratch.snapshot.static.zone, scratch.snapshot.slots
    refused = zones.where(lambda zone: scratch.avoidance_of(requirements, zone) is not None)
    for node in (name for o in found if o.spec.maintenance is not None for name in o.spec.maintenance.nodes):
        slot = slots.get(node)
        if slot is not None and scratch.avoidance_of(requirements, zones.at(slot), node) is not None:
            refused[slot] = True
    return [(Reason.NODE_EXCLUDED_BY_OVERRIDE, refused)]
