"""Override: a person's scoped, expiring instruction. What it does, where, why, who asked, and when it ends.

Its home is the global cell. One whose name begins with `break-glass-REGION-` has its home in that region instead: it is
given there while the global cell is out of reach, and the link carries a record of it to the global cell afterwards.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import Amount
from holdfast.model.times import parse_time
from holdfast.model.validation import Causes, check_range, forbidden, required

MAX_TTL_S = 24 * 3600.0
PENDING, ACTIVE, EXPIRED, REVOKED = "Pending", "Active", "Expired", "Revoked"
BREAK_GLASS_PREFIX = "break-glass-"


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


PLACEMENT_KINDS = frozenset(
    {
        OverrideKind.AVOID_ZONE,
        OverrideKind.AVOID_REGION,
        OverrideKind.EMERGENCY_QUOTA,
        OverrideKind.RAISE_PRIORITY,
        OverrideKind.PIN_POLICY,
    }
)
"""The kinds that bear on where work is placed."""
AVOIDANCES = frozenset({OverrideKind.AVOID_ZONE, OverrideKind.AVOID_REGION})
"""The kinds that keep new work away from a zone or a region. Work that is already bound stays."""


class OverrideScope(ApiStruct, frozen=True):
    region: str = ""
    zone: str = ""
    tenant: str = ""
    workload: str = ""


_SCOPE_FIELDS: dict[OverrideKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    OverrideKind.AVOID_ZONE: (("region", "zone"), ("tenant", "workload")),
    OverrideKind.AVOID_REGION: (("region",), ("tenant", "workload")),
    OverrideKind.DECLARE_REGION_LOST: (("region",), ()),
    OverrideKind.PAUSE_AUTOSCALER: ((), ("region", "tenant", "workload")),
    OverrideKind.PAUSE_REPAIR: ((), ("region", "tenant", "workload")),
    OverrideKind.APPROVE_REPAIR: ((), ("region", "tenant", "workload")),
    OverrideKind.EMERGENCY_QUOTA: (("tenant",), ("region",)),
    OverrideKind.RAISE_PRIORITY: (("tenant", "workload"), ("region",)),
    OverrideKind.PIN_POLICY: ((), ("region",)),
    OverrideKind.SHRINK_BUDGET: (("region",), ("tenant", "workload")),
}
"""By kind: the scope fields an override must have, and those it may have. Any other field would be ignored."""


class BreakGlass(ApiStruct, frozen=True):
    """Where an override was given without the global cell. In the record that the global cell is sent: also which one
    it was, when it was asked for, and for how long; `ttlSeconds` is then what was left of it."""

    region: str
    uid: str = ""
    requested_at: str = ""
    requested_ttl_seconds: float = 0.0


class OverrideSpec(ApiStruct, frozen=True):
    kind: OverrideKind
    scope: OverrideScope = msgspec.field(default_factory=OverrideScope)
    reason: str = ""
    requester: str = ""
    approver: str = ""
    revoked: bool = False
    ttl_seconds: float = visible_default(3600.0)
    quota: dict[str, Amount] = {}
    priority: int = 0
    policy_revision: str = ""
    break_glass: BreakGlass | None = None


class OverrideStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    phase: str = ""
    expires_at: str = ""


class Override(Object, frozen=True):
    spec: OverrideSpec
    status: OverrideStatus = msgspec.field(default_factory=OverrideStatus)


def break_glass_prefix(region: str) -> str:
    return f"{BREAK_GLASS_PREFIX}{region}-"


def is_break_glass(name: str) -> bool:
    """Whether the home of an override of this name is a region."""
    return name.startswith(BREAK_GLASS_PREFIX)


def is_in_force(override: Override, now: float) -> bool:
    """Whether an override is in force: accepted, approved where that is needed, and not past its deadline (S8)."""
    if override.metadata.terminating or override.status.phase != ACTIVE or override.spec.revoked:
        return False
    return bool(override.status.expires_at) and now < parse_time(override.status.expires_at)


def is_in_scope(override: Override, *, region: str | None, tenant: str | None, workload: str | None) -> bool:
    """Whether the scope covers this region, tenant and workload. A field that the scope leaves empty covers all of
    them. None asks about any; an empty string asks about all of them, which only an empty scope field covers.

    Every region has a copy of every override, so every reader of one asks this and `acts`.
    """
    scope = override.spec.scope
    return (
        (region is None or scope.region in ("", region))
        and (tenant is None or scope.tenant in ("", tenant))
        and (workload is None or scope.workload in ("", workload))
    )


def in_force(overrides: Iterable[Override], kind: OverrideKind, now: float) -> list[Override]:
    """The overrides of one kind that act now, whatever their scope."""
    return [o for o in overrides if o.spec.kind is kind and is_in_force(o, now)]


def has_emergency_quota(overrides: Iterable[Override], *, region: str, tenant: str, now: float) -> bool:
    """Whether an override gives the tenant more than its quota in the region. An emergency grant without one is over,
    whatever its own end says: an override expires on a monotonic clock, a grant at a time of day."""
    found = in_force(overrides, OverrideKind.EMERGENCY_QUOTA, now)
    return any(is_in_scope(o, region=region, tenant=tenant, workload=None) for o in found)


def active_avoidances(overrides: Iterable[Override], now: float) -> tuple[Override, ...]:
    """The overrides that keep new work away from somewhere now. Read once, then asked about each place."""
    return tuple(o for o in overrides if o.spec.kind in AVOIDANCES and is_in_force(o, now))


def avoidance_of(
    avoidances: Iterable[Override], *, region: str, zone: str, tenant: str, workload: str
) -> Override | None:
    """The first of these active avoidances that keeps new replicas of the workload out of the zone."""
    for override in avoidances:
        closes_zone = override.spec.kind is OverrideKind.AVOID_REGION or override.spec.scope.zone == zone
        if closes_zone and is_in_scope(override, region=region, tenant=tenant, workload=workload):
            return override
    return None


def validate_override(override: Override, old: Override | None) -> Causes:
    spec = override.spec
    if not spec.reason.strip():
        yield required("spec.reason", "say why, for whoever reads this after the incident")
    yield from check_range("spec.ttlSeconds", spec.ttl_seconds, 1, MAX_TTL_S)
    needed, optional = _SCOPE_FIELDS[spec.kind]
    for name in OverrideScope.__struct_fields__:
        given = bool(getattr(spec.scope, name))
        if name in needed and not given:
            yield required(f"spec.scope.{name}", f"{spec.kind} needs it")
        if given and name not in (*needed, *optional):
            yield forbidden(f"spec.scope.{name}", f"{spec.kind} cannot be limited to a {name}")
    if spec.kind is OverrideKind.EMERGENCY_QUOTA and not spec.quota:
        yield required("spec.quota", "how much is added")
    if spec.kind is OverrideKind.PIN_POLICY and not spec.policy_revision:
        yield required("spec.policyRevision")
