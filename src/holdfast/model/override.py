"""Override: a person's scoped, expiring instruction. What it does, where, why, who asked, and when it ends."""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.quantity import Amount
from holdfast.model.validation import Causes, check_range, required

MAX_TTL_S = 24 * 3600.0


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


class OverrideScope(Part, frozen=True):
    region: str = ""
    zone: str = ""
    tenant: str = ""
    workload: str = ""


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


class OverrideStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    phase: str = ""
    expires_at: str = ""


class Override(Object, frozen=True):
    spec: OverrideSpec
    status: OverrideStatus = msgspec.field(default_factory=OverrideStatus)


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
