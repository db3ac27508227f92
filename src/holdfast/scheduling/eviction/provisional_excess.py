"""Provisional replicas to evict after the region is connected to the global cell again. Pure.

The authority confirms provisional replicas that the ordinary part of a live grant covers; the excess is evicted, lowest
priority first. While the region is partitioned nothing is evicted: provisional replicas end at `runUntil`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.model.binding import Binding
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.grant_limit import spending_limit
from holdfast.model.meta import Key
from holdfast.model.quantity import Amounts, amounts, amounts_text, shortfall
from holdfast.model.quota import GrantClass
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.scheduling.eviction import over_quota


def eviction_reason(replica: Replica, binding: Binding, view: View, now: float) -> str:
    """Why the provisional replica must be evicted; empty if it stays."""
    if not binding.spec.run_until:
        return ""
    tenant = replica.metadata.namespace
    excess = provisional_excess(view.list(GrantCopy, tenant), now)
    if not excess:
        return ""
    provisional = {b.spec.replica for b in view.list(Binding, tenant) if b.spec.run_until}
    replicas = [r for r in view.list(Replica, tenant) if r.metadata.name in provisional]
    if replica.uid not in {r.uid for r in over_quota.over_quota_victims(replicas, excess)}:
        return ""
    exceeded = ", ".join(f"{name} by {text}" for name, text in amounts_text(excess).items())
    return f"placed while the region was partitioned, and the grant of tenant {tenant} does not cover it ({exceeded})"


def provisional_excess(copies: Sequence[GrantCopy], now: float) -> Amounts:
    """Usage beyond the ordinary part of live grants, from the newest usage report; empty while no grant is live."""
    limit = spending_limit(copies, GrantClass.NORMAL, now)
    normal = next((c for c in copies if c.spec.grant_class is GrantClass.NORMAL), None)
    if normal is None or normal.metadata.name in limit.expired:
        return {}
    counted = normal.status.observed_generation == normal.metadata.generation
    return shortfall(amounts(normal.status.used), limit.spendable) if counted else {}


def _provisional(binding: Binding) -> Mapping[str, int]:
    return _ONE if binding.spec.run_until else _NONE


_ONE: Mapping[str, int] = {"bindings": 1}
_NONE: Mapping[str, int] = {}


def woken_by_copy(new: GrantCopy | None, old: GrantCopy | None, view: View) -> Iterable[Key]:
    """Wakes the tenant's provisional replicas. Checks the total first: most tenants have none."""
    if new is None:
        return ()
    tenant = new.metadata.namespace
    if not view.total(Binding, tenant, _provisional):
        return ()
    return [Key(tenant, b.spec.replica) for b in view.list(Binding, tenant) if b.spec.run_until]
