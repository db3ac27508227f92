"""Free resources by node in the region report: never more than there is, bounded, exact for the largest nodes."""

from __future__ import annotations

from random import Random

import pytest
from tests import factories

from holdfast.controllers.cache import Cache
from holdfast.fleet.free_shapes import FreeNodes
from holdfast.link.node_shapes import FREE_SHAPES_MAX, NODE_SHAPES_MAX, free_shapes, node_shapes
from holdfast.model.binding import Binding, BindingSpec, DeviceClaim, Intent, Reservation, ReservationSpec
from holdfast.model.node import ContactBlock, ContactState, Device, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.node_pool import NodePool, NodePoolSpec
from holdfast.model.quantity import Amount, amounts
from holdfast.model.recovery_slot import (
    RecoverySlot,
    RecoverySlotSpec,
    RecoverySlotStatus,
    SlotAdmissionStatus,
    SlotConsumer,
)
from holdfast.model.template import Template

LIVE = NodeStatus(contact=ContactBlock(state=ContactState.LIVE), execution=NodeExecution(epoch=1, reconciled=True))
INTENT = Intent(replica_uid="r", template_hash="", attempt=1)


def node(
    name: str, cpu: int, memory: int, *, zone: str = "a", pool: str = "default", gpus: int = 0, cordoned: bool = False
) -> Node:
    devices = tuple(Device(id=f"gpu{index}") for index in range(gpus))
    capacity: dict[str, Amount] = {"cpu": f"{cpu}m", "memory": f"{memory}Gi"}
    spec = NodeSpec(zone=zone, pool=pool, capacity=capacity, devices=devices, unschedulable=cordoned)
    return Node(metadata=factories.meta(name), spec=spec, status=LIVE)


def binding(name: str, on: str, resources: dict[str, Amount], *devices: DeviceClaim) -> Binding:
    template = Template(command=("run",))
    spec = BindingSpec(replica=name, intent=INTENT, node=on, template=template, resources=resources, devices=devices)
    return Binding(metadata=factories.meta(name, "acme"), spec=spec)


def slot(name: str, on: str, cpu: str, *, consumed: bool = False) -> RecoverySlot:
    consumer = SlotConsumer(replica_uid="r") if consumed else None
    status = RecoverySlotStatus(admission=SlotAdmissionStatus(admitted=True), consumer=consumer)
    spec = RecoverySlotSpec(budget="b", node=on, resources={"cpu": cpu})
    return RecoverySlot(metadata=factories.meta(name), spec=spec, status=status)


def random_region(seed: int) -> tuple[Cache, list[tuple[int, int]]]:
    """A region with more different nodes than a report has shapes, and the free resources of each node."""
    chance = Random(seed)
    cache, left = Cache(), []
    for index in range(chance.choice((20, 150, 600))):
        cpu, memory = chance.choice((8_000, 16_000, 64_000)), chance.choice((32, 64, 256))
        cache.put(node(f"n{index}", cpu, memory, zone=chance.choice("abc")))
        used_cpu, used_memory = chance.randrange(0, cpu + 1, 50), chance.randint(0, memory)
        cache.put(binding(f"b{index}", f"n{index}", {"cpu": f"{used_cpu}m", "memory": f"{used_memory}Gi"}))
        left.append((cpu - used_cpu, memory - used_memory))
    return cache, left


@pytest.mark.parametrize("seed", range(12))
def test_shapes_of_random_regions_never_promise_more_room_than_there_is(seed: int) -> None:
    cache, left = random_region(seed)
    shapes = free_shapes(cache)
    assert 0 < len(shapes) <= FREE_SHAPES_MAX and len(node_shapes(cache)) <= NODE_SHAPES_MAX
    chance = Random(seed)
    for _ in range(40):
        cpu, memory = chance.randrange(50, 40_000, 50), chance.randint(1, 128)
        exact = sum(min(c // cpu, m // memory) for c, m in left)
        need = amounts({"cpu": f"{cpu}m", "memory": f"{memory}Gi"})
        assert FreeNodes(shapes).room_for(need, lambda _: True) <= exact
    largest = max(left)[0]
    assert FreeNodes(shapes).room_for({"cpu": largest}, lambda _: True) >= 1, "the node with most CPU stays exact"
    assert FreeNodes(shapes).room_for({"cpu": 1000}, lambda _: True) >= 0.6 * sum(c // 1000 for c, _ in left)


def test_equal_nodes_are_one_shape_and_unschedulable_or_full_nodes_none() -> None:
    cache = factories.cache_of(
        node("n1", 4000, 8),
        node("n2", 4000, 8),
        node("n3", 4000, 8, zone="b"),
        node("n4", 4000, 8, pool="big"),
        node("n5", 4000, 8, cordoned=True),
        node("n6", 4000, 8),
        binding("full", "n6", {"cpu": "4", "memory": "8Gi"}),
    )
    found = {(s.zone, s.pool): (s.nodes, s.resources) for s in free_shapes(cache)}
    free = {"cpu": "4", "memory": "8Gi"}
    assert found == {("a", "default"): (2, free), ("b", "default"): (1, free), ("a", "big"): (1, free)}


def test_reservations_and_unused_recovery_slots_are_not_free() -> None:
    reserved = Reservation(
        metadata=factories.meta("res", "acme"),
        spec=ReservationSpec(replica="res", intent=INTENT, node="n1", resources={"cpu": "1"}),
    )
    used = slot("used", "n1", "2", consumed=True)
    cache = factories.cache_of(node("n1", 8000, 8), reserved, slot("open", "n1", "3"), used)
    (shape,) = free_shapes(cache)
    assert (shape.resources["cpu"], shape.recovery_reserved) == ("4", {"cpu": "3"})
    assert FreeNodes([shape]).room_for({"cpu": 1000}, lambda _: True) == 4
    assert FreeNodes([shape], reclaimable=True).room_for({"cpu": 1000}, lambda _: True) == 7


def test_parts_of_shared_gpus_do_not_count_as_whole_ones() -> None:
    claims = [DeviceClaim(id="gpu0", milli=300), DeviceClaim(id="gpu1", milli=600)]
    cache = factories.cache_of(
        node("n1", 8000, 8, gpus=3), binding("b", "n1", {"gpu": "900m"}, *claims), node("n2", 8000, 8)
    )
    shape = next(s for s in free_shapes(cache) if "gpu" in s.resources)
    assert (shape.resources["gpu"], shape.shared_gpu) == ("1", 700)
    nodes = FreeNodes([shape])
    assert nodes.room_for({"gpu": 1000}, lambda _: True) == 1, "2100 thousandths are free, on three devices"
    assert nodes.room_for({"gpu": 500}, lambda _: True) == 3
    assert nodes.room_for({"gpu": 2000}, lambda _: True) == 0


def test_node_shapes_include_nodes_that_pools_may_add() -> None:
    pool = NodePool(metadata=factories.meta("big"), spec=NodePoolSpec(zones=("a",), capacity={"cpu": 64}, max_nodes=3))
    found = {(s.pool, s.nodes): s.resources for s in node_shapes(factories.cache_of(node("n1", 4000, 8), pool))}
    assert found == {("default", 1): {"cpu": "4", "memory": "8Gi"}, ("big", 3): {"cpu": "64"}}
    assert free_shapes(factories.cache_of(pool)) == ()
