"""Stop and free: proof of the stop, release of quota and node resources, and refusal of old attempts."""

from __future__ import annotations

import msgspec
import pytest
from tests.authority.cell import TENANT, WHO, Cell
from tests.expected import present

from holdfast.gate import audit
from holdfast.model import limits
from holdfast.model.assignment import Purpose
from holdfast.model.binding import Binding, DesiredRunState, Reservation, ReservationPhase
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.errors import StaleToken, Unavailable
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import (
    BindItem,
    BindRequest,
    PlacementOutcome,
    ReleaseAction,
    ReleaseItem,
    ReleaseRequest,
)
from holdfast.model.quantity import amounts
from holdfast.model.quota import GrantClass
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec, RecoverySlotStatus, SlotAdmissionStatus
from holdfast.model.replica import Phase
from holdfast.model.workload import Exclusivity

STOP, FREE = ReleaseAction.STOP, ReleaseAction.FREE
NORMAL = (TENANT, GrantClass.NORMAL)


async def test_free_after_acknowledged_stop_releases_claim(cell: Cell) -> None:
    replica = await cell.replica()
    await cell.place(replica)
    assert (await cell.release(replica, STOP)).result is PlacementOutcome.ACCEPTED
    binding = cell.binding("web-0.1")
    assert binding is not None
    assert (binding.spec.desired, binding.spec.stop_reason, binding.spec.stop_grace_seconds) == (
        DesiredRunState.STOP,
        "Drained",
        3.0,
    )
    assert binding.metadata.generation == 2
    assert (await cell.release(replica, STOP)).result is PlacementOutcome.ALREADY
    refused = await cell.release(replica, FREE)
    assert (refused.result, refused.reason) == (PlacementOutcome.REJECTED, "StopNotConfirmed")
    assert refused.facts["desired"] == "Stop" and refused.facts["nodeEpoch"] == 1
    await cell.acknowledge("web-0.1")
    freed = await cell.release(replica, FREE)
    assert (freed.result, freed.attempt) == (PlacementOutcome.ACCEPTED, 2)
    assert not cell.every(Binding) and not cell.every(Reservation)
    placed = cell.get_replica().status.placement
    assert (placed.attempt, placed.node, placed.binding, placed.released_reason) == (2, "", "", "Drained")
    assert not cell.authority.ledger.claims and not cell.authority.ledger.used
    assert (await cell.release(replica, FREE)).result is PlacementOutcome.ALREADY
    cell.check_ledger()


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.SUCCEEDED, Phase.STOPPED])
async def test_free_of_ended_task_needs_no_stop(cell: Cell, phase: Phase) -> None:
    replica = await cell.replica()
    await cell.place(replica)
    await cell.acknowledge("web-0.1", phase)
    assert (await cell.release(replica, FREE)).result is PlacementOutcome.ACCEPTED


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STARTING, Phase.STOPPING, Phase.BACKING_OFF])
async def test_free_of_possibly_running_task_is_refused(cell: Cell, phase: Phase) -> None:
    replica = await cell.replica(exclusive=Exclusivity())
    await cell.place(replica)
    await cell.acknowledge("web-0.1", phase)
    assert (await cell.release(replica, FREE)).reason == "StopNotConfirmed"


async def test_delayed_duplicate_of_old_attempt_is_refused(cell: Cell) -> None:
    replica = await cell.replica()
    old = cell.item(replica)
    await cell.place(replica)
    await cell.acknowledge("web-0.1")
    await cell.release(replica, FREE)
    (late,) = await cell.reserve(old)
    assert (late.result, late.reason, late.facts["current"]) == (PlacementOutcome.REJECTED, "StaleAttempt", 2)
    assert (await cell.place(cell.get_replica())).binding == "web-0.2"
    stale = await cell.release(replica, FREE, attempt=1)
    assert (stale.result, stale.reason) == (PlacementOutcome.REJECTED, "StaleAttempt")
    assert cell.binding("web-0.2") is not None
    other = msgspec.structs.replace(replica, metadata=msgspec.structs.replace(replica.metadata, uid="someone-else"))
    assert (await cell.release(other, FREE)).reason == "ReplicaNotFound"


