"""Override: a person's scoped, expiring instruction. What it does, where, why, who asked, and when it ends.

Its home is the global cell. One whose name begins with `break-glass-REGION-` has its home in that region instead: it is
given there while the global cell is out of reach, and the link carries a record of it to the global cell afterwards.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.quantity import Amount
from holdfast.model.times import parse_time
from holdfast.model.validation import Causes, check_range, required

MAX_TTL_S = 24 * 3600.0
PENDING, ACTIVE, EXPIRED, REVOKED = "Pending", "Active", "Expired", "Revoked"
BREAK_GLASS = "break-glass-"


class OverrideKind(enum.StrEnum):
    AVOID_ZONE = "AvoidZone"
    AVOID_REGION = "AvoidRegion"
    DECLARE_REGION_LOST = "DeclareRegionLost"
    PAUSE_AUTOSCALER = "PauseAutoscaler"
    PAUSE_REPAIR = "PauseRepair"
    APPROVE_REPAIR = "ApproveRepair"
    EMERGENCY_QUOTA = "EmergencyQuota"
    RAISE_PRIORITY = "RaisePriority"
    PIN_POLICY = "PinPolicy"
    SHRINK_BUDGET = "ShrinkBudget"


PLACING = frozenset(
    {
        OverrideKind.AVOID_ZONE,
        OverrideKind.AVOID_REGION,
        OverrideKind.EMERGENCY_QUOTA,
        OverrideKind.RAISE_PRIORITY,
        OverrideKind.PIN_POLICY,
    }
)
"""The kinds that bear on where work is placed."""


class OverrideScope(Part, frozen=True):
    region: str = ""
    zone: str = ""
    tenant: str = ""
    workload: str = ""


class BreakGlass(Part, frozen=True):
    """Where an override was given without the global cell. In the record that the global cell is sent: also which one
    it was, when it was asked for, and for how long; `ttlSeconds` is then what was left of it."""

    region: str
    uid: str = ""
    asked_at: str = ""
    asked_seconds: float = 0.0


class OverrideSpec(Part, frozen=True):
    kind: OverrideKind
    scope: OverrideScope = msgspec.field(default_factory=OverrideScope)
    reason: str = ""
    requester: str = ""
    approver: str = ""
    revoked: bool = False
    ttl_seconds: float = shown(3600.0)
    quota: dict[str, Amount] = {}
    rank: int = 0
    policy_revision: str = ""
    break_glass: BreakGlass | None = None


class OverrideStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    phase: str = ""
    expires_at: str = ""


class Override(Object, frozen=True):
    spec: OverrideSpec
    status: OverrideStatus = msgspec.field(default_factory=OverrideStatus)


def break_glass_prefix(region: str) -> str:
    return f"{BREAK_GLASS}{region}-"


def is_break_glass(name: str) -> bool:
    """Whether the home of an override of this name is a region."""
    return name.startswith(BREAK_GLASS)


def acts(override: Override, now: float) -> bool:
    """Whether an override is in force: accepted, approved where that is needed, and not past its deadline (S8)."""
    if override.metadata.terminating or override.status.phase != ACTIVE or override.spec.revoked:
        return False
    return bool(override.status.expires_at) and now < parse_time(override.status.expires_at)


def is_about(override: Override, *, region: str, tenant: str = "", workload: str = "") -> bool:
    """Whether its scope covers this work here; what the scope leaves out covers everything. Copies of every override
    are in every region: whoever acts on one asks this as well."""
    scope = override.spec.scope
    inside = scope.region in ("", region) and scope.tenant in ("", tenant)
    return inside and scope.workload in ("", workload)


def validate_override(override: Override, old: Override | None) -> Causes:
    spec = override.spec
    if not spec.reason.strip():
        yield required("spec.reason", "say why, for whoever reads this after the incident")
    yield from check_range("spec.ttlSeconds", spec.ttl_seconds, 1, MAX_TTL_S)
    scope = spec.scope
    needs = {
        OverrideKind.AVOID_ZONE: ("region", "zone"),
        OverrideKind.AVOID_REGION: ("region",),
        OverrideKind.DECLARE_REGION_LOST: ("region",),
        OverrideKind.EMERGENCY_QUOTA: ("tenant",),
        OverrideKind.SHRINK_BUDGET: ("region",),
        OverrideKind.RAISE_PRIORITY: ("tenant", "workload"),
    }.get(spec.kind, ())
    for name in needs:
        if not getattr(scope, name):
            yield required(f"spec.scope.{name}", f"{spec.kind} needs it")
    if spec.kind is OverrideKind.EMERGENCY_QUOTA and not spec.quota:
        yield required("spec.quota", "how much is added")
    if spec.kind is OverrideKind.PIN_POLICY and not spec.policy_revision:
        yield required("spec.policyRevision")
