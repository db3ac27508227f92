"""PriorityClass: priority, the right to preempt, and whether the work is reclaimable."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Object, visible_default
from holdfast.model.validation import Causes, check_range, forbidden


class PriorityClassSpec(ApiStruct, frozen=True):
    priority: int = visible_default(0)
    may_preempt: bool = visible_default(False)
    reclaimable: bool = visible_default(False)
    description: str = ""


class PriorityClassStatus(ApiStruct, frozen=True):
    observed_generation: int = 0


class PriorityClass(Object, frozen=True):
    spec: PriorityClassSpec = msgspec.field(default_factory=PriorityClassSpec)
    status: PriorityClassStatus = msgspec.field(default_factory=PriorityClassStatus)


def validate_priority_class(priority: PriorityClass, old: PriorityClass | None) -> Causes:
    yield from check_range("spec.priority", priority.spec.priority, -1_000_000, 1_000_000)
    if priority.spec.reclaimable and priority.spec.may_preempt:
        yield forbidden("spec.mayPreempt", "reclaimable work cannot preempt other work")
    if old is not None and old.spec.reclaimable != priority.spec.reclaimable:
        yield forbidden("spec.reclaimable", "immutable, because running work is accounted by it; create another class")
