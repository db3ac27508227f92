"""Placing while the region is cut off: on which terms, whether a stay is renewed, and when it becomes ordinary. Pure.

What always holds: provisional work is reclaimable, alone, free of residency rules, preempts and draws nothing; it
spends only the provisional part of the grant; and it ends by itself, at `runUntil`, at most `PROVISIONAL_MAX_S` after
the global cell was last heard. Only a live grant that covers it makes it ordinary work.
"""

from __future__ import annotations

import msgspec

from holdfast.authority.claims import Claim, ClaimRequest
from holdfast.authority.ledger import Ledger
from holdfast.model import limits
from holdfast.model.binding import CapacityClass
from holdfast.model.errors import Refused
from holdfast.model.grant_limit import SpendingLimit
from holdfast.model.quantity import add, shortfall
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PartitionMode
from holdfast.model.times import micro_text, parse_time


class ProvisionalRequest(msgspec.Struct, frozen=True, gc=False):
    """A proposal for a place. `assigned`: its Assignment is known here, so it was made before the cut. `binds`: nothing
    has to be waited for, a gang among others."""

    replica: Replica
    want: ClaimRequest
    binds_at_once: bool
    assigned: bool


def provisional_terms(mode: PartitionMode, asked: ProvisionalRequest, limit: SpendingLimit, now: float, expired: Refused) -> str | Refused:
    """Until when the work may run, or why it has to wait. `expired` is what an ordinary proposal is told."""
    if mode is PartitionMode.WAIT:
        return expired
    why = _why_held(asked, limit)
    until_s = _until_s(limit, now)
    if not why and until_s <= now:
        why = f"the region has been cut off for longer than {limits.PROVISIONAL_MAX_S:.0f} s"
    if not why:
        return micro_text(until_s)
    facts = {**expired.facts, "because": why}
    message = f"the region is cut off from the global cell and places only provisional work: {why}"
    return Refused(Reason.NOT_ALLOWED_WHILE_PARTITIONED, message, facts)


def _why_held(asked: ProvisionalRequest, limit: SpendingLimit) -> str:
    spec = asked.replica.spec
    if not asked.assigned:
        return "its assignment is not known here"
    if spec.exclusive is not None:
        return "exclusive work waits, as it may have been moved elsewhere"
    if spec.placement.residency:
        return f"work bound to residency {', '.join(spec.placement.residency)} waits until its rules can be confirmed"
    if asked.want.capacity_class is not CapacityClass.RECLAIMABLE:
        return "work that cannot be reclaimed waits until its quota can be confirmed"
    if asked.want.victims or asked.want.recovery_slots:
        return "it would preempt other work, or draw on a recovery place"
    if not asked.binds_at_once:
        return "it would have to wait for others before it is bound"
    if not limit.provisional:
        return "its tenant's grant here has no provisional part"
    return ""


def _until_s(limit: SpendingLimit, now: float) -> float:
    return min(now + limits.PROVISIONAL_RUN_S, limit.heard_s + limits.PROVISIONAL_MAX_S)


def next_run_until(claim: Claim, ledger: Ledger, limit: SpendingLimit, mode: PartitionMode, now: float) -> str | None:
    """The `runUntil` the claim should have now: empty when the grant confirms it, None to leave it as it is."""
    if not limit.over:
        after = ledger.ordinary_use(claim.namespace, GrantClass.NORMAL)
        add(after, claim.amounts)
        return None if shortfall(after, limit.spendable) else ""
    if mode is PartitionMode.WAIT:
        return None
    left_s, until_s = parse_time(claim.run_until) - now, _until_s(limit, now)
    renewable = 0 < left_s < limits.PROVISIONAL_RUN_S / 2 and until_s > parse_time(claim.run_until) + 1.0
    return micro_text(until_s) if renewable else None
