"""Time of the region's last contact with the global cell, and which overrides are still effective given its age."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import input_freshness
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.override import Override, OverrideKind, is_in_force
from holdfast.model.times import parse_time

PERMISSIVE_KINDS = frozenset({OverrideKind.APPROVE_REPAIR})
"""Kinds that allow a region more than usual. They end when contact is lost for too long. RaisePriority is not listed:
the grant that pays for the work bounds its effect."""


def last_contact_s(copies: Iterable[GrantCopy]) -> float:
    """Time of the newest contact recorded in any GrantCopy; infinite if there is none."""
    contacts = [parse_time(c.spec.last_contact_at) for c in copies if c.spec.last_contact_at]
    return max(contacts, default=float("inf"))


def is_effective_here(override: Override, now: float, heard_at_s: float) -> bool:
    """Whether the override is effective in this region now. A permissive override needs recent contact with the
    global cell, unless it is a break-glass override of this region."""
    if not is_in_force(override, now):
        return False
    is_break_glass = override.spec.break_glass is not None
    return (
        is_break_glass
        or override.spec.kind not in PERMISSIVE_KINDS
        or now - heard_at_s <= input_freshness.OVERRIDE.seconds
    )
