"""How a quota's protected part is told to the regions: what of a tenant's use there is nobody else's to evict. Pure.

What always holds: the parts add up to the protected part at most, so that a tenant is protected once and not in every
region at the same time; a region in which more is wanted is protected for more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.fleet.grant_needs import Limits
from holdfast.model.quantity import Amounts


def parts(protected: Mapping[str, int], wanted: Limits, regions: Sequence[str]) -> Limits:
    """Each region's part. If all that is wanted is within the protected part, each region has what is wanted there and
    an even share of the rest; else each has its share by what is wanted."""
    found: Limits = {region: {} for region in regions}
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
