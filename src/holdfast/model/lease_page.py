"""LeasePage: the leases of up to 500 nodes in one record, so that renewing 5,000 nodes writes ten records.

Internal to a regional cell: the authority writes it, node-health reads it.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Object
from holdfast.model.validation import Causes, check_range


class NodeLease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Newest acknowledged renewal of one node, by the authority's clock (Unix time in seconds)."""

    epoch: int
    renewed_at_s: float
    ttl_s: float


class LeasePageSpec(ApiStruct, frozen=True):
    page: int
    leases: dict[str, NodeLease] = {}


class LeasePageStatus(ApiStruct, frozen=True):
    pass


class LeasePage(Object, frozen=True):
    spec: LeasePageSpec
    status: LeasePageStatus = msgspec.field(default_factory=LeasePageStatus)


def validate_lease_page(page: LeasePage, old: LeasePage | None) -> Causes:
    yield from check_range("spec.page", page.spec.page, 0, 1_000_000)
