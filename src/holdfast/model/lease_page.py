"""LeasePage: the heartbeats of up to 500 nodes in one record, so that 5,000 of them cost ten rows and not 5,000.

Internal to a regional cell: written by the authority alone, read by node-health.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import Object, Part
from holdfast.model.validation import Causes, check_range


class NodeLease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node's newest acknowledged renewal, on the authority's clock (seconds since the epoch)."""

    epoch: int
    renewed_at_s: float
    ttl_s: float


class LeasePageSpec(Part, frozen=True):
    page: int
    leases: dict[str, NodeLease] = {}


class LeasePageStatus(Part, frozen=True):
    pass


class LeasePage(Object, frozen=True):
    spec: LeasePageSpec
    status: LeasePageStatus = msgspec.field(default_factory=LeasePageStatus)


def validate_lease_page(page: LeasePage, old: LeasePage | None) -> Causes:
    yield from check_range("spec.page", page.spec.page, 0, 1_000_000)