async def test_free_after_fence_releases_quota_and_keeps_devices_in_use(cell: Cell) -> None:
    await cell.node("g", gpus=1)
    replica = await cell.replica(template={"resources": {"gpu": "1", "cpu": "2"}}, exclusive=Exclusivity())
    await cell.place(replica, "g")
    await cell.change_node("g", fence=0)
    assert (await cell.release(replica, FREE)).reason == "StopNotConfirmed"
    await cell.change_node("g", fence=1)
    assert (await cell.release(replica, FREE)).result is PlacementOutcome.ACCEPTED
    binding = cell.binding("web-0.1")
    assert binding is not None and binding.spec.quota_released and binding.spec.desired is DesiredRunState.STOP
    assert cell.get_replica().status.placement.attempt == 2
    ledger = cell.authority.ledger
    assert NORMAL not in ledger.used and ledger.nodes["g"].device_use == {"gpu-0": {f"{TENANT}/web-0.1": 1000}}
    cell.check_ledger()
    # The node registers with a new epoch; until it reports the stop, the device stays in use.
    assert (await cell.renew("g", 1)).reason == "NodeFenced"
    assert (await cell.renew("g", 0)).epoch == 2
    node = cell.get_node("g")
    running = msgspec.structs.replace(node.status.execution, epoch=2)
    await cell.put(msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, execution=running)))
    moved = cell.get_replica()
    taken = await cell.place(moved, "g")
    assert taken.reason == "InsufficientDevices" and taken.facts["winner"]["claim"] == f"{TENANT}/web-0.1"
    await cell.acknowledge("web-0.1")
    stopped = present(cell.binding("web-0.1"))
    await cell.authority.tick()
    assert cell.binding("web-0.1") is None
    (record,) = (r for _, r in await audit.read_records(cell.store.inner) if r["verb"] == "clean")
    assert [(e["uid"], e["before"]) for e in record["entries"]] == [(stopped.uid, stopped.revision)]
    assert (await cell.place(moved, "g")).result is PlacementOutcome.ACCEPTED
    cell.check_ledger()


async def test_free_on_removed_node_waits_for_lease_expiry(cell: Cell) -> None:
    replica = await cell.replica()
    await cell.place(replica)
    await cell.remove(cell.get_node())
    assert (await cell.release(replica, FREE)).reason == "StopNotConfirmed"
    await cell.clock.advance(21)  # TTL 15 s, drift 1 %, kill bound 5 s
    await cell.authority.tick()
    assert (await cell.release(replica, FREE)).result is PlacementOutcome.ACCEPTED
    await cell.authority.tick()
    assert not cell.every(Binding) and not cell.authority.ledger.claims
    # The old lease has ended; a new node of that name gets another epoch.
    assert (await cell.renew("n1", 1)).reason == "NodeFenced"
    assert (await cell.renew("n1", 0)).epoch == 2


async def test_bind_consumes_reservation(cell: Cell) -> None:
    replica = await cell.replica()
    item = cell.item(replica)
    (reserved,) = await cell.reserve(item, bind=False)
    assert (reserved.result, reserved.reservation, reserved.binding) == (PlacementOutcome.ACCEPTED, "web-0.1", "")
    (reservation,) = cell.every(Reservation)
    assert reservation.status.phase is ReservationPhase.FIRM and reservation.spec.expires_at
    cell.check_ledger()
    request = BindRequest((BindItem(TENANT, "web-0", item.intent),))
    bound = (await cell.authority.bind(WHO, request)).results[0]
    assert (bound.result, bound.binding, bound.node) == (PlacementOutcome.ACCEPTED, "web-0.1", "n1")
    assert cell.every(Reservation)[0].status.phase is ReservationPhase.CONSUMED
    assert (await cell.authority.bind(WHO, request)).results[0].result is PlacementOutcome.ALREADY
    cell.check_ledger()
    await cell.clock.advance(120)
    await cell.authority.tick()
    assert cell.binding("web-0.1") is not None  # consumed reservations do not expire


