"""Which replicas give up their place when an emergency quota has ended and more is in use than the limit allows. Pure.

The lowest rank goes first, of equals the highest ordinal; as few as bring the use back within the limit. They queue
again like everything that waits for quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.model.assignment import Purpose
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.lifecycle import finished
from holdfast.model.meta import Key
from holdfast.model.quantity import Amounts, add, amounts, amounts_text, shortfall
from holdfast.model.quota import GrantClass
from holdfast.model.replica import Replica
from holdfast.model.template import requests
from holdfast.model.view import View


def chosen(replica: Replica, view: View) -> str:
    """Why this replica is among those that go, or an empty string."""
    if replica.spec.purpose is not Purpose.NORMAL:
        return ""
    tenant = replica.metadata.namespace
    excess = excess_of(view.list(GrantCopy, tenant))
    if not excess:
        return ""
    if replica.uid not in {r.uid for r in victims(view.list(Replica, tenant), excess)}:
        return ""
    over = ", ".join(f"{name} by {text}" for name, text in amounts_text(excess).items())
    return f"tenant {tenant} is over its limit here ({over}), as its emergency quota has ended"


def excess_of(copies: Sequence[GrantCopy]) -> Amounts:
    """What is in use beyond the limit; only an ended emergency leaves such a thing behind."""
    if not any(c.spec.grant_class is GrantClass.EMERGENCY for c in copies):
        return {}
    limit: Amounts = {}
    used: Amounts = {}
    for copy in copies:
        if copy.spec.grant_class in (GrantClass.NORMAL, GrantClass.EMERGENCY):
            add(limit, amounts(copy.spec.limit))
            add(used, amounts(copy.status.used))
    return shortfall(used, limit)


def victims(replicas: Sequence[Replica], excess: Amounts) -> list[Replica]:
    """The fewest of the least important whose claims cover the excess, those already on their way out first."""
    left = dict(excess)
    found: list[Replica] = []
    holding = [r for r in replicas if r.status.placement.binding and finished(r) is None]
    normal = [r for r in holding if r.spec.purpose is Purpose.NORMAL]

    def order(replica: Replica) -> tuple[object, ...]:
        release = replica.status.release
        leaving = release is not None and release.attempt == replica.status.placement.attempt
        return (not leaving, replica.spec.rank, -replica.spec.ordinal, replica.key)

    for replica in sorted(normal, key=order):
        if not any(amount > 0 for amount in left.values()):
            break
        found.append(replica)
        add(left, requests(replica.spec.template), times=-1)
    return found


def woken_by_copy(new: GrantCopy | None, old: GrantCopy | None, view: View) -> Iterable[Key]:
    """Only while something is over: limits and use move all the time."""
    if new is None or not excess_of(view.list(GrantCopy, new.metadata.namespace)):
        return ()
    return [r.key for r in view.list(Replica, new.metadata.namespace) if r.status.placement.binding]
