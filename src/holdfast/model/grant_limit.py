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
    """Limit of a tenant in one class: `spendable` now, and `held` including grants whose lease has expired.

    Both exclude the `provisional` share, which only provisional work may use; `whole` includes it. `heard_s` is the
    last contact with the global cell for the grant of the class.
    """

    spendable: Amounts
    held: Amounts
    copies: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    provisional: Amounts = {}
    whole: Amounts = {}
    heard_s: float = 0.0

    @property
    def over(self) -> bool:
        """Whether the leases of all grants have expired."""
        return len(self.ended) == len(self.copies)


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
    held: Amounts = {}
    provisional: Amounts = {}
    whole: Amounts = {}
    heard_s = 0.0
    names, ended = [], []
    for copy in copies:
        if copy.spec.grant_class not in classes or copy.metadata.terminating:
            continue
        names.append(copy.metadata.name)
        limit = amounts(copy.spec.limit)
        add(whole, limit)
        if copy.spec.grant_class is spent_as and copy.spec.provisional:
            provisional = amounts(copy.spec.provisional)
            limit = {name: max(0, amount - provisional.get(name, 0)) for name, amount in limit.items()}
        at_s = parse_time(copy.spec.last_contact_at) if copy.spec.last_contact_at else 0.0
        # Shift the times of the copy so that its last contact has the measured age.
        late_s = now - age_s(copy) - at_s if age_s is not None and at_s else 0.0
        if copy.spec.grant_class is spent_as and at_s:
            heard_s = at_s + late_s
        add(held, limit)
        unbacked = copy.spec.grant_class is GrantClass.EMERGENCY and not emergency
        if unbacked or (copy.spec.lease_expires_at and parse_time(copy.spec.lease_expires_at) + late_s <= now):
            ended.append(copy.metadata.name)
        else:
            add(spendable, limit)
    return SpendingLimit(spendable, held, tuple(names), tuple(ended), provisional, whole, heard_s)
