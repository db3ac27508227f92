"""The scheduler's estimate of a tenant's remaining quota in the region: grants minus usage.

The estimate lets the scheduler report QuotaExceeded at once instead of planning a request that the authority would
reject. It is advisory: only the authority spends quota. There is no estimate (None) where the authority uses more than
this sum: for expired grant leases and for recovery work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.model.decision import DecisionInputs
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.grant_limit import spending_limit
from holdfast.model.quantity import CPU, Amounts, amount_text, amounts, shortfall
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.scheduling_request import RefusalCount
from holdfast.scheduling.replica_requirements import ReplicaRequirements


def headroom_of(
    copies: Iterable[GrantCopy], used: Mapping[str, int], now: float, *, emergency: bool = True
) -> Amounts | None:
    """Remaining quota by resource: empty without a grant, None if only the authority can tell."""
    limit = spending_limit(copies, GrantClass.NORMAL, now, emergency=emergency)
    if not limit.copies:
        return {}
    if limit.all_expired or shortfall(limit.with_expired, limit.spendable):
        return None
    return {CPU: 0, **{name: max(0, amount - used.get(name, 0)) for name, amount in limit.spendable.items()}}


def recorded_headroom(inputs: DecisionInputs) -> Amounts | None:
    """The headroom recorded in a Decision. Zero amounts are not stored, so a used-up grant is restored as CPU 0."""
    if not inputs.headroom_known:
        return None
    return {CPU: 0, **amounts(inputs.quota_headroom)} if inputs.has_grant else {}


def affordable_members(requirements: ReplicaRequirements) -> int:
    """Number of members that the tenant's headroom covers."""
    if requirements.quota_headroom is None:
        return len(requirements.members)
    if not requirements.quota_headroom:
        return 0
    requested = len(requirements.members)
    per_resource = (
        requirements.quota_headroom.get(name, 0) // amount for name, amount in requirements.amounts.items() if amount
    )
    return min((requested, *per_resource))


def quota_cost(requirements: ReplicaRequirements, placed: int) -> Amounts:
    """Quota used by `placed` members; nothing for recovery work."""
    return (
        {name: amount * placed for name, amount in requirements.amounts.items()}
        if not requirements.uses_recovery_slots
        else {}
    )


def headroom_after(available: Amounts | None, used_up: Mapping[str, int]) -> Amounts | None:
    if not available or not used_up:
        return available
    return {name: max(0, amount - used_up.get(name, 0)) for name, amount in available.items()}


def headroom_refusal(requirements: ReplicaRequirements) -> RefusalCount:
    """Why the headroom does not cover the next member, with the authority's wording."""
    available = requirements.quota_headroom or {}
    if not available:
        message = (
            f"tenant {requirements.namespace} has no Normal grant in this region; next: an operator creates its Quota"
        )
        return RefusalCount(reason=Reason.NO_GRANT, message=message)
    exceeded = [
        f"{name}: available {amount_text(name, available.get(name, 0))}, requested {amount_text(name, amount)}"
        for name, amount in requirements.amounts.items()
        if amount > available.get(name, 0)
    ]
    named = "; ".join(exceeded) or "used up by requests planned before"
    message = f"exceeds the quota of tenant {requirements.namespace} in this region ({named})"
    return RefusalCount(reason=Reason.QUOTA_EXCEEDED, message=message)