async def test_bind_after_expiry_is_refused(cell: Cell) -> None:
    replica = await cell.replica()
    item = cell.item(replica)
    bind = BindRequest((BindItem(TENANT, "web-0", item.intent),))
    assert (await cell.authority.bind(WHO, bind)).results[0].reason == "ReservationMissing"
    await cell.reserve(item, bind=False)
    await cell.clock.advance(60)
    late = (await cell.authority.bind(WHO, bind)).results[0]
    assert late.reason == "ReservationExpired" and late.facts["expiresAt"]
    await cell.authority.tick()
    assert not cell.every(Reservation) and not cell.authority.ledger.claims
    placed = cell.get_replica().status.placement
    assert (placed.attempt, placed.released_reason) == (2, "ReservationExpired")
    assert (await cell.authority.bind(WHO, bind)).results[0].reason == "StaleAttempt"


async def test_free_of_unbound_reservation_needs_no_proof(cell: Cell) -> None:
    replica = await cell.replica()
    await cell.reserve(cell.item(replica), bind=False)
    assert (await cell.release(replica, FREE)).result is PlacementOutcome.ACCEPTED
    assert not cell.authority.ledger.claims


async def test_reservation_expires_although_wall_clock_is_set_back(cell: Cell) -> None:
    replica = await cell.replica()
    await cell.reserve(cell.item(replica), bind=False)
    cell.clock.wall_s -= 3600
    await cell.clock.advance(60)
    await cell.authority.tick()
    assert not cell.every(Reservation)


async def test_nominated_reservation_is_promoted_after_victims_are_released(cell: Cell) -> None:
    victim = await cell.replica("low", template={"resources": {"cpu": "6"}})
    await cell.place(victim)
    peer = await cell.replica("peer", template={"resources": {"cpu": "6"}})
    (refused,) = await cell.reserve(cell.item(peer, victims=("low.1",)), bind=False)
    assert refused.reason == "VictimNotAllowed" and "priority 0 is not below 0" in refused.message
    high = await cell.replica("high", priority=10, template={"resources": {"cpu": "6"}})
    assert (await cell.place(high)).reason == "InsufficientCpu"
    item = cell.item(high, victims=("low.1",))
    (reserved,) = await cell.reserve(item, bind=False)
    assert reserved.result is PlacementOutcome.ACCEPTED
    cell.check_ledger()
    # No other claim may take the capacity that the victim releases.
    third = await cell.replica("third", template={"resources": {"cpu": "3"}})
    assert (await cell.place(third)).reason == "InsufficientCpu"
    bind = BindRequest((BindItem(TENANT, "high", item.intent),))
    waiting = (await cell.authority.bind(WHO, bind)).results[0]
    assert waiting.reason == "Waiting" and waiting.facts["victims"] == ["low.1"]
    await cell.acknowledge("low.1")
    await cell.release(victim, FREE)
    assert (await cell.place(third)).reason == "InsufficientCpu"
    await cell.authority.tick()
    cell.check_ledger()
    assert (await cell.authority.bind(WHO, bind)).results[0].result is PlacementOutcome.ACCEPTED
    cell.check_ledger()


