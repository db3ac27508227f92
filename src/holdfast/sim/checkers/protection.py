"""No tenant loses to another what its quota protects: judged from the records, when a nomination that names victims is
committed.

What the tenant runs of firm, ordinary work, less the victims of every open nomination, must come to what its GrantCopy
protects, in each resource that another tenant's nomination takes from it. Work that stops for a reason of its own
counts as running until it is gone: the cells count it as gone, and so stay on the safe side of this. A nomination that
stays as it is when the tenant's other work ends is not judged again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.binding import Binding, CapacityClass, Reservation, ReservationPhase
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.quantity import Amounts, add, amounts
from holdfast.sim.checkers import Changed, Commit, Found


class ProtectionChecker:
    """The records of one region, as they are on disk."""

    def check(self, commit: Commit) -> Iterator[Found]:
        for change in commit.changed:
            made = change.new
            if change.kind.name == "Reservation" and change.old is None and made is not None and made.spec.victims:
                yield from self._judge(change, made, commit.state)

    def _judge(self, change: Changed, nomination: Reservation, state: dict[str, Any]) -> Iterator[Found]:
        taker = nomination.metadata.namespace
        lost = [b for b in _victims(nomination, state) if b.metadata.namespace != taker]
        for tenant in sorted({b.metadata.namespace for b in lost}):
            copy: GrantCopy | None = state.get(f"/grantcopies/{tenant}/normal")
            protected = amounts(copy.spec.protected) if copy is not None else {}
            if not protected:
                continue
            left = _left(tenant, state)
            given: Amounts = {}
            for binding in lost:
                if binding.metadata.namespace == tenant:
                    add(given, amounts(binding.spec.resources))
            for name, amount in sorted(given.items()):
                if amount and left.get(name, 0) < protected.get(name, 0):
                    what = (
                        f"{change.key} takes {name} of tenant {tenant}, which keeps {left.get(name, 0)} by it, and "
                        f"{protected[name]} are protected"
                    )
                    keys = tuple(f"/bindings/{b.metadata.namespace}/{b.metadata.name}" for b in lost)
                    yield "protection", what, (change.key, *keys)


def _left(tenant: str, state: dict[str, Any]) -> Amounts:
    """What a tenant runs, less all that is to make way for someone."""
    left: Amounts = {}
    going: dict[str, Binding] = {}
    for item in state.values():
        if isinstance(item, Binding) and item.metadata.namespace == tenant and _counts(item):
            add(left, amounts(item.spec.resources))
        elif isinstance(item, Reservation) and item.status.phase is ReservationPhase.NOMINATED:
            going.update({b.uid: b for b in _victims(item, state) if b.metadata.namespace == tenant})
    for binding in going.values():
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
