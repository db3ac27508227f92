"""Tenant: the owner of workloads. Also served as core/v1 Namespace, for `kubectl -n`."""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.validation import Causes, check_dns_label, forbidden


class Isolation(enum.StrEnum):
    SHARED = "Shared"
    DEDICATED = "Dedicated"


class TenantSpec(ApiStruct, frozen=True):
    isolation: Isolation = visible_default(Isolation.SHARED)
    description: str = ""


class TenantStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Tenant(Object, frozen=True):
    spec: TenantSpec = msgspec.field(default_factory=TenantSpec)
    status: TenantStatus = msgspec.field(default_factory=TenantStatus)


def is_dedicated(tenant: Tenant | None) -> bool:
    """Whether the tenant runs on nodes of its own only. A tenant that is not known counts as shared."""
    return tenant is not None and tenant.spec.isolation is Isolation.DEDICATED


def validate_tenant(tenant: Tenant, old: Tenant | None) -> Causes:
    yield from check_dns_label("metadata.name", tenant.metadata.name)
    if old is not None and old.spec.isolation is not tenant.spec.isolation:
        yield forbidden("spec.isolation", "immutable; create another tenant")
