"""Recovery slots: spread over zones, moved off unhealthy nodes, never moved while consumed."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import msgspec
from tests.expected import present
from tests.factories import binding, bound_status, cache_of, meta, node, replica, with_new_revision

from holdfast.model.binding import Intent, Reservation, ReservationPhase, ReservationSpec, ReservationStatus
from holdfast.model.meta import Key, Object
from holdfast.model.node import ContactState, Node
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotStatus, SlotAdmissionStatus, SlotConsumer
from holdfast.model.writes import Create, Delete
from holdfast.scheduling import slot_requests

NOW = 1_800_000_000.0
ADMITTED = RecoverySlotStatus(admission=SlotAdmissionStatus(admitted=True))


def budget(count: int = 4, cpu: str = "2", region: str = "east") -> RecoveryBudget:
    slots = (SlotShape(resources={"cpu": cpu}, count=count, min_zones=2),)
    return RecoveryBudget(metadata=meta("b"), spec=RecoveryBudgetSpec(region=region, slot_shapes=slots))


def nodes(*names: str, **more: Any) -> list[Node]:
    return [node(name, zone=f"z{name[0]}", **more) for name in names]


class SlotRegion:
    def __init__(self, *items: Object) -> None:
        self.cache = cache_of(*items)

    def run_controller(self, passes: int = 6) -> dict[str, RecoverySlot]:
        for _ in range(passes):
            for write in slot_requests.decider("east")(Key("", "b"), self.cache, NOW).writes:
                if isinstance(write, Create):
                    made = msgspec.structs.replace(
                        write.object, metadata=meta(write.object.metadata.name), status=ADMITTED
                    )
                    self.cache.put(made)
                elif isinstance(write, Delete):
                    self.cache.remove(RecoverySlot, write.key, int(meta("gone").resource_version))
        return {h.metadata.name: h for h in self.cache.list(RecoverySlot)}


def test_slots_are_spread_over_zones_and_nodes() -> None:
    found = SlotRegion(budget(), *nodes("a1", "a2", "b1", "b2")).run_controller()
    assert sorted(h.spec.node for h in found.values()) == ["a1", "a2", "b1", "b2"]


def test_budget_of_other_region_creates_no_slots() -> None:
    assert SlotRegion(budget(region="west"), *nodes("a1")).run_controller() == {}


def test_slots_are_requested_only_on_nodes_with_room_beside_firm_work() -> None:
    busy = binding(replica(status=bound_status("a1")), "a1", resources={"cpu": "7"})
    found = SlotRegion(budget(), *nodes("a1", "b1"), busy).run_controller()
    assert {h.spec.node for h in found.values()} == {"b1"} and len(found) == 4


def test_slot_moves_off_node_out_of_contact_and_back() -> None:
    world = SlotRegion(budget(), *nodes("a1", "b1"))
    world.run_controller()
    world.cache.put(with_new_revision(node("a1", zone="za", contact=ContactState.EXPIRED)))
    assert {h.spec.node for h in world.run_controller().values()} == {"b1"}
    world.cache.put(with_new_revision(node("a1", zone="za")))
    assert sorted(h.spec.node for h in world.run_controller(12).values()) == ["a1", "a1", "b1", "b1"]


def test_consumed_slot_on_draining_node_stays_until_claim_is_released() -> None:
    world = SlotRegion(budget(1), *nodes("a1", "b1"))
    (first,) = world.run_controller().values()
    drawn = msgspec.structs.replace(ADMITTED, consumer=SlotConsumer(replica_uid="u", claim="acme/x.1"))
    world.cache.put(with_new_revision(first, status=drawn))
    world.cache.put(with_new_revision(node(first.spec.node, zone=first.spec.zone, drain=True)))
    assert world.run_controller()[first.metadata.name].spec.node == first.spec.node
    world.cache.put(with_new_revision(present(world.cache.get(RecoverySlot, first.metadata.name)), status=ADMITTED))
    assert world.run_controller()[first.metadata.name].spec.node != first.spec.node


def test_slot_with_consuming_reservation_on_draining_node_is_kept() -> None:
    world = SlotRegion(budget(1), *nodes("a1", "b1"))
    (first,) = world.run_controller().values()
    intent = Intent(replica_uid="u", template_hash="h", attempt=1)
    spec = ReservationSpec(replica="x", intent=intent, node=first.spec.node, recovery_slots=(first.metadata.name,))
    consumed = ReservationStatus(phase=ReservationPhase.CONSUMED)
    world.cache.put(Reservation(meta("x.1", "acme"), spec, consumed))
    world.cache.put(with_new_revision(node(first.spec.node, zone=first.spec.zone, drain=True)))
    assert world.run_controller()[first.metadata.name].spec.node == first.spec.node


def test_deleted_budget_deletes_its_slots() -> None:
    world = SlotRegion(budget(), *nodes("a1"))
    assert world.run_controller()
    world.cache.remove(RecoveryBudget, Key("", "b"), int(meta("gone").resource_version))
    assert world.run_controller() == {}


def test_pass_with_400_slots_on_600_nodes_takes_under_two_seconds() -> None:
    """CPU time of a pass is proportional to nodes plus new slots, not to nodes times slots."""
    many = [node(f"{'abc'[n % 3]}{n}", zone=f"z{n % 3}") for n in range(600)]
    world = SlotRegion(budget(count=400, cpu="500m"), *many)
    world.run_controller(passes=6)
    began_s = time.process_time()
    world.run_controller(passes=1)
    spent_s = time.process_time() - began_s
    found = world.run_controller(passes=2)
    assert len(found) == 400
    zones = Counter(h.spec.zone for h in found.values())
    assert max(zones.values()) - min(zones.values()) <= 1
    assert spent_s < 2.0, f"one pass took {spent_s:.1f} s"
