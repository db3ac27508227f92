"""The table of override kinds, read by admission, controllers and docs, and which overrides are in force."""

from __future__ import annotations

import msgspec

from holdfast.model import limits
from holdfast.model.override import MAX_MAINTENANCE_TTL_S, Override, OverrideKind
from holdfast.model.times import parse_time


class KindRule(msgspec.Struct, frozen=True, gc=False):
    """`permissive`: the override allows more than usual, so it ends when its remaining time is unknown.

    `break_glass`: a region accepts it while the global cell is unreachable. Never true for quota, residency or fences.
    """

    needs_approval: bool
    permissive: bool
    max_ttl_s: float
    effect: str
    break_glass: bool = False


_HOUR_S = 3600.0
RULES: dict[OverrideKind, KindRule] = {
    OverrideKind.AVOID_ZONE: KindRule(False, False, 24 * _HOUR_S, "places no new work in the zone", break_glass=True),
    OverrideKind.AVOID_REGION: KindRule(
        False, False, 24 * _HOUR_S, "assigns no new work to the region", break_glass=True
    ),
    OverrideKind.DECLARE_REGION_LOST: KindRule(
        True, True, 4 * _HOUR_S, "declares the region lost without witnesses, which opens a recovery"
    ),
    OverrideKind.PAUSE_AUTOSCALER: KindRule(False, False, 24 * _HOUR_S, "keeps the number of replicas unchanged"),
    OverrideKind.PAUSE_REPAIR: KindRule(
        False, False, 4 * _HOUR_S, "stops repairs; findings are still reported", break_glass=True
    ),
    OverrideKind.APPROVE_REPAIR: KindRule(
        False, True, 4 * _HOUR_S, "allows repairs that wait for approval", break_glass=True
    ),
    OverrideKind.EMERGENCY_QUOTA: KindRule(True, True, 8 * _HOUR_S, "adds to the tenant's quota"),
    OverrideKind.RAISE_PRIORITY: KindRule(
        False, True, 8 * _HOUR_S, "queues the workload with a higher priority", break_glass=True
    ),
    OverrideKind.SHRINK_BUDGET: KindRule(
        True, True, 1 * _HOUR_S, "allows a recovery budget to shrink below what recovery objectives need"
    ),
    OverrideKind.CONFIRM_DELETION: KindRule(
        True, True, 1 * _HOUR_S, "stops the work that the region holds because no deletion was ordered"
    ),
    OverrideKind.PIN_POLICY: KindRule(
        False, False, 24 * _HOUR_S, "keeps regions on one policy revision", break_glass=True
    ),
    OverrideKind.PAUSE_REBALANCE: KindRule(
        False, False, 24 * _HOUR_S, "moves no running replica for a more even spread", break_glass=True
    ),
}


def latest_expiry_s(override: Override) -> float:
    """Latest possible expiry, counted from creation."""
    return parse_time(override.metadata.creation_timestamp) + max_duration_s(override)


def max_duration_s(override: Override) -> float:
    """Longest duration: the requested TTL, limited by its kind and, for break-glass, by BREAK_GLASS_MAX_S."""
    most_s = RULES[override.spec.kind].max_ttl_s if override.spec.maintenance is None else MAX_MAINTENANCE_TTL_S
    if override.spec.break_glass is not None:
        most_s = min(most_s, limits.BREAK_GLASS_MAX_S)
    return min(override.spec.ttl_seconds, most_s)


def needs_approval(override: Override) -> bool:
    return RULES[override.spec.kind].needs_approval and not override.spec.approver
