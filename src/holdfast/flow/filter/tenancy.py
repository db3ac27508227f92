"""Dedicated tenants run on their own nodes only, and nobody else runs there (S4)."""

from __future__ import annotations

from holdfast.flow.ask import Ask
from holdfast.flow.filter.refusal import Refusal
from holdfast.flow.scratch import Scratch
from holdfast.model.reasons import Reason


def refuse(scratch: Scratch, ask: Ask) -> list[Refusal]:
    wanted = ask.namespace if ask.dedicated else ""
    tenant = scratch.snapshot.static.tenant
    return [(Reason.TENANCY_VIOLATED, tenant.where(lambda owner: owner != wanted))]
