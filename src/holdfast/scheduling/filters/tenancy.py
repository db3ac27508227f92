"""Dedicated tenants run on their own nodes only, and nobody else runs there (S4)."""

from __future__ import annotations

from holdfast.model import placement_eligibility as eligibility
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, ask: ReplicaRequirements) -> list[Refusal]:
    who, dedicated = ask.namespace, ask.dedicated
    owners = scratch.snapshot.static.tenant
    refused = owners.where(lambda owner: not eligibility.can_use_node(who, owner, dedicated=dedicated))
    return [(Reason.TENANCY_VIOLATED, refused)]
