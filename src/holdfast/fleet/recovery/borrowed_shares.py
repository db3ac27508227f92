"""The fairness record of a Recovery: which tenant used how much of a region beyond its ordinary grants, and until when.
Pure.

Recovery replicas are paid by the recovery allowance, not by the ordinary quota: during a disaster their tenant has more
than its share. The record makes that window visible: it opens with the first recovery replica of the tenant in the
region and ends when the last one is returned. In the window the region's queue counts recovery use in the tenant's
dominant share, so that other tenants go first.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.quantity import Amounts, add, amounts, amounts_text
from holdfast.model.recovery import BorrowedShare, WorkloadProgress
from holdfast.model.region import Region
from holdfast.model.template import requests
from holdfast.model.times import micro_text
from holdfast.model.view import View
from holdfast.model.workload import Workload

Borrower = tuple[str, str]
"""Tenant and region."""


def borrowed_shares(
    old: Sequence[BorrowedShare], rows: Sequence[WorkloadProgress], view: View, now: float
) -> tuple[BorrowedShare, ...]:
    """The record after this progress. It changes only with the number of recovery replicas."""
    counts: dict[Borrower, int] = {}
    for row in rows:
        if row.target and row.recovery_replicas:
            key = (row.tenant, row.target)
            counts[key] = counts.get(key, 0) + row.recovery_replicas
    known = {(share.tenant, share.region): share for share in old}
    found = []
    for key in sorted({*known, *counts}):
        share, count = known.get(key), counts.get(key, 0)
        if share is None or count > share.peak_replicas:
            used = _borrowed_resources(key, rows, view)
            share = BorrowedShare(
                tenant=key[0],
                region=key[1],
                peak_replicas=count,
                peak=dict(amounts_text(used)),
                percent_of_region=_dominant_percent(used, view.get(Region, key[1])),
                since=share.since if share is not None else micro_text(now),
            )
        if count and share.returned_at:
            share = msgspec.structs.replace(share, returned_at="")
        elif not count and not share.returned_at:
            share = msgspec.structs.replace(share, returned_at=micro_text(now))
        found.append(share)
    return tuple(found)


def all_returned(shares: Sequence[BorrowedShare], now: float) -> tuple[BorrowedShare, ...]:
    """The record when everything borrowed was returned."""
    return tuple(s if s.returned_at else msgspec.structs.replace(s, returned_at=micro_text(now)) for s in shares)


def _borrowed_resources(key: Borrower, rows: Sequence[WorkloadProgress], view: View) -> Amounts:
    """Resources of the tenant's recovery replicas in the region."""
    used: Amounts = {}
    for row in rows:
        workload = view.get(Workload, row.workload, row.tenant)
        if (row.tenant, row.target) == key and workload is not None:
            each = requests(workload.spec.template)
            add(used, {name: amount * row.recovery_replicas for name, amount in each.items()})
    return used


def _dominant_percent(used: Amounts, region: Region | None) -> float:
    """The largest share of any resource of the region, in percent, as far as the region reports its capacity."""
    report = region.status.report if region is not None else None
    capacity = amounts(report.capacity) if report is not None else {}
    return round(max((100.0 * used[name] / capacity[name] for name in used if capacity.get(name)), default=0.0), 2)
