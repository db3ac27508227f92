"""How a grant moves from one epoch to the next, so that nothing a region may still be spending is forgotten (S3)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.model import limits
from holdfast.model.quantity import Amounts, amounts, amounts_text
from holdfast.model.quota import Grant, GrantSpec, may_enforce
from holdfast.model.region import Region
from holdfast.model.times import parse_time


def next_epoch(stored: Grant, limit: Mapping[str, int]) -> GrantSpec:
    """The grant one epoch further. What it may have enforced so far stays counted until the region answers for it."""
    peak = may_enforce(stored)
    return msgspec.structs.replace(
        stored.spec, limit=dict(amounts_text(limit)), peak=dict(amounts_text(peak)), epoch=stored.spec.epoch + 1
    )


def returned(grant: Grant, region: Region | None, now: float) -> Grant | None:
    """The grant without its provisional part, when that has come back by time.

    A region that was silent for longer than provisional work can last has none any more: its own rule, and its agents',
    ended it. Silence is what region-health saw on this cell's clock; leases in the region count from the same reports.
    Only a part that the region said it holds apart comes back, and of that nothing which it said was in use: ordinary
    work from before may be in there. All the rest stays counted until it is acknowledged.
    """
    spec, said = grant.spec, grant.status
    if not spec.provisional or region is None or region.status.report is None or said.acknowledged_epoch != spec.epoch:
        return None
    health = region.status.health
    silent_s = now - parse_time(health.heard_at) if health.heard_at else 0.0
    unseen = region.status.report.sequence != health.heard_sequence
    if unseen or silent_s <= limits.PROVISIONAL_MAX_S + limits.PROVISIONAL_RETURN_SPARE_S:
        return None
    idle = _less(amounts(said.limit), amounts(said.used))
    back = {name: min(part, idle.get(name, 0)) for name, part in amounts(spec.provisional).items()}
    changed = msgspec.structs.replace(
        next_epoch(grant, _less(amounts(spec.limit), back)),
        peak=dict(amounts_text(_less(may_enforce(grant), back))),
        provisional={},
        returned=dict(amounts_text(back)),
        returned_epoch=spec.epoch + 1,
    )
    return msgspec.structs.replace(grant, spec=changed)


def _less(limit: Amounts, back: Amounts) -> Amounts:
    left = {name: amount - back.get(name, 0) for name, amount in limit.items()}
    return {name: amount for name, amount in left.items() if amount > 0}
