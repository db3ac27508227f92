"""Which overrides act at a moment, and the rules of each kind: one table, read by admission, controllers and docs."""

from __future__ import annotations

import msgspec

from holdfast.model import limits
from holdfast.model.override import Override, OverrideKind
from holdfast.model.times import parse_time


class KindRule(msgspec.Struct, frozen=True, gc=False):
    """`approval`: a second person must agree. `permissive`: it allows more than usual, so doubt ends it. `break_glass`:
    a region may be told by itself while the global cell is out of reach; never so for quota, residency or fences."""

    approval: bool
    permissive: bool
    max_ttl_s: float
    does: str
    break_glass: bool = False


_HOUR_S = 3600.0
RULES: dict[OverrideKind, KindRule] = {
    OverrideKind.AVOID_ZONE: KindRule(False, False, 24 * _HOUR_S, "places no new work in the zone", break_glass=True),
    OverrideKind.AVOID_REGION: KindRule(
        False, False, 24 * _HOUR_S, "sends no new work to the region", break_glass=True
    ),
    OverrideKind.DECLARE_REGION_LOST: KindRule(
        True, True, 4 * _HOUR_S, "opens a recovery without waiting for witnesses"
    ),
    OverrideKind.PAUSE_AUTOSCALER: KindRule(False, False, 24 * _HOUR_S, "keeps replica counts as they are"),
    OverrideKind.PAUSE_REPAIR: KindRule(
        False, False, 4 * _HOUR_S, "stops repairs; what is broken stays visible", break_glass=True
    ),
    OverrideKind.APPROVE_REPAIR: KindRule(
        False, True, 4 * _HOUR_S, "lets repairs that wait for approval go on", break_glass=True
    ),
    OverrideKind.EMERGENCY_QUOTA: KindRule(True, True, 8 * _HOUR_S, "adds to what the tenant may hold"),
    OverrideKind.RAISE_PRIORITY: KindRule(
        False, True, 8 * _HOUR_S, "queues the workload as if it had a higher rank", break_glass=True
    ),
    OverrideKind.SHRINK_BUDGET: KindRule(True, True, 1 * _HOUR_S, "lets a recovery budget shrink below its promises"),
    OverrideKind.PIN_POLICY: KindRule(
        False, False, 24 * _HOUR_S, "keeps regions on one policy revision", break_glass=True
    ),
}


def deadline_s(override: Override) -> float:
    """When it ends at the latest, whoever forgets to end it."""
    return parse_time(override.metadata.creation_timestamp) + longest_s(override)


def longest_s(override: Override) -> float:
    """How long it may act in all: what was asked for, within what its kind, and a region by itself, may be asked."""
    most_s = RULES[override.spec.kind].max_ttl_s
    if override.spec.break_glass is not None:
        most_s = min(most_s, limits.BREAK_GLASS_MAX_S)
    return min(override.spec.ttl_seconds, most_s)


def needs_approval(override: Override) -> bool:
    return RULES[override.spec.kind].approval and not override.spec.approver
