"""Hold: recovery capacity kept on one node, placed like work but running nothing."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import Condition, Object, Part, shown
from holdfast.model.quantity import Amount
from holdfast.model.validation import Causes, check_resources


class HoldSpec(Part, frozen=True):
    budget: str
    node: str
    slot: int = shown(0)
    zone: str = ""
    resources: dict[str, Amount] = {}


class DrawBlock(Part, frozen=True):
    replica_uid: str = ""
    recovery: str = ""
    at: str = ""


class HoldStatus(Part, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    draw: DrawBlock | None = None


class Hold(Object, frozen=True):
    spec: HoldSpec
    status: HoldStatus = msgspec.field(default_factory=HoldStatus)


def validate_hold(hold: Hold, old: Hold | None) -> Causes:
    yield from check_resources("spec.resources", hold.spec.resources)
