"""Override: a human exception with scope, reason, requester and expiry.

Its home is the global cell. A break-glass override (name `break-glass-REGION-…`) has its home in that region: it is
created there while the global cell is unreachable, and the link later sends a record of it to the global cell.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from math import inf

import msgspec

from holdfast.model import limits
from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import Amount
from holdfast.model.template import RestartPolicy, Template
from holdfast.model.times import parse_time
from holdfast.model.validation import Causes, check_range, forbidden, required

# Longest lifetime of an Override. A longer one is refused; an exception that lasts belongs into the spec.
MAX_TTL_S = 24 * 3600.0
# Longest lifetime of the Override of a MaintenanceWindow: the longest window and the longest notice before it.
MAX_MAINTENANCE_TTL_S = 15 * 24 * 3600.0
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
    CONFIRM_DELETION = "ConfirmDeletion"
    PAUSE_REBALANCE = "PauseRebalance"


PLACEMENT_KINDS = frozenset(
    {
        OverrideKind.AVOID_ZONE,
        OverrideKind.AVOID_REGION,
        OverrideKind.EMERGENCY_QUOTA,
        OverrideKind.RAISE_PRIORITY,
        OverrideKind.PIN_POLICY,
    }
)
"""Kinds that affect placement."""
AVOIDANCES = frozenset({OverrideKind.AVOID_ZONE, OverrideKind.AVOID_REGION})
"""Kinds that forbid new work in a zone or region. Bound work stays."""


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
    OverrideKind.CONFIRM_DELETION: (("region",), ("tenant", "workload")),
    OverrideKind.PAUSE_REBALANCE: ((), ("region", "tenant", "workload")),
}
"""By kind: required and optional scope fields. Any other field is refused."""


class BreakGlass(ApiStruct, frozen=True):
    """The region that created the override without the global cell.

    In the record at the global cell, `uid` identifies the region's override, `requestedAt` and `requestedTtlSeconds`
    are its original values, and `ttlSeconds` is the time that was left.
    """

    region: str
    uid: str = ""
    requested_at: str = ""
    requested_ttl_seconds: float = 0.0
    insisted: bool = False
    """`insisted`: the requester stated that the global cell does not answer while the region's link still had contact.
    The reason is in `spec.reason`."""


class PlannedMaintenance(ApiStruct, frozen=True):
    """The occurrence of a MaintenanceWindow that an avoidance stands for. Written by the controller maintenance.

    Before `startsAt` the avoidance keeps away only replicas that may still be there then (`stays_until_s`). With
    `nodes` it is about these nodes alone. `drain`: from `startsAt` on, the nodes are drained.
    """

    window: str
    starts_at: str
    nodes: tuple[str, ...] = ()
    drain: bool = False


class OverrideSpec(ApiStruct, frozen=True):
    kind: OverrideKind
    scope: OverrideScope = msgspec.field(default_factory=OverrideScope)
    reason: str = ""
    requester: str = ""
    approver: str = ""
    revoked: bool = False
    ttl_seconds: float = visible_default(3600.0)
    quota: dict[str, Amount] = {}
    drain_seconds: float = 0.0
    """EmergencyQuota: time after its end within which usage above the quota is drained; 0: OVER_QUOTA_DRAIN_S.
    Until then evictions respect disruption budgets; after it they do not."""
    priority: int = 0
    policy_revision: str = ""
    break_glass: BreakGlass | None = None
    maintenance: PlannedMaintenance | None = None


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
    """Whether an override of this name has its home in a region."""
    return name.startswith(BREAK_GLASS_PREFIX)


def is_in_force(override: Override, now: float) -> bool:
    """Whether an override is in force: active, not revoked and not expired (S8)."""
    if override.metadata.terminating or override.status.phase != ACTIVE or override.spec.revoked:
        return False
    return bool(override.status.expires_at) and now < parse_time(override.status.expires_at)


def is_in_scope(override: Override, *, region: str | None, tenant: str | None, workload: str | None) -> bool:
    """Whether the scope covers this region, tenant and workload. An empty scope field covers all of them. An argument
    None is not checked. An argument "" means all, which only an empty scope field covers.

    Every region has a copy of every override, so every reader must check this and `is_in_force`.
    """
    scope = override.spec.scope
    return (
        (region is None or scope.region in ("", region))
        and (tenant is None or scope.tenant in ("", tenant))
        and (workload is None or scope.workload in ("", workload))
    )


def in_force(overrides: Iterable[Override], kind: OverrideKind, now: float) -> list[Override]:
    """Overrides of one kind that are in force, whatever their scope."""
    return [o for o in overrides if o.spec.kind is kind and is_in_force(o, now)]


def is_deletion_confirmed(
    overrides: Iterable[Override], *, region: str, tenant: str, workload: str, now: float
) -> bool:
    """Whether an override in force confirms that work without records is to be stopped. Empty `tenant` and `workload`
    mean all work of the region."""
    confirming = in_force(overrides, OverrideKind.CONFIRM_DELETION, now)
    return any(is_in_scope(o, region=region, tenant=tenant, workload=workload) for o in confirming)


def has_emergency_quota(overrides: Iterable[Override], *, region: str, tenant: str, now: float) -> bool:
    """Whether an override in force adds emergency quota for the tenant in the region. Without one, an emergency grant
    has ended even before its `endsAt`: the override expires on a monotonic clock, the grant on a wall clock."""
    found = in_force(overrides, OverrideKind.EMERGENCY_QUOTA, now)
    return any(is_in_scope(o, region=region, tenant=tenant, workload=None) for o in found)


def drain_deadline_s(override: Override) -> float:
    """When usage above the quota is evicted whatever disruption budgets say, after an emergency quota has ended."""
    return parse_time(override.status.expires_at) + (override.spec.drain_seconds or limits.OVER_QUOTA_DRAIN_S)


def over_quota_deadline_s(overrides: Iterable[Override], *, region: str, tenant: str, now: float) -> float | None:
    """The latest drain deadline of the tenant's ended emergency quotas in the region; None if none has ended."""
    return max(
        (
            drain_deadline_s(o)
            for o in overrides
            if o.spec.kind is OverrideKind.EMERGENCY_QUOTA
            and o.status.expires_at
            and not is_in_force(o, now)
            and is_in_scope(o, region=region, tenant=tenant, workload=None)
        ),
        default=None,
    )


