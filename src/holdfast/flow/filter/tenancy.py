"""Dedicated tenants run on their own nodes only, and nobody else runs there (S4)."""

from __future__ import annotations

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.model import placement_eligibility as eligibility
from holdfast.model.reasons import Reason


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    who, dedicated = ask.namespace, ask.dedicated
    owners = scratch.snapshot.static.tenant
    refused = owners.where(lambda owner: not eligibility.can_use_node(who, owner, dedicated=dedicated))
    return [(Reason.TENANCY_VIOLATED, refused)]
