"""Provisional placement while the region is partitioned: eligibility, renewal and confirmation. Pure.

- Provisional work is reclaimable, not in a gang, without residency rules. It preempts nothing and uses no slot.
- It spends only provisional quota.
- It ends at `runUntil`, at most PROVISIONAL_MAX_S after the last contact with the global cell.
- Only a live grant that covers it makes it permanent.
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

# How long provisional work runs unless the authority renews it.
PROVISIONAL_RUN_S = 600.0


class ProvisionalRequest(msgspec.Struct, frozen=True, gc=False):
    """A proposal. `assigned`: its Assignment is known here, so it was made before the partition. `binds_at_once`:
    it need not wait for a gang or victims."""

    replica: Replica
    claim_request: ClaimRequest
    binds_at_once: bool
    assigned: bool


def provisional_terms(
    mode: PartitionMode, request: ProvisionalRequest, limit: SpendingLimit, now: float, expired: Refused
) -> str | Refused:
    """The `runUntil` of the provisional placement, or a refusal. `expired` is the refusal of ordinary placement."""
    if mode is PartitionMode.WAIT:
        return expired
    reason = _ineligible_reason(request, limit)
    until_s = _until_s(limit, now)
    if not reason and until_s <= now:
        reason = f"the region has been partitioned for longer than {limits.PROVISIONAL_MAX_S:.0f} s"
    if not reason:
        return micro_text(until_s)
    facts = {**expired.facts, "ineligible": reason}
    message = f"the region is partitioned and places only provisional work: {reason}"
    return Refused(Reason.NOT_ALLOWED_WHILE_PARTITIONED, message, facts)


def _ineligible_reason(request: ProvisionalRequest, limit: SpendingLimit) -> str:
    spec = request.replica.spec
    if not request.assigned:
        return "its assignment is not known here"
    if spec.exclusive is not None:
        return "exclusive work waits, because it may have moved to another region"
    if spec.placement.residency:
        return f"work with residency {', '.join(spec.placement.residency)} waits until its rules can be confirmed"
    if request.claim_request.capacity_class is not CapacityClass.RECLAIMABLE:
        return "work that is not reclaimable waits until its quota can be confirmed"
    if request.claim_request.victims or request.claim_request.recovery_slots:
        return "it would preempt other work or consume a recovery slot"
    if not request.binds_at_once:
        return "it cannot be bound at once"
    if not limit.provisional:
        return "its tenant's grant in this region has no provisional quota"
    return ""


def _until_s(limit: SpendingLimit, now: float) -> float:
    return min(now + PROVISIONAL_RUN_S, limit.last_contact_s + limits.PROVISIONAL_MAX_S)


def next_run_until(claim: Claim, ledger: Ledger, limit: SpendingLimit, mode: PartitionMode, now: float) -> str | None:
    """The claim's new `runUntil`: "" to make it permanent (a live grant covers it), a time to renew it, None for no
    change."""
    if not limit.all_expired:
        after = ledger.ordinary_use(claim.namespace, GrantClass.NORMAL)
        add(after, claim.amounts)
        return None if shortfall(after, limit.spendable) else ""
    if mode is PartitionMode.WAIT:
        return None
    remaining_s, until_s = parse_time(claim.run_until) - now, _until_s(limit, now)
    renewable = 0 < remaining_s < PROVISIONAL_RUN_S / 2 and until_s > parse_time(claim.run_until) + 1.0
    return micro_text(until_s) if renewable else None
