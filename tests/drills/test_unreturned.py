"""The cleanup check lists every resource that an incident has not returned, and nothing else."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.factories import assignment, binding, bound_status, meta, replica

from holdfast.drills.platform_observer import Item
from holdfast.drills.unreturned_resources import unreturned_resources
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.binding import Reservation, ReservationSpec, ReservationStatus
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Condition, Object
from holdfast.model.override import ACTIVE, EXPIRED, Override, OverrideKind, OverrideSpec, OverrideStatus
from holdfast.model.quantity import Amount
from holdfast.model.quota import Grant, GrantClass, GrantSpec, GrantStatus, Quota, QuotaSpec, QuotaStatus
from holdfast.model.recovery import Recovery, RecoveryPhase, RecoverySpec, RecoveryStatus
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec, RecoverySlotStatus, SlotConsumer

REGION = "us-east"


class StoredObjects:
    """The objects of a global cell and one region, as their APIs return them."""

    def __init__(self, *items: Object, reachable: bool = True) -> None:
        self._items = items
        self._reachable = reachable

    @property
    def regions(self) -> Sequence[str]:
        return (REGION,)

    def list(self, plural: str, cell: str = "global") -> builtins.list[Item]:
        in_region = plural in ("recoveryslots", "bindings", "reservations")
        if in_region != (cell == REGION):
            return []
        return [msgspec.to_builtins(item) for item in self._items if BY_NAME[type(item).__name__].plural == plural]

    def try_list(self, plural: str, cell: str) -> builtins.list[Item] | None:
        return self.list(plural, cell) if self._reachable else None


def recovery(phase: RecoveryPhase) -> Recovery:
    return Recovery(metadata=meta("r"), spec=RecoverySpec(region="a"), status=RecoveryStatus(phase=phase))


def grant(of_class: GrantClass, limit: str) -> Grant:
    amounts: dict[str, Amount] = {"cpu": limit} if limit else {}
    return Grant(
        metadata=meta("g", "acme"),
        spec=GrantSpec(region=REGION, grant_class=of_class, limit=amounts),
        status=GrantStatus(limit=amounts),
    )


def override(kind: OverrideKind, status: OverrideStatus) -> Override:
    return Override(metadata=meta("o"), spec=OverrideSpec(kind=kind), status=status)


def ended_override(*, reverted: bool) -> Override:
    condition = Condition(type="Reverted", status="True" if reverted else "False")
    return override(OverrideKind.EMERGENCY_QUOTA, OverrideStatus(phase=EXPIRED, conditions=(condition,)))


def quota(*, over: bool) -> Quota:
    condition = Condition(type="OverQuota", status="True" if over else "False")
    return Quota(metadata=meta("quota", "acme"), spec=QuotaSpec(), status=QuotaStatus(conditions=(condition,)))


def slot(consumer: SlotConsumer | None) -> RecoverySlot:
    spec = RecoverySlotSpec(budget="b", node="n1")
    return RecoverySlot(metadata=meta("s"), spec=spec, status=RecoverySlotStatus(consumer=consumer))


BOUND = binding(replica(status=bound_status(name="x")))


def reservation(name: str) -> Reservation:
    spec = ReservationSpec(replica="x", intent=BOUND.spec.intent, node="n1")
    return Reservation(metadata=meta(name, BOUND.metadata.namespace), spec=spec, status=ReservationStatus())


def changed_assignment(**spec: Any) -> Assignment:
    item = assignment()
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, **spec))


CASES: dict[str, tuple[Any, Any, str]] = {
    "open recovery": (recovery(RecoveryPhase.OPEN), recovery(RecoveryPhase.CLOSED), "recovery/r: Open"),
    "recovery assignment": (changed_assignment(purpose=Purpose.RECOVERY), assignment(), "recovery replica(s)"),
    "suspension": (changed_assignment(suspended=True), assignment(), "suspended"),
    "recovery quota": (grant(GrantClass.RECOVERY, "2"), grant(GrantClass.RECOVERY, ""), "Recovery quota"),
    "emergency quota": (grant(GrantClass.EMERGENCY, "2"), grant(GrantClass.NORMAL, "2"), "Emergency quota"),
    "active override": (
        override(OverrideKind.AVOID_ZONE, OverrideStatus(phase=ACTIVE)),
        ended_override(reverted=True),
        "AvoidZone Active",
    ),
    "effect of an override": (ended_override(reverted=False), ended_override(reverted=True), "not reverted yet"),
    "use over quota": (quota(over=True), quota(over=False), "usage exceeds the quota"),
    "consumed slot": (slot(SlotConsumer(replica_uid="u", claim="acme/x.1")), slot(None), "consumed by acme/x.1"),
    "reservation": (reservation("y.1"), reservation(BOUND.metadata.name), "not bound"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_resource_of_an_incident_is_listed_until_it_is_returned(case: str) -> None:
    unreturned, returned, text = CASES[case]
    (line,) = unreturned_resources(StoredObjects(unreturned, BOUND))
    assert text in line
    assert unreturned_resources(StoredObjects(returned, BOUND)) == []


def test_unreachable_region_is_listed_as_not_checked() -> None:
    (line,) = unreturned_resources(StoredObjects(reachable=False))
    assert line == f"region/{REGION}: unreachable, not checked"
