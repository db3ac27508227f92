"""Which overrides act at a moment, and the rules of each kind: one table, read by admission, controllers and docs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.override import Override, OverrideKind
from holdfast.model.times import parse_time
from holdfast.model.view import View

PENDING, ACTIVE, EXPIRED, REVOKED = "Pending", "Active", "Expired", "Revoked"


class KindRule(msgspec.Struct, frozen=True, gc=False):
    """`approval`: a second person must agree. `permissive`: it allows more than usual, so doubt ends it."""

    approval: bool
    permissive: bool
    max_ttl_s: float
    does: str


_HOUR_S = 3600.0
RULES: dict[OverrideKind, KindRule] = {
    OverrideKind.AVOID_ZONE: KindRule(False, False, 24 * _HOUR_S, "places no new work in the zone"),
    OverrideKind.AVOID_REGION: KindRule(False, False, 24 * _HOUR_S, "sends no new work to the region"),
    OverrideKind.DECLARE_REGION_LOST: KindRule(
        True, True, 4 * _HOUR_S, "opens a recovery without waiting for witnesses"
    ),
    OverrideKind.PAUSE_AUTOSCALER: KindRule(False, False, 24 * _HOUR_S, "keeps replica counts as they are"),
    OverrideKind.PAUSE_REPAIR: KindRule(False, False, 4 * _HOUR_S, "stops repairs; what is broken stays visible"),
    OverrideKind.APPROVE_REPAIR: KindRule(False, True, 4 * _HOUR_S, "lets repairs that wait for approval go on"),
    OverrideKind.EMERGENCY_QUOTA: KindRule(True, True, 8 * _HOUR_S, "adds to what the tenant may hold"),
    OverrideKind.RAISE_PRIORITY: KindRule(False, True, 8 * _HOUR_S, "queues the workload as if it had a higher rank"),
    OverrideKind.SHRINK_BUDGET: KindRule(True, True, 1 * _HOUR_S, "lets a recovery budget shrink below its promises"),
    OverrideKind.PIN_POLICY: KindRule(False, False, 24 * _HOUR_S, "keeps regions on one policy revision"),
}


def acts(override: Override, now: float) -> bool:
    """Whether an override is in force: accepted, approved where that is needed, and not past its deadline (S8)."""
    if override.metadata.terminating or override.status.phase != ACTIVE or override.spec.revoked:
        return False
    return bool(override.status.expires_at) and now < parse_time(override.status.expires_at)


def in_force(view: View, kind: OverrideKind, now: float) -> Sequence[Override]:
    return [o for o in view.list(Override) if o.spec.kind is kind and acts(o, now)]


def deadline_s(override: Override) -> float:
    """When it ends at the latest, whoever forgets to end it."""
    rule = RULES[override.spec.kind]
    return parse_time(override.metadata.creation_timestamp) + min(override.spec.ttl_seconds, rule.max_ttl_s)


def needs_approval(override: Override) -> bool:
    return RULES[override.spec.kind].approval and not override.spec.approver
