"""Protected quota: another tenant's nomination never preempts work within a tenant's protected quota.

Checked when a nomination with victims is committed: the tenant's firm ordinary work minus the victims of all open
nominations must be at least the protected amount of its GrantCopy, in each resource that the victims use. Stopping work
counts as running until it is gone; the cells count it as gone, and so stay below this bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.binding import Binding, CapacityClass, Reservation, ReservationPhase
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.quantity import Amounts, add, amounts
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit


class ProtectionChecker:
    """Checker of one region."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            made = change.new
            if change.kind.name == "Reservation" and change.old is None and made is not None and made.spec.victims:
                yield from self._check(change, made, commit.state)

    def _check(self, change: ObservedChange, nomination: Reservation, state: dict[str, Any]) -> Iterator[Finding]:
        taker = nomination.metadata.namespace
        lost = [b for b in _victims(nomination, state) if b.metadata.namespace != taker]
        for tenant in sorted({b.metadata.namespace for b in lost}):
            copy: GrantCopy | None = state.get(f"/grantcopies/{tenant}/normal")
            protected = amounts(copy.spec.protected) if copy is not None else {}
            if not protected:
                continue
            left = _remaining(tenant, state)
            granted: Amounts = {}
            for binding in lost:
                if binding.metadata.namespace == tenant:
                    add(granted, amounts(binding.spec.resources))
            for name, amount in sorted(granted.items()):
                if amount and left.get(name, 0) < protected.get(name, 0):
                    what = (
                        f"{change.key} preempts {name} of tenant {tenant} below its protected quota (protected "
                        f"{protected[name]}, remaining {left.get(name, 0)})"
                    )
                    keys = tuple(f"/bindings/{b.metadata.namespace}/{b.metadata.name}" for b in lost)
                    yield "protection", what, (change.key, *keys)


def _remaining(tenant: str, state: dict[str, Any]) -> Amounts:
    """The tenant's running work minus all nominated victims."""
    left: Amounts = {}
    evicted: dict[str, Binding] = {}
    for item in state.values():
        if isinstance(item, Binding) and item.metadata.namespace == tenant and _counts(item):
            add(left, amounts(item.spec.resources))
        elif isinstance(item, Reservation) and item.status.phase is ReservationPhase.NOMINATED:
            evicted.update({b.uid: b for b in _victims(item, state) if b.metadata.namespace == tenant})
    for binding in evicted.values():
        add(left, amounts(binding.spec.resources), times=-1)
    return left


def _victims(nomination: Reservation, state: dict[str, Any]) -> list[Binding]:
    own = nomination.metadata.namespace
    names = (v if "/" in v else f"{own}/{v}" for v in nomination.spec.victims)
    found = (state.get(f"/bindings/{name}") for name in names)
    return [binding for binding in found if binding is not None and _counts(binding)]


def _counts(binding: Binding) -> bool:
    spec = binding.spec
    return spec.capacity_class is CapacityClass.FIRM and not spec.quota_released and not spec.run_until
