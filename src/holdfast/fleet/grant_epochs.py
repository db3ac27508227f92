"""Next epoch of a grant. A limit that the region may still spend stays counted until it is acknowledged (S3)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.model import limits
from holdfast.model.quantity import Amounts, amounts, amounts_text
from holdfast.model.quota import Grant, GrantSpec, max_enforced_limit
from holdfast.model.region import Region
from holdfast.model.times import parse_time

# Margin added to PROVISIONAL_MAX_S before the global cell reclaims the provisional share of a grant by time. Covers a
# slow clock in the region.
PROVISIONAL_RECLAIM_MARGIN_S = 600.0


def next_epoch(stored: Grant, limit: Mapping[str, int]) -> GrantSpec:
    """The next epoch with a new limit. Limits that the region may still enforce are kept in `unacknowledgedPeak`."""
    peak = max_enforced_limit(stored)
    return msgspec.structs.replace(
        stored.spec,
        limit=dict(amounts_text(limit)),
        unacknowledged_peak=dict(amounts_text(peak)),
        epoch=stored.spec.epoch + 1,
    )


def reclaim_provisional(grant: Grant, region: Region | None, now: float) -> Grant | None:
    """The grant without its provisional share, once the region has been out of contact for longer than such work runs.

    Provisional work has then stopped: the region and its agents end it by time. Contact is what region-health saw on
    this cell's clock; leases in the region count from the same reports. Only an acknowledged share is reclaimed, and
    nothing that was reported in use, because ordinary work may use it. The rest stays counted until it is acknowledged.
    None if there is nothing to reclaim.
    """
    spec, status = grant.spec, grant.status
    if (
        not spec.provisional
        or region is None
        or region.status.report is None
        or status.acknowledged_epoch != spec.epoch
    ):
        return None
    health = region.status.health
    silent_s = now - parse_time(health.last_contact_at) if health.last_contact_at else 0.0
    unassessed = region.status.report.sequence != health.last_sequence
    if unassessed or silent_s <= limits.PROVISIONAL_MAX_S + PROVISIONAL_RECLAIM_MARGIN_S:
        return None
    idle = _minus(amounts(status.limit), amounts(status.used))
    reclaimed = {name: min(share, idle.get(name, 0)) for name, share in amounts(spec.provisional).items()}
    changed = msgspec.structs.replace(
        next_epoch(grant, _minus(amounts(spec.limit), reclaimed)),
        unacknowledged_peak=dict(amounts_text(_minus(max_enforced_limit(grant), reclaimed))),
        provisional={},
        reclaimed=dict(amounts_text(reclaimed)),
        reclaimed_epoch=spec.epoch + 1,
    )
    return msgspec.structs.replace(grant, spec=changed)


def _minus(limit: Amounts, less: Amounts) -> Amounts:
    left = {name: amount - less.get(name, 0) for name, amount in limit.items()}
    return {name: amount for name, amount in left.items() if amount > 0}
