"""Divides a quota's protected part among regions. Pure.

The shares add up to at most the protected part, so that a tenant is not protected in every region at once. A region
with more demand gets a larger share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.fleet.grant_demand import RegionAmounts
from holdfast.model.quantity import Amounts


def protected_shares(protected: Mapping[str, int], wanted: RegionAmounts, regions: Sequence[str]) -> RegionAmounts:
    """Share of each region. If the total demand fits into the protected part, each region gets its demand plus an even
    share of the rest. Otherwise the shares are proportional to demand."""
    found: RegionAmounts = {region: {} for region in regions}
    if not regions:
        return found
    for resource, whole in sorted(protected.items()):
        need = {region: wanted.get(region, {}).get(resource, 0) for region in regions}
        for region, part in _shared(whole, need).items():
            if part:
                found[region][resource] = part
    return found


def _shared(whole: int, need: Amounts) -> Amounts:
    total = sum(need.values())
    if total > whole:
        return {region: whole * amount // total for region, amount in need.items()}
    rest = (whole - total) // len(need)
    return {region: amount + rest for region, amount in need.items()}