async def test_nomination_waits_for_its_victims_even_if_there_is_room_meanwhile(cell: Cell) -> None:
    """Bound beside its victim, the replica would run, and its victim would be evicted for nothing."""
    victim = await cell.replica("low", template={"resources": {"cpu": "4"}})
    other = await cell.replica("other", template={"resources": {"cpu": "4"}})
    await cell.place(victim)
    await cell.place(other)
    high = await cell.replica("high", priority=10, template={"resources": {"cpu": "4"}})
    await cell.reserve(cell.item(high, victims=("low.1",)), bind=False)
    await cell.acknowledge("other.1")
    await cell.release(other, FREE)
    await cell.authority.tick()
    (nomination,) = cell.every(Reservation)
    assert nomination.status.phase is ReservationPhase.NOMINATED and nomination.spec.victims == ("low.1",)
    cell.check_ledger()


async def put_admitted_slot(cell: Cell, name: str, cpu: str, node: str = "n1") -> None:
    """Creates an admitted recovery slot of a budget that all tenants may use."""
    await cell.put(RecoveryBudget(ObjectMeta(name="b"), RecoveryBudgetSpec(region="east")))
    admitted_status = RecoverySlotStatus(admission=SlotAdmissionStatus(admitted=True))
    await cell.put(
        RecoverySlot(ObjectMeta(name=name), RecoverySlotSpec("b", node, resources={"cpu": cpu}), admitted_status)
    )


async def test_recovery_slot_capacity_is_refused_to_firm_work(cell: Cell) -> None:
    await put_admitted_slot(cell, "h1", "4")
    await cell.lead()
    firm = await cell.replica("firm", template={"resources": {"cpu": "6"}})
    refused = await cell.place(firm)
    assert refused.reason == "InsufficientCpu" and refused.facts["recoveryReserved"] == {"cpu": "4"}
    # Naming the slot does not help work that is not recovery.
    assert (await cell.place(firm, recovery_slots=("h1",))).reason == "InsufficientCpu"
    loose = await cell.replica("loose", template={"resources": {"cpu": "6"}}, reclaimable=True)
    assert (await cell.place(loose)).result is PlacementOutcome.ACCEPTED
    cell.check_ledger()


async def test_recovery_claim_consumes_matching_slot_once(cell: Cell) -> None:
    await put_admitted_slot(cell, "h1", "6")
    await cell.grant(grant_class=GrantClass.RECOVERY)
    await cell.lead()
    shape = {"resources": {"cpu": "6"}}
    one, two = [await cell.replica(f"r-{i}", template=shape, purpose=Purpose.RECOVERY) for i in range(2)]
    # It need not name a slot: the closest fit on its node is consumed.
    assert (await cell.place(one)).result is PlacementOutcome.ACCEPTED
    assert cell.every(Reservation)[0].spec.recovery_slots == ("h1",)
    cell.check_ledger()
    assert (await cell.place(two, recovery_slots=("h1",))).reason == "InsufficientCpu"  # a slot is consumed once
    await cell.lead()
    assert (await cell.place(two, recovery_slots=("h1",))).reason == "InsufficientCpu"


async def test_binding_removed_by_other_writer_keeps_its_claim_while_its_replica_names_it(cell: Cell) -> None:
    await cell.lead(run=True)
    await cell.place(await cell.replica())
    binding = cell.binding("web-0.1")
    assert binding is not None
    await cell.remove(binding)
    await cell.clock.advance(0)
    (claim,) = cell.authority.ledger.claims.values()
    assert claim.stopping and claim.amounts == amounts(binding.spec.resources)
    cell.check_ledger()
    await cell.remove(cell.get_replica())
    await cell.authority.tick()
    assert not cell.authority.ledger.claims
    cell.check_ledger()


async def test_usage_is_reported_with_limit_generation(cell: Cell) -> None:
    await cell.place(await cell.replica())
    await cell.authority.tick()
    (copy,) = cell.every(GrantCopy)
    assert copy.status.used == {"cpu": "1", "memory": "1Gi"} and copy.status.observed_generation == 1
    before = cell.store.commits
    await cell.authority.tick()
    assert cell.store.commits == before


