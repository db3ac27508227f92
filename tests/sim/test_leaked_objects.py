"""The leaked-objects checker."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import TEMPLATE, assignment, binding, bound_status, meta, replica, serving_status, workload

from holdfast.model.assignment import Purpose
from holdfast.model.endpoint import Address, Endpoint, EndpointSpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, OwnerReference
from holdfast.model.override import ACTIVE, EXPIRED, Override, OverrideKind, OverrideSpec, OverrideStatus
from holdfast.model.recovery import Recovery, RecoveryPhase, RecoverySpec, RecoveryStatus
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec, RecoverySlotStatus, SlotConsumer
from holdfast.model.replica import PlacementBlock, ReplicaStatus
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.times import micro_text
from holdfast.sim.checkers.leaked_objects import EXPIRY_WRITE_MAX_S, leaked_objects

NOW_S = 1_800_000_000.0
RUNNING = replica(1, status=bound_status(name="api-1"))
CLAIM = binding(RUNNING)


def found(*items: Object, cell: str = "east", invariant: str = "leak") -> list[str]:
    state = {kind_of(type(i)).store_key(i.metadata.namespace, i.metadata.name): i for i in items}
    return [
        what
        for where, (broken, what, _) in leaked_objects({cell: state}, NOW_S)
        if (where, broken) == (cell, invariant)
    ]


def broken_chain(*items: Object, cell: str = "east") -> list[str]:
    return found(*items, cell=cell, invariant="chain")


def slot(claim: str) -> RecoverySlot:
    status = RecoverySlotStatus(consumer=SlotConsumer(replica_uid=RUNNING.uid, claim=claim) if claim else None)
    return RecoverySlot(metadata=meta("kept-1"), spec=RecoverySlotSpec(budget="kept", node="n1"), status=status)


def override(ended_s: float, phase: str = ACTIVE) -> Override:
    spec = OverrideSpec(kind=OverrideKind.PAUSE_REPAIR, reason="an incident")
    return Override(
        metadata=meta("pause"), spec=spec, status=OverrideStatus(phase=phase, expires_at=micro_text(NOW_S - ended_s))
    )


def request_for(uid: str) -> SchedulingRequest:
    members = (RequestMember(name="api-1", uid=uid),)
    spec = SchedulingRequestSpec(
        workload="api", assignment="api-east", revision="r", template=TEMPLATE, members=members
    )
    return SchedulingRequest(metadata=meta("ask", "acme"), spec=spec)


def recovery(phase: RecoveryPhase) -> Recovery:
    return Recovery(metadata=meta("west-1"), spec=RecoverySpec(region="west"), status=RecoveryStatus(phase=phase))


def owned(uid: str) -> Object:
    owner = OwnerReference(api_version="holdfast.dev/v1", kind="Workload", name="api", uid=uid)
    made = workload("owned")
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=(owner,)))


RECOVERY_ASSIGNMENT = assignment(purpose=Purpose.RECOVERY)


def test_objects_in_use_are_not_reported_as_leaked() -> None:
    claim = f"{CLAIM.metadata.namespace}/{CLAIM.metadata.name}"
    items_in_use = (
        RUNNING,
        CLAIM,
        slot(claim),
        request_for(RUNNING.uid),
        override(-60.0),
        workload(),
        owned(workload().uid),
    )
    assert not found(*items_in_use)
    assert not found(slot(""), override(EXPIRY_WRITE_MAX_S - 1.0))
    assert not found(override(3600.0, EXPIRED))
    assert not found(RECOVERY_ASSIGNMENT, recovery(RecoveryPhase.FAILING_BACK), cell="global")


@pytest.mark.parametrize(
    ("items", "cell", "text"),
    [
        ((replica(1, terminating=True),), "east", "still has finalizers: holdfast.dev/release"),
        ((CLAIM,), "east", "is a claim of replica"),
        ((RUNNING, slot("acme/gone.1")), "east", "is consumed by claim acme/gone.1, which is gone"),
        ((RUNNING, request_for("another")), "east", "has no existing member"),
        ((override(EXPIRY_WRITE_MAX_S + 1.0),), "global", "is still Active"),
        ((owned("another"),), "global", "belongs to Workload api, which is gone"),
        ((RECOVERY_ASSIGNMENT, recovery(RecoveryPhase.CLOSED)), "global", "no Recovery is open"),
    ],
    ids=["deleted", "claim", "slot", "request", "override", "dependent", "recovery assignment"],
)
def test_leaked_object_of_each_kind_is_reported(items: tuple[Any, ...], cell: str, text: str) -> None:
    (what,) = found(*items, cell=cell)
    assert text in what


SERVING = replica(1, status=serving_status(name="api-1"))
SERVING_CLAIM = binding(SERVING)
RESERVED = replica(1, status=ReplicaStatus(placement=PlacementBlock(node="n1", reservation="api-1.1")))
BUDGET = RecoveryBudget(metadata=meta("kept"), spec=RecoveryBudgetSpec(region="east"))


def endpoint(uid: str) -> Endpoint:
    address = Address(replica="api-1", uid=uid, node="n1", address="127.0.0.1")
    spec = EndpointSpec(workload="api", region="east", ttl_seconds=60.0, addresses=(address,))
    return Endpoint(metadata=meta("api-east", "acme"), spec=spec)


def test_unbroken_chain_is_not_reported() -> None:
    assert not broken_chain(SERVING, SERVING_CLAIM, endpoint(SERVING.uid), slot(""), BUDGET)
    assert not broken_chain(endpoint(SERVING.uid), SERVING, SERVING_CLAIM, cell="global")


@pytest.mark.parametrize(
    ("items", "what"),
    [
        ((SERVING,), "is placed by Binding api-1.1, which is gone"),
        ((RESERVED,), "is placed by Reservation api-1.1, which is gone"),
        ((slot(""),), "is reserved for RecoveryBudget kept, which is gone"),
        ((endpoint("uid-of-nobody"),), "has the address of api-1, which does not serve"),
        ((endpoint(RUNNING.uid), RUNNING, CLAIM), "has the address of api-1, which does not serve"),
        ((endpoint(SERVING.uid), SERVING), "has the address of api-1, which does not serve"),
    ],
)
def test_each_broken_link_of_the_chain_is_reported(items: tuple[Object, ...], what: str) -> None:
    assert any(what in line for line in broken_chain(*items))


def test_address_of_a_replica_that_no_region_has_is_reported_in_the_global_cell() -> None:
    assert broken_chain(endpoint("uid-of-nobody"), cell="global")
