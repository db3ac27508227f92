"""RecoveryBudget: recovery slots that a region reserves, and the tenants that may use them."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import Amount
from holdfast.model.recovery import RecoveryProof
from holdfast.model.validation import Causes, check_dns_label, check_range, check_resources, required


class SlotShape(ApiStruct, frozen=True):
    """`count` slots with the same resources. While they cover fewer than `minZones` zones, the budget's condition
    `SlotsAdmitted` is false."""

    resources: dict[str, Amount] = {}
    count: int = visible_default(1)
    min_zones: int = visible_default(1)


class RecoveryBudgetSpec(ApiStruct, frozen=True):
    region: str
    slot_shapes: tuple[SlotShape, ...] = ()
    tenants: tuple[str, ...] = ()
    starts_per_second: float = visible_default(5.0)


class RecoveryBudgetStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    admitted: int = visible_default(0)
    consumed: int = visible_default(0)
    last_proven: RecoveryProof | None = None
    """The newest Recovery that used the budget's slots and met every objective; unset until there is one."""


class RecoveryBudget(Object, frozen=True):
    spec: RecoveryBudgetSpec
    status: RecoveryBudgetStatus = msgspec.field(default_factory=RecoveryBudgetStatus)


def validate_recovery_budget(budget: RecoveryBudget, old: RecoveryBudget | None) -> Causes:
    yield from check_dns_label("spec.region", budget.spec.region)
    if not budget.spec.slot_shapes:
        yield required("spec.slotShapes", "at least one shape with resources and count")
    for index, slot in enumerate(budget.spec.slot_shapes):
        yield from check_resources(f"spec.slotShapes[{index}].resources", slot.resources)
        yield from check_range(f"spec.slotShapes[{index}].count", slot.count, 1, 100_000)
        yield from check_range(f"spec.slotShapes[{index}].minZones", slot.min_zones, 1, 100)
    yield from check_range("spec.startsPerSecond", budget.spec.starts_per_second, 0.1, 10_000)