def active_avoidances(overrides: Iterable[Override], now: float) -> tuple[Override, ...]:
    """Avoidances in force. Computed once per decision, then checked for each zone with `avoidance_of`."""
    return tuple(o for o in overrides if o.spec.kind in AVOIDANCES and is_in_force(o, now))


def stays_until_s(template: Template, max_unavailable: int, active_until: str, now: float) -> float:
    """The latest time at which a replica that is placed now may still be there if nobody forces it out.

    - A replica that ends by itself (restartPolicy OnFailure or Never) loses its work if it moves. It stays until its
      `activeDeadlineSeconds` are over, without them for ever.
    - Any other replica can be moved at once, unless its disruption budget never lets it go: then it stays for ever.
    """
    if template.restart_policy is not RestartPolicy.ALWAYS:
        return parse_time(active_until) if active_until else inf
    return now if max_unavailable else inf


def has_begun_by(avoidance: Override, stays_until_s: float) -> bool:
    """Whether a replica that stays until then would meet the avoidance. Only planned maintenance begins later."""
    planned = avoidance.spec.maintenance
    return planned is None or stays_until_s >= parse_time(planned.starts_at)


def avoidance_of(
    avoidances: Iterable[Override],
    *,
    region: str,
    zone: str,
    tenant: str,
    workload: str,
    stays_until_s: float,
    node: str = "",
) -> Override | None:
    """The first avoidance that forbids a new replica of the workload on the node, or without `node` in all of the zone;
    None if there is none. `stays_until_s` is that of the replica."""
    for override in avoidances:
        planned = override.spec.maintenance
        closes_zone = override.spec.kind is OverrideKind.AVOID_REGION or override.spec.scope.zone == zone
        closes_node = planned is None or not planned.nodes or node in planned.nodes
        if (
            closes_zone
            and closes_node
            and is_in_scope(override, region=region, tenant=tenant, workload=workload)
            and has_begun_by(override, stays_until_s)
        ):
            return override
    return None


def maintenance_of_region(overrides: Iterable[Override], region: str, now: float) -> Override | None:
    """The planned maintenance of the whole region that goes on now; None if there is none."""
    for override in overrides:
        planned = override.spec.maintenance
        whole = planned is not None and override.spec.kind is OverrideKind.AVOID_REGION and not planned.nodes
        if (
            whole
            and override.spec.scope.region == region
            and is_in_force(override, now)
            and has_begun_by(override, now)
        ):
            return override
    return None


def maintenance_of_node(
    overrides: Iterable[Override], *, region: str, zone: str, node: str, now: float
) -> Override | None:
    """The planned maintenance that drains the node now; None if there is none."""
    for override in overrides:
        planned, scope = override.spec.maintenance, override.spec.scope
        if planned is None or not planned.drain or scope.region != region or scope.zone not in ("", zone):
            continue
        if (not planned.nodes or node in planned.nodes) and is_in_force(override, now) and has_begun_by(override, now):
            return override
    return None


def validate_override(override: Override, old: Override | None) -> Causes:
    spec = override.spec
    if not spec.reason.strip():
        yield required("spec.reason", "explain why, for the review after the incident")
    yield from check_range(
        "spec.ttlSeconds", spec.ttl_seconds, 1, MAX_TTL_S if spec.maintenance is None else MAX_MAINTENANCE_TTL_S
    )
    if spec.maintenance is not None and spec.kind not in AVOIDANCES:
        yield forbidden("spec.maintenance", "only an AvoidRegion or AvoidZone stands for planned maintenance")
    needed, optional = _SCOPE_FIELDS[spec.kind]
    for name in OverrideScope.__struct_fields__:
        given = bool(getattr(spec.scope, name))
        if name in needed and not given:
            yield required(f"spec.scope.{name}", f"required for {spec.kind}")
        if given and name not in (*needed, *optional):
            yield forbidden(f"spec.scope.{name}", f"{spec.kind} cannot be limited to a {name}")
    if spec.kind is OverrideKind.EMERGENCY_QUOTA and not spec.quota:
        yield required("spec.quota", "the resources to add, for example {cpu: 8}")
    yield from check_range("spec.drainSeconds", spec.drain_seconds, 0, MAX_TTL_S)
    if spec.drain_seconds and spec.kind is not OverrideKind.EMERGENCY_QUOTA:
        yield forbidden("spec.drainSeconds", "only an EmergencyQuota leaves usage to drain")
    if spec.kind is OverrideKind.PIN_POLICY and not spec.policy_revision:
        yield required("spec.policyRevision")
    if old is not None:
        yield from _prolonged(override.status, old.status)


def _prolonged(new: OverrideStatus, old: OverrideStatus) -> Causes:
    """S8: the end of an override only moves earlier, and an ended override stays ended."""
    if old.expires_at and new.expires_at and parse_time(new.expires_at) > parse_time(old.expires_at):
        yield forbidden("status.expiresAt", f"must not be later than {old.expires_at}, found {new.expires_at}")
    if old.phase in (EXPIRED, REVOKED) and new.phase != old.phase:
        yield forbidden("status.phase", f"an override that is {old.phase} cannot become {new.phase or 'new'}")
