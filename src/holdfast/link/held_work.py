"""The report of held work: the condition `HoldsWork` of the region's copy of its Region object. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.link import deletion_orders, recognition
from holdfast.model.assignment import Assignment
from holdfast.model.meta import Condition, find_condition, with_condition
from holdfast.model.reasons import Reason
from holdfast.model.region import HOLDS_WORK, Region
from holdfast.model.times import micro_text
from holdfast.model.view import View
from holdfast.model.writes import Update


class Holding(msgspec.Struct, frozen=True):
    """Why the region holds work, and how many workloads."""

    reason: Reason
    message: str
    workloads: int


def holding(there: View, here: View, region: str, *, paused: bool) -> Holding | None:
    """The work that the region holds while it follows the global cell."""
    held = deletion_orders.held_assignments(there, here)
    if held:
        what = "the global cell does not contain, or only in an older state, and whose deletion was not ordered"
        return _holding(Reason.DELETION_NOT_ORDERED, region, held, what)
    removed = deletion_orders.paused_removals(there, here) if paused else []
    if removed:
        what = "are to be removed, after more than half of the region's workloads within a few minutes"
        return _holding(Reason.MASS_DELETION_PAUSED, region, removed, what)
    return None


def _holding(reason: Reason, region: str, held: Sequence[Assignment], what: str) -> Holding:
    names = deletion_orders.held_text(held)
    message = (
        f"region {region} keeps {len(held)} workload(s) that {what}: {names}; next: restore the records of the "
        f"global cell, or confirm the deletion: {recognition.confirm_command(region)}"
    )
    return Holding(reason, message, len(held))


def was_paused(own: Region | None) -> bool:
    """Whether removals were paused when the condition was last written."""
    known = find_condition(own.status.conditions, HOLDS_WORK) if own is not None else None
    return known is not None and known.status == "True" and known.reason == Reason.MASS_DELETION_PAUSED


def condition_write(own: Region, found: Holding | None, now: float) -> Update | None:
    """The write of the condition, if it changed. A region that never held anything has none."""
    if found is None and find_condition(own.status.conditions, HOLDS_WORK) is None:
        return None
    wanted = Condition(
        type=HOLDS_WORK,
        status="True" if found is not None else "False",
        reason=found.reason if found is not None else Reason.NOTHING_HELD,
        message=found.message if found is not None else "",
    )
    conditions = with_condition(own.status.conditions, wanted, micro_text(now))
    if conditions == own.status.conditions:
        return None
    return Update(msgspec.structs.replace(own, status=msgspec.structs.replace(own.status, conditions=conditions)))