async def test_decisions_beyond_limit_are_pruned(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.authority.background_jobs.DECISIONS_MAX", 3)
    for number in range(5):
        await cell.put(Decision(ObjectMeta(name=f"d{number}", namespace=TENANT), DecisionSpec("r", "w")))
    await cell.authority.tick()
    assert [d.metadata.name for d in cell.every(Decision)] == ["d2", "d3", "d4"]


async def test_authority_without_current_term_refuses_requests(cell: Cell) -> None:
    replica = await cell.replica()
    cell.authority.stop()
    with pytest.raises(Unavailable) as not_leading:
        await cell.place(replica)
    assert not_leading.value.facts["reason"] == "NotLeader"
    old = await cell.lead()
    item = cell.item(replica)
    token = await cell.elect()  # another authority wins; this one does not know yet
    with pytest.raises(Unavailable):
        await cell.reserve(item)
    assert not old.leading and not cell.every(Binding) and not old.ledger.claims
    await cell.elect()
    with pytest.raises(StaleToken):
        await old.start(token)


async def test_release_with_stale_token_is_refused(cell: Cell) -> None:
    replica = await cell.replica()
    await cell.place(replica)
    stale = await cell.elect()
    await cell.lead()
    item = ReleaseItem(TENANT, "web-0", replica.uid, 1, STOP, "x")
    with pytest.raises(StaleToken):
        await cell.authority.release(WHO, ReleaseRequest((item,)), token=stale)
    binding = cell.binding("web-0.1")
    assert binding is not None and binding.spec.desired is DesiredRunState.RUN


async def test_new_authority_rebuilds_equal_ledger(cell: Cell) -> None:
    await cell.node("g", gpus=2)
    for index in range(3):
        await cell.place(await cell.replica(f"w-{index}"))
    await cell.place(await cell.replica("gpu", template={"resources": {"gpu": "500m"}}), "g")
    await cell.reserve(cell.item(await cell.replica("held")), bind=False)
    fenced = await cell.replica("f")
    await cell.place(fenced, "g")
    await cell.change_node("g", fence=1)
    await cell.release(fenced, FREE)
    before = cell.authority.ledger
    await cell.lead()
    assert cell.authority.ledger is not before and cell.authority.ledger == before
    assert cell.authority.ledger.quota_released and cell.authority.ledger.unbound


async def test_nomination_is_extended_while_victims_stop_up_to_maximum(cell: Cell) -> None:
    low = await cell.replica("low", template={"resources": {"cpu": "6"}})
    await cell.place(low)
    high = await cell.replica("high", priority=10, template={"resources": {"cpu": "6"}})
    (reserved,) = await cell.reserve(cell.item(high, victims=("low.1",)))
    assert (reserved.reason, reserved.binding) == ("WaitingForVictims", "")
    await cell.release(low, STOP)
    for _ in range(3):
        await cell.clock.advance(40.0)
        await cell.renew("n1", 1)
        await cell.authority.tick()
    (nomination,) = [r for r in cell.every(Reservation) if r.spec.victims]
    assert nomination.status.phase is ReservationPhase.NOMINATED, "its victim is stopping"
    await cell.clock.advance(limits.RESERVATION_MAX_S)
    await cell.authority.tick()
    await cell.authority.tick()
    assert not [r for r in cell.every(Reservation) if r.spec.victims], "the nomination has a maximum age"
    assert cell.get_replica("high").status.placement.attempt == 2
    cell.check_ledger()


async def test_reservation_is_bound_after_victims_are_released(cell: Cell) -> None:
    low = await cell.replica("low", template={"resources": {"cpu": "6"}})
    await cell.place(low)
    high = await cell.replica("high", priority=10, template={"resources": {"cpu": "6"}})
    await cell.reserve(cell.item(high, victims=("low.1",)))
    await cell.release(low, STOP)
    await cell.acknowledge("low.1")
    await cell.release(low, FREE)
    await cell.authority.tick()
    assert cell.get_replica("high").status.placement.binding == "high.1"
    cell.check_ledger()
