"""RecoverySlot: recovery capacity reserved on one node. It is placed like a replica and runs nothing."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.quantity import Amount
from holdfast.model.validation import Causes, check_resources, forbidden


class HoldSpec(Part, frozen=True):
    budget: str
    node: str
    slot: int = shown(0)
    zone: str = ""
    resources: dict[str, Amount] = {}


class KeptBlock(Part, frozen=True):
    """The authority's response. The slot occupies capacity of its node only after it was admitted."""

    kept: bool = shown(False)
    reason: str = ""
    message: str = ""
    at: str = ""


class DrawBlock(Part, frozen=True):
    """The claim that uses the slot now. Written by the authority."""

    replica_uid: str = ""
    claim: str = ""
    recovery: str = ""
    at: str = ""


class HoldStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    kept: KeptBlock | None = None
    draw: DrawBlock | None = None


class Hold(Object, frozen=True):
    spec: HoldSpec
    status: HoldStatus = msgspec.field(default_factory=HoldStatus)


def is_kept(hold: Hold) -> bool:
    """Whether the slot occupies capacity: admitted by the authority and not being deleted."""
    return hold.status.kept is not None and hold.status.kept.kept and not hold.metadata.terminating


def is_refused(hold: Hold) -> bool:
    return hold.status.kept is not None and not hold.status.kept.kept


def validate_hold(hold: Hold, old: Hold | None) -> Causes:
    yield from check_resources("spec.resources", hold.spec.resources)
    if old is not None and old.spec != hold.spec:
        yield forbidden("spec", "immutable; delete the slot and create another")
