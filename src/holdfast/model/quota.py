"""Quota: what a tenant may hold in all, and Grant: the slice of it one region may spend.

Grants are escrow: what a region may spend is counted against the quota until the region says otherwise.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.quantity import Amount, Amounts, BadQuantity, amounts, shortfall
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_range,
    check_resources,
    forbidden,
    required,
)


class GrantClass(enum.StrEnum):
    NORMAL = "Normal"
    RECOVERY = "Recovery"
    EMERGENCY = "Emergency"


class QuotaSpec(Part, frozen=True):
    hard: dict[str, Amount] = {}
    protected: dict[str, Amount] = {}
    region_caps: dict[str, dict[str, Amount]] = {}
    recovery_allowance: dict[str, Amount] = {}
    pending_cap: int = shown(10_000)


class RegionUse(Part, frozen=True):
    region: str
    grant_class: GrantClass = shown(GrantClass.NORMAL)
    granted: dict[str, Amount] = {}
    used: dict[str, Amount] = {}
    frozen: bool = False


class QuotaStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    granted: dict[str, Amount] = {}
    used: dict[str, Amount] = {}
    regions: tuple[RegionUse, ...] = ()


class Quota(Object, frozen=True):
    spec: QuotaSpec = msgspec.field(default_factory=QuotaSpec)
    status: QuotaStatus = msgspec.field(default_factory=QuotaStatus)


class GrantSpec(Part, frozen=True):
    """`limit` is what the region should come to; `epoch` rises with every change. `peak` is the most it may still be
    enforcing from earlier epochs, until it acknowledges this one. Nothing is spent past `endsAt`, in touch or not.

    `provisional` is the part of the limit that only work with a `runUntil` may use: when the region was silent for
    longer than such work can last, it came back by time, and `returned` says how much that was until the region
    acknowledges `returnedEpoch`. `protected` is this region's part of the quota's protected part: what is in use within
    it is nobody else's to evict. It bounds no spending, and changes without an epoch."""

    region: str
    grant_class: GrantClass = shown(GrantClass.NORMAL)
    limit: dict[str, Amount] = {}
    peak: dict[str, Amount] = {}
    provisional: dict[str, Amount] = {}
    protected: dict[str, Amount] = {}
    epoch: int = shown(1)
    lease_seconds: float = shown(120.0)
    ends_at: str = ""
    returned: dict[str, Amount] = {}
    returned_epoch: int = 0


class GrantStatus(Part, frozen=True):
    """The region's word: the epoch it applied, the limit it now enforces, and its use."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    acknowledged_epoch: int = shown(0)
    limit: dict[str, Amount] = {}
    used: dict[str, Amount] = {}
    renewed_at: str = ""


class Grant(Object, frozen=True):
    spec: GrantSpec
    status: GrantStatus = msgspec.field(default_factory=GrantStatus)


def may_enforce(grant: Grant) -> Amounts:
    """The most the region may enforce at this moment, whatever was lost on the way: what counts against the quota.

    Its own word covers everything up to the epoch it names; of later ones any may have arrived.
    """
    most = amounts(grant.status.limit)
    if grant.status.acknowledged_epoch < grant.spec.returned_epoch:
        for name, amount in amounts(grant.spec.returned).items():
            most[name] = max(0, most.get(name, 0) - amount)
    unheard = (grant.spec.limit, grant.spec.peak) if grant.status.acknowledged_epoch < grant.spec.epoch else ()
    for values in unheard:
        for name, amount in amounts(values).items():
            most[name] = max(most.get(name, 0), amount)
    return most


def grant_name(region: str, grant_class: GrantClass = GrantClass.NORMAL) -> str:
    return f"{region}.{grant_class.value.lower()}"


def validate_quota(quota: Quota, old: Quota | None) -> Causes:
    spec = quota.spec
    if quota.metadata.name != "quota":
        yield forbidden("metadata.name", 'a tenant has one quota, named "quota"')
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
            yield forbidden(f"spec.protected.{name}", "the protected part cannot exceed the hard limit")
    yield from check_range("spec.pendingCap", spec.pending_cap, 0, 10_000_000)


def validate_grant(grant: Grant, old: Grant | None) -> Causes:
    yield from check_dns_label("spec.region", grant.spec.region)
    yield from check_resources("spec.limit", grant.spec.limit, device_rules=False)
    yield from check_resources("spec.provisional", grant.spec.provisional, device_rules=False)
    yield from check_resources("spec.protected", grant.spec.protected, device_rules=False)
    expected = grant_name(grant.spec.region, grant.spec.grant_class)
    if grant.spec.grant_class is not GrantClass.RECOVERY and grant.metadata.name != expected:
        yield forbidden("metadata.name", f"this grant is named {expected!r}")
    if old is not None and old.spec.region != grant.spec.region:
        yield forbidden("spec.region", "a grant belongs to one region")
    if old is not None and grant.spec.epoch < old.spec.epoch:
        yield forbidden("spec.epoch", f"epochs only rise; the stored one is {old.spec.epoch}")
    try:
        over = shortfall(amounts(grant.spec.provisional), amounts(grant.spec.limit))
    except BadQuantity:
        return
    for name in over:
        yield forbidden(f"spec.provisional.{name}", "the provisional part cannot exceed the limit")
