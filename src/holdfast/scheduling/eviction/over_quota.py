"""Replicas to evict after an emergency quota ended while usage exceeds the remaining limit. Pure.

The fewest replicas that bring usage within the limit: lowest priority first, then highest ordinal. They are pending
again until quota is available. Evictions respect disruption budgets until the drain deadline that the Override states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.model import limits
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import final_phase
from holdfast.model.meta import Key
from holdfast.model.override import Override, over_quota_deadline_s
from holdfast.model.quantity import Amounts, add, amounts, amounts_text, shortfall
from holdfast.model.quota import GrantClass
from holdfast.model.replica import Replica
from holdfast.model.template import requests
from holdfast.model.times import parse_time
from holdfast.model.view import View


def is_drain_overdue(replica: Replica, view: View, now: float) -> bool:
    """Whether the drain deadline of the ended emergency quota has passed: disruption budgets do not apply any more.

    Without the Override, the end of the region's emergency grant counts."""
    tenant = replica.metadata.namespace
    assignment = view.get(Assignment, replica.spec.assignment, tenant)
    region = assignment.spec.region if assignment is not None else ""
    deadline_s = over_quota_deadline_s(view.list(Override), region=region, tenant=tenant, now=now)
    if deadline_s is None:
        copy = view.get(GrantCopy, GrantClass.EMERGENCY.value.lower(), tenant)
        if copy is None or not copy.spec.lease_expires_at or amounts(copy.spec.limit):
            return False
        deadline_s = parse_time(copy.spec.lease_expires_at) + limits.OVER_QUOTA_DRAIN_S
    return now >= deadline_s


def eviction_reason(replica: Replica, view: View) -> str:
    """Why the replica must be evicted; empty if it stays."""
    if replica.spec.purpose is not Purpose.NORMAL:
        return ""
    tenant = replica.metadata.namespace
    excess = quota_excess(view.list(GrantCopy, tenant))
    if not excess:
        return ""
    if replica.uid not in {r.uid for r in over_quota_victims(view.list(Replica, tenant), excess)}:
        return ""
    exceeded = ", ".join(f"{name} by {text}" for name, text in amounts_text(excess).items())
    return f"tenant {tenant} exceeds its quota in this region ({exceeded}) after its emergency quota ended"


def quota_excess(copies: Sequence[GrantCopy]) -> Amounts:
    """Usage beyond the limit; empty unless the tenant has an emergency grant, which is the only cause."""
    if not any(c.spec.grant_class is GrantClass.EMERGENCY for c in copies):
        return {}
    limit: Amounts = {}
    used: Amounts = {}
    for copy in copies:
        if copy.spec.grant_class in (GrantClass.NORMAL, GrantClass.EMERGENCY):
            add(limit, amounts(copy.spec.limit))
            add(used, amounts(copy.status.used))
    return shortfall(used, limit)


def over_quota_victims(replicas: Sequence[Replica], excess: Amounts) -> list[Replica]:
    """The fewest replicas whose claims cover the excess; replicas that already stop count first."""
    remaining = dict(excess)
    chosen: list[Replica] = []
    bound = [r for r in replicas if r.status.placement.binding and final_phase(r) is None]
    normal = [r for r in bound if r.spec.purpose is Purpose.NORMAL]

    def order(replica: Replica) -> tuple[object, ...]:
        release = replica.status.release
        leaving = release is not None and release.attempt == replica.status.placement.attempt
        return (not leaving, replica.spec.priority, -replica.spec.ordinal, replica.key)

    for replica in sorted(normal, key=order):
        if not any(amount > 0 for amount in remaining.values()):
            break
        chosen.append(replica)
        add(remaining, requests(replica.spec.template), times=-1)
    return chosen


def woken_by_copy(new: GrantCopy | None, old: GrantCopy | None, view: View) -> Iterable[Key]:
    """Wakes all bound replicas of a tenant that exceeds its quota. Other tenants wake none: usage changes often."""
    if new is None or not quota_excess(view.list(GrantCopy, new.metadata.namespace)):
        return ()
    return [r.key for r in view.list(Replica, new.metadata.namespace) if r.status.placement.binding]
