"""PriorityClass: priority, the right to preempt, whether the work is reclaimable, and which tenants may use it."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Object, visible_default
from holdfast.model.validation import Causes, check_range, check_subdomain, forbidden, invalid

EVERY_TENANT = "*"
# Tenants listed in one class. More are refused; `*` permits all of them.
CLASS_TENANTS_MAX = 1_000


class PriorityClassSpec(ApiStruct, frozen=True):
    priority: int = visible_default(0)
    may_preempt: bool = visible_default(False)
    reclaimable: bool = visible_default(False)
    reassign_after_seconds: float = visible_default(900.0)
    """Services of this class without recovery objective: replicas in a lost region are assigned elsewhere this long
    after the loss, unless the workload states a time of its own (`spec.reassign`). 0: never."""
    description: str = ""
    tenants: tuple[str, ...] = ()

    def permits(self, tenant: str) -> bool:
        """Whether users of the tenant may name this class in their Workloads. Operators always may."""
        return tenant in self.tenants or EVERY_TENANT in self.tenants


class PriorityClassStatus(ApiStruct, frozen=True):
    observed_generation: int = 0


class PriorityClass(Object, frozen=True):
    spec: PriorityClassSpec = msgspec.field(default_factory=PriorityClassSpec)
    status: PriorityClassStatus = msgspec.field(default_factory=PriorityClassStatus)


def validate_priority_class(priority: PriorityClass, old: PriorityClass | None) -> Causes:
    yield from check_range("spec.priority", priority.spec.priority, -1_000_000, 1_000_000)
    yield from check_range("spec.reassignAfterSeconds", priority.spec.reassign_after_seconds, 0, 7 * 86400)
    if len(priority.spec.tenants) > CLASS_TENANTS_MAX:
        yield invalid("spec.tenants", f"{len(priority.spec.tenants)} tenants", f"at most {CLASS_TENANTS_MAX}, or *")
    for index, tenant in enumerate(priority.spec.tenants[:CLASS_TENANTS_MAX]):
        if tenant != EVERY_TENANT:
            yield from check_subdomain(f"spec.tenants[{index}]", tenant)
    if priority.spec.reclaimable and priority.spec.may_preempt:
        yield forbidden("spec.mayPreempt", "reclaimable work cannot preempt other work")
    if old is not None and old.spec.reclaimable != priority.spec.reclaimable:
        yield forbidden("spec.reclaimable", "immutable, because running work is accounted by it; create another class")
