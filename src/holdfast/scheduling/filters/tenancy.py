"""Tenant isolation: a dedicated tenant uses only its own nodes, and no other tenant uses those (S4)."""

from __future__ import annotations

from holdfast.model import placement_eligibility as eligibility
from holdfast.model.reasons import Reason
from holdfast.scheduling.filters.refusal import Refusal
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.scratch import Scratch


def refuse(scratch: Scratch, requirements: ReplicaRequirements) -> list[Refusal]:
    who, dedicated = requirements.namespace, requirements.dedicated
    owners = scratch.snapshot.static.tenant
    refused = owners.where(lambda owner: not eligibility.can_use_node(who, owner, dedicated=dedicated))
    return [(Reason.TENANCY_VIOLATED, refused)]
