"""RecoverySlot: recovery capacity reserved on one node. It is placed like a replica and runs nothing."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.quantity import Amount
from holdfast.model.validation import Causes, check_resources, forbidden


class RecoverySlotSpec(ApiStruct, frozen=True):
    budget: str
    node: str
    shape_index: int = visible_default(0)
    zone: str = ""
    resources: dict[str, Amount] = {}


class SlotAdmissionStatus(ApiStruct, frozen=True):
    """The authority's response. The slot occupies capacity of its node only after it was admitted."""

    admitted: bool = visible_default(False)
    reason: str = ""
    message: str = ""
    at: str = ""


class SlotConsumer(ApiStruct, frozen=True):
    """The claim that uses the slot now. Written by the authority."""

    replica_uid: str = ""
    claim: str = ""
    recovery: str = ""
    at: str = ""


class RecoverySlotStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    admission: SlotAdmissionStatus | None = None
    consumer: SlotConsumer | None = None


class RecoverySlot(Object, frozen=True):
    spec: RecoverySlotSpec
    status: RecoverySlotStatus = msgspec.field(default_factory=RecoverySlotStatus)


def is_admitted(hold: RecoverySlot) -> bool:
    """Whether the slot occupies capacity: admitted by the authority and not being deleted."""
    return hold.status.admission is not None and hold.status.admission.admitted and not hold.metadata.terminating


def is_rejected(hold: RecoverySlot) -> bool:
    return hold.status.admission is not None and not hold.status.admission.admitted


def validate_recovery_slot(hold: RecoverySlot, old: RecoverySlot | None) -> Causes:
    yield from check_resources("spec.resources", hold.spec.resources)
    if old is not None and old.spec != hold.spec:
        yield forbidden("spec", "immutable; delete the slot and create another")
