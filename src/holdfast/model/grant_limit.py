"""Spending limit of a tenant in a region, from the region's GrantCopies. Used by the authority and the scheduler.

After the end of its lease a grant allows no new spending (S3, S8). An emergency grant counts while an override backs
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.model.grant_copy import GrantCopy
from holdfast.model.quantity import Amounts, add, amounts
from holdfast.model.quota import GrantClass
from holdfast.model.times import parse_time


class SpendingLimit(msgspec.Struct, frozen=True, gc=False):
    """Limit of a tenant in one class: `spendable` now, and `with_expired` including grants whose lease has expired.

    Both exclude the `provisional` share, which only provisional work may use; `total` includes it. `last_contact_s` is
    the last contact with the global cell for the grant of the class.
    """

    spendable: Amounts
    with_expired: Amounts
    copies: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    provisional: Amounts = {}
    total: Amounts = {}
    last_contact_s: float = 0.0

    @property
    def all_expired(self) -> bool:
        """Whether the leases of all grants have expired."""
        return len(self.expired) == len(self.copies)


def spending_limit(
    copies: Iterable[GrantCopy],
    spent_as: GrantClass,
    now: float,
    *,
    emergency: bool = True,
    age_s: Callable[[GrantCopy], float] | None = None,
) -> SpendingLimit:
    """The sum of a tenant's grants for this class. An emergency grant adds to the normal class while an override backs
    it (`emergency`).

    A resource that no grant lists has a limit of zero. `age_s` returns the time since the last contact for a copy on
    the monotonic clock; without it, the wall clock is used.
    """
    classes = {spent_as, GrantClass.EMERGENCY} if spent_as is GrantClass.NORMAL else {spent_as}
    spendable: Amounts = {}
    with_expired: Amounts = {}
    provisional: Amounts = {}
    total: Amounts = {}
    last_contact_s = 0.0
    names, expired = [], []
    for copy in copies:
        if copy.spec.grant_class not in classes or copy.metadata.terminating:
            continue
        names.append(copy.metadata.name)
        limit = amounts(copy.spec.limit)
        add(total, limit)
        if copy.spec.grant_class is spent_as and copy.spec.provisional:
            provisional = amounts(copy.spec.provisional)
            limit = {name: max(0, amount - provisional.get(name, 0)) for name, amount in limit.items()}
        at_s = parse_time(copy.spec.last_contact_at) if copy.spec.last_contact_at else 0.0
        # Shift the times of the copy so that its last contact has the measured age.
        late_s = now - age_s(copy) - at_s if age_s is not None and at_s else 0.0
        if copy.spec.grant_class is spent_as and at_s:
            last_contact_s = at_s + late_s
        add(with_expired, limit)
        unbacked = copy.spec.grant_class is GrantClass.EMERGENCY and not emergency
        if unbacked or (copy.spec.lease_expires_at and parse_time(copy.spec.lease_expires_at) + late_s <= now):
            expired.append(copy.metadata.name)
        else:
            add(spendable, limit)
    return SpendingLimit(spendable, with_expired, tuple(names), tuple(expired), provisional, total, last_contact_s)
