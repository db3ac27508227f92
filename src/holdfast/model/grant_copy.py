"""GrantCopy: the limit that a region enforces for a tenant.

A lower limit is enforced before it is acknowledged, and never below current usage.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import Amount
from holdfast.model.quota import GrantClass
from holdfast.model.times import micro_text
from holdfast.model.validation import Causes, check_resources

NOT_RENEWED = micro_text(1.0)
"""Lease expiry of a restored GrantCopy: long past, so it is not spent until it is renewed."""


class GrantCopySpec(ApiStruct, frozen=True):
    """The grant as enforced in the region.

    `provisional` is the share of `limit` that only provisional work may use. `lastContactAt` is the last contact with
    the global cell. After `leaseExpiresAt`, one lease later, only the provisional share is spent. Work within
    `protected` is not preempted by other tenants."""

    grant_class: GrantClass = visible_default(GrantClass.NORMAL)
    limit: dict[str, Amount] = {}
    provisional: dict[str, Amount] = {}
    protected: dict[str, Amount] = {}
    epoch: int = visible_default(1)
    last_contact_at: str = ""
    lease_expires_at: str = ""


class GrantCopyStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    used: dict[str, Amount] = {}


class GrantCopy(Object, frozen=True):
    spec: GrantCopySpec
    status: GrantCopyStatus = msgspec.field(default_factory=GrantCopyStatus)


def validate_grant_copy(copy: GrantCopy, old: GrantCopy | None) -> Causes:
    yield from check_resources("spec.limit", copy.spec.limit, device_rules=False)
