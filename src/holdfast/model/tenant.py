"""Tenant: the owner of workloads. Also served as core/v1 Namespace, for `kubectl -n`."""

from __future__ import annotations

import enum
import re

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.validation import Causes, check_dns_label, forbidden, invalid

_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


class Isolation(enum.StrEnum):
    SHARED = "Shared"
    DEDICATED = "Dedicated"


class TenantSpec(ApiStruct, frozen=True):
    isolation: Isolation = visible_default(Isolation.SHARED)
    description: str = ""
    allowed_users: tuple[str, ...] = ()
    """`allowedUsers` are the users of nodes that templates of the tenant may name. A node must allow them too. Without
    `user` each task has a user of its own."""


class TenantStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Tenant(Object, frozen=True):
    spec: TenantSpec = msgspec.field(default_factory=TenantSpec)
    status: TenantStatus = msgspec.field(default_factory=TenantStatus)


def is_dedicated(tenant: Tenant | None) -> bool:
    """Whether the tenant runs on nodes of its own only. A tenant that is not known counts as shared."""
    return tenant is not None and tenant.spec.isolation is Isolation.DEDICATED


def user_refusal(tenant: Tenant | None, user: str) -> str:
    """Why a template of the tenant may not name this user; empty if it may."""
    allowed = tenant.spec.allowed_users if tenant is not None else ()
    if not user or user in allowed:
        return ""
    named = ", ".join(allowed) or "none"
    return (
        f"the tenant may not choose this user (allowed: {named}); leave it out, and each task has a user of its own, "
        "or an operator adds it to spec.allowedUsers of the tenant"
    )


def validate_tenant(tenant: Tenant, old: Tenant | None) -> Causes:
    yield from check_dns_label("metadata.name", tenant.metadata.name)
    for index, user in enumerate(tenant.spec.allowed_users):
        if not _USER.fullmatch(user):
            yield invalid(f"spec.allowedUsers[{index}]", user, "must be the name of a user, such as postgres")
    if old is not None and old.spec.isolation is not tenant.spec.isolation:
        yield forbidden("spec.isolation", "immutable; create another tenant")
