"""GrantCopy: the limit a region really enforces for a tenant. Lowered before it is acknowledged, never below use."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.quantity import Amount
from holdfast.model.quota import GrantClass
from holdfast.model.validation import Causes, check_resources


class GrantCopySpec(Part, frozen=True):
    """`provisional` is the part of `limit` that only provisional work may use, in touch or not. `heardAt` is when the
    global cell last answered; nothing is spent past `spendUntil`, a lease later, but the provisional part. Work within
    `protected` makes way for nobody of another tenant."""

    grant_class: GrantClass = shown(GrantClass.NORMAL)
    limit: dict[str, Amount] = {}
    provisional: dict[str, Amount] = {}
    protected: dict[str, Amount] = {}
    epoch: int = shown(1)
    heard_at: str = ""
    spend_until: str = ""


class GrantCopyStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    used: dict[str, Amount] = {}


class GrantCopy(Object, frozen=True):
    spec: GrantCopySpec
    status: GrantCopyStatus = msgspec.field(default_factory=GrantCopyStatus)


def validate_grant_copy(copy: GrantCopy, old: GrantCopy | None) -> Causes:
    yield from check_resources("spec.limit", copy.spec.limit, device_rules=False)
