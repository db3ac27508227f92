"""Quota: a tenant's total resource limit. Grant: the share of it that one region may spend.

A grant counts against the quota until the region acknowledges a lower limit, whether or not the region spends it.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import Amount, Amounts, BadQuantity, amounts, shortfall
from holdfast.model.validation import Causes, check_dns_label, check_range, check_resources, forbidden, required


class GrantClass(enum.StrEnum):
    NORMAL = "Normal"
    RECOVERY = "Recovery"
    EMERGENCY = "Emergency"


class QuotaSpec(ApiStruct, frozen=True):
    hard: dict[str, Amount] = {}
    protected: dict[str, Amount] = {}
    region_caps: dict[str, dict[str, Amount]] = {}
    recovery_allowance: dict[str, Amount] = {}
    pending_cap: int = visible_default(10_000)


class RegionQuotaUsage(ApiStruct, frozen=True):
    region: str
    grant_class: GrantClass = visible_default(GrantClass.NORMAL)
    granted: dict[str, Amount] = {}
    used: dict[str, Amount] = {}
    lease_expired: bool = False


class QuotaStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    granted: dict[str, Amount] = {}
    used: dict[str, Amount] = {}
    regions: tuple[RegionQuotaUsage, ...] = ()


class Quota(Object, frozen=True):
    spec: QuotaSpec = msgspec.field(default_factory=QuotaSpec)
    status: QuotaStatus = msgspec.field(default_factory=QuotaStatus)


class GrantSpec(ApiStruct, frozen=True):
    """The limit that the region should enforce. `epoch` increases with every change.

    `unacknowledgedPeak` is the highest limit of earlier epochs that the region may still enforce, until it acknowledges
    this one. Nothing is spent after `endsAt`. `provisional` is the share of the limit that only provisional work may
    use. If the region is out of contact for longer than such work can run, the share is reclaimed: `reclaimed` is the
    amount, until the region acknowledges `reclaimedEpoch`. `protected` is the region's share of the quota's protected
    part; it limits no spending and changes without an epoch."""

    region: str
    grant_class: GrantClass = visible_default(GrantClass.NORMAL)
    limit: dict[str, Amount] = {}
    unacknowledged_peak: dict[str, Amount] = {}
    provisional: dict[str, Amount] = {}
    protected: dict[str, Amount] = {}
    epoch: int = visible_default(1)
    lease_seconds: float = visible_default(120.0)
    ends_at: str = ""
    reclaimed: dict[str, Amount] = {}
    reclaimed_epoch: int = 0


class GrantStatus(ApiStruct, frozen=True):
    """The region's report: the epoch it applied, the limit it enforces, and its usage."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    acknowledged_epoch: int = visible_default(0)
    limit: dict[str, Amount] = {}
    used: dict[str, Amount] = {}
    renewed_at: str = ""


class Grant(Object, frozen=True):
    spec: GrantSpec
    status: GrantStatus = msgspec.field(default_factory=GrantStatus)


def max_enforced_limit(grant: Grant) -> Amounts:
    """The highest limit that the region may enforce now, even if messages were lost. It counts against the quota.

    The region's report covers all epochs up to the acknowledged one. Any later epoch may or may not have arrived. The
    granted limit always counts: a region restored from a backup acknowledges that it enforces nothing of an epoch, and
    then enforces the limit of the same epoch again.
    """
    most = amounts(grant.status.limit)
    if grant.status.acknowledged_epoch < grant.spec.reclaimed_epoch:
        for name, amount in amounts(grant.spec.reclaimed).items():
            most[name] = max(0, most.get(name, 0) - amount)
    behind = grant.status.acknowledged_epoch < grant.spec.epoch
    for values in (grant.spec.limit, grant.spec.unacknowledged_peak if behind else {}):
        for name, amount in amounts(values).items():
            most[name] = max(most.get(name, 0), amount)
    return most


def grant_name(region: str, grant_class: GrantClass = GrantClass.NORMAL) -> str:
    return f"{region}.{grant_class.value.lower()}"


def validate_quota(quota: Quota, old: Quota | None) -> Causes:
    spec = quota.spec
    if quota.metadata.name != "quota":
        yield forbidden("metadata.name", 'must be "quota"; a tenant has one quota')
    if not spec.hard:
        yield required("spec.hard", "the tenant's limits, for example {cpu: 16, memory: 64Gi}")
    broken = []
    for field, values in (
        ("hard", spec.hard),
        ("protected", spec.protected),
        ("recoveryAllowance", spec.recovery_allowance),
    ):
        found = list(check_resources(f"spec.{field}", values, device_rules=False))
        broken += found
        yield from found
    for region, caps in spec.region_caps.items():
        yield from check_dns_label(f"spec.regionCaps.{region}", region)
        yield from check_resources(f"spec.regionCaps.{region}", caps, device_rules=False)
    if not broken:
        over = shortfall(amounts(spec.protected), amounts(spec.hard))
        for name in over:
            yield forbidden(f"spec.protected.{name}", "must not exceed spec.hard")
    yield from check_range("spec.pendingCap", spec.pending_cap, 0, 10_000_000)


def validate_grant(grant: Grant, old: Grant | None) -> Causes:
    yield from check_dns_label("spec.region", grant.spec.region)
    yield from check_resources("spec.limit", grant.spec.limit, device_rules=False)
    yield from check_resources("spec.provisional", grant.spec.provisional, device_rules=False)
    yield from check_resources("spec.protected", grant.spec.protected, device_rules=False)
    expected = grant_name(grant.spec.region, grant.spec.grant_class)
    if grant.spec.grant_class is not GrantClass.RECOVERY and grant.metadata.name != expected:
        yield forbidden("metadata.name", f"a grant of this region and class is named {expected}")
    if old is not None and old.spec.region != grant.spec.region:
        yield forbidden("spec.region", "immutable")
    if old is not None and grant.spec.epoch < old.spec.epoch:
        yield forbidden("spec.epoch", f"must not decrease; the stored epoch is {old.spec.epoch}")
    try:
        over = shortfall(amounts(grant.spec.provisional), amounts(grant.spec.limit))
    except BadQuantity:
        return
    for name in over:
        yield forbidden(f"spec.provisional.{name}", "must not exceed spec.limit")
