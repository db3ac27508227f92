"""Node pools grow for pending work that a node fixes, shrink when nodes are empty, and keep recovery slots."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expected import present
from tests.factories import cache_of, meta, node, with_new_revision

from holdfast.controllers.cache import Cache
from holdfast.fleet import node_pools
from holdfast.fleet.node_pools import NODE_POOL_START_TIMEOUT_S
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.meta import Key
from holdfast.model.node import ContactState, Node
from holdfast.model.node_pool import NodePool, NodePoolSpec, validate_node_pool
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec, RecoverySlotStatus, SlotAdmissionStatus
from holdfast.model.scheduling_request import (
    RefusalCount,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.template import Template
from holdfast.model.writes import SetStatus, Update

NOW = 1_800_000_000.0
UNIT = Template(command=("x",), resources={"cpu": "2"})


class World:
    """A region with one pool. Nodes appear only when the test calls `provide`."""

    def __init__(self, **spec: Any) -> None:
        given = {"zones": ("a", "b"), "capacity": {"cpu": "4"}, "max_nodes": 5, "idle_seconds": 60.0, **spec}
        self.now = NOW
        self.cache: Cache = cache_of(NodePool(metadata=meta("burst"), spec=NodePoolSpec(**given)))
        self.claims = 0

    @property
    def pool(self) -> NodePool:
        found = self.cache.get(NodePool, "burst")
        assert found is not None
        return found

    @property
    def names(self) -> list[str]:
        return [n.name for n in self.pool.status.nodes]

    def set_pending(
        self, pending: int, reason: str = "InsufficientCpu", template: Template = UNIT, **spec: Any
    ) -> None:
        status = SchedulingRequestStatus(pending=pending, reasons=(RefusalCount(reason, 3),))
        made = SchedulingRequestSpec(workload="api", assignment="api", revision="1", template=template, **spec)
        self.cache.put(SchedulingRequest(metadata=meta("api", "acme"), spec=made, status=status))

    def run_controller(self, after_s: float = 0.0) -> None:
        self.now += after_s
        decide = node_pools.decider("us-east")
        for write in decide(Key("", "burst"), self.cache, self.now).writes:
            if isinstance(write, SetStatus):
                status = msgspec.structs.replace(self.pool.status, **write.blocks)
                self.cache.put(with_new_revision(self.pool, status=status))
            elif isinstance(write, Update):
                self.cache.put(with_new_revision(write.object))

    def provide(self) -> None:
        """Creates nodes that should exist and removes the others."""
        bound = {b.spec.node for b in self.cache.list(Binding)}
        for wanted in self.pool.status.nodes:
            if self.cache.get(Node, wanted.name) is None:
                self.cache.put(node(wanted.name, zone=wanted.zone, pool="burst", capacity={"cpu": "4"}))
        for item in list(self.cache.list(Node)):
            if item.metadata.name not in self.names:
                assert item.metadata.name not in bound, "a node with work must not be removed"
                self.drop(item)

    def drop(self, item: Any) -> None:
        self.cache.remove(type(item), item.key, int(with_new_revision(item).metadata.resource_version))

    def bind(self, where: str) -> None:
        self.claims += 1
        spec = BindingSpec(replica=f"r{self.claims}", intent=Intent("u", "h", 1), node=where, template=UNIT)
        self.cache.put(Binding(metadata=meta(f"r{self.claims}.1", "acme"), spec=spec))

    def free(self) -> None:
        for item in list(self.cache.list(Binding)):
            self.drop(item)


def test_pending_work_adds_exactly_the_needed_nodes() -> None:
    world = World()
    world.set_pending(5)
    world.run_controller()
    assert world.names == ["burst-1", "burst-2", "burst-3"]
    assert {n.zone for n in world.pool.status.nodes} == {"a", "b"}
    for _ in range(5):
        world.run_controller(after_s=5)
    assert len(world.names) == 3, "starting nodes count"
    assert world.pool.status.reason == "PoolGrowing"


def test_pending_reason_that_nodes_cannot_fix_adds_no_node() -> None:
    for reason in (
        "QuotaExceeded",
        "GrantExpired",
        "TaintNotTolerated",
        "NodeExcludedByOverride",
        "AntiAffinityViolated",
    ):
        world = World()
        world.set_pending(5, reason)
        world.run_controller()
        assert not world.names, reason


def test_work_bound_to_an_empty_pool_adds_one_node() -> None:
    world = World()
    world.set_pending(2, "PoolNotAllowed", placement=PlacementRules(pools=("burst",)))
    world.run_controller()
    assert world.names == ["burst-1"]
    world.provide()
    world.run_controller(after_s=5)
    assert world.names == ["burst-1"], "the pool has a node now, so PoolNotAllowed no longer counts"


def test_first_pool_node_stays_while_its_work_is_pending() -> None:
    """Other nodes still report PoolNotAllowed, so a removed node would be added again at once."""
    world = World()
    seen = []
    for _ in range(60):
        only = ("PoolNotAllowed",) if not list(world.cache.list(Node)) else ("PoolNotAllowed", "LabelsDoNotMatch")
        world.set_pending(1, only[0], placement=PlacementRules(pools=("burst",)))
        waiting = world.cache.get(SchedulingRequest, "api", "acme")
        assert waiting is not None
        told = msgspec.structs.replace(waiting.status, reasons=tuple(RefusalCount(reason, 3) for reason in only))
        world.cache.put(with_new_revision(waiting, status=told))
        world.run_controller(after_s=5)
        world.provide()
        seen.append(world.names)
    assert seen == [["burst-1"]] * 60
    assert world.pool.status.reason == "PoolStable"
    world.set_pending(1, "QuotaExceeded", placement=PlacementRules(pools=("burst",)))
    for _ in range(4):
        world.run_controller(after_s=5)
        world.provide()
    assert not world.names, "work that no node would fix adds none"


def test_unused_new_nodes_stop_further_growth() -> None:
    """For example, it needs a label that the pool's nodes lack, and the nodes with the label are full."""
    world = World()
    world.set_pending(1)
    for _ in range(40):
        world.run_controller(after_s=5)
        world.provide()
    assert [n.zone for n in world.pool.status.nodes] == ["a", "b"], "one empty node per zone is enough evidence"
    assert world.pool.status.reason == "PoolStable" and "2 node(s) of the pool are empty" in world.pool.status.message
    world.set_pending(7)
    world.run_controller(after_s=5)
    assert len(world.names) == 4, "the additional need, minus the empty nodes"


def test_unschedulable_empty_node_does_not_stop_growth() -> None:
    world = World()
    world.set_pending(1)
    for _ in range(40):
        world.run_controller(after_s=5)
        world.provide()
        for item in list(world.cache.list(Node)):
            lapsed = msgspec.structs.replace(item.status.contact, state=ContactState.EXPIRED)
            world.cache.put(with_new_revision(item, status=msgspec.structs.replace(item.status, contact=lapsed)))
    assert len(world.names) == 5


def test_new_empty_node_counts_as_coming_capacity() -> None:
    world = World()
    world.set_pending(1)
    world.run_controller()
    world.provide()
    world.run_controller(after_s=5)
    world.run_controller(after_s=5)
    assert world.names == ["burst-1"]


def test_work_that_does_not_fit_the_pool_adds_no_node() -> None:
    for case in (
        {"template": Template(command=("x",), resources={"cpu": "8"})},
        {"template": Template(command=("x",), resources={"cpu": "1", "gpu": "1"})},
        {"placement": PlacementRules(pools=("other",))},
        {"placement": PlacementRules(zones=("c",))},
    ):
        world = World()
        world.set_pending(5, **case)
        world.run_controller()
        assert not world.names, case


def test_pool_at_max_nodes_has_reason_pool_at_max_nodes() -> None:
    world = World(max_nodes=2)
    world.set_pending(50)
    world.run_controller()
    assert len(world.names) == 2 and world.pool.status.reason == "PoolAtMaxNodes"


def test_idle_node_is_cordoned_then_removed() -> None:
    world = World()
    world.set_pending(4)
    world.run_controller()
    world.provide()
    world.bind("burst-1")
    world.set_pending(0)
    world.run_controller(after_s=5)
    world.run_controller(after_s=30)
    assert world.names == ["burst-1", "burst-2"]
    world.run_controller(after_s=31)
    closed = world.cache.get(Node, "burst-2")
    assert closed is not None and closed.spec.unschedulable and world.pool.status.reason == "PoolShrinking"
    world.run_controller(after_s=5)
    assert world.names == ["burst-1"]
    world.provide()
    for _ in range(30):
        world.run_controller(after_s=30)
    assert world.names == ["burst-1"]


def test_new_pending_work_uncordons_a_node_being_removed() -> None:
    world = World()
    world.set_pending(2)
    world.run_controller()
    world.provide()
    world.set_pending(0)
    world.run_controller()
    world.run_controller(after_s=61)
    assert present(world.cache.get(Node, "burst-1")).spec.unschedulable
    world.set_pending(1)
    world.run_controller()
    assert not present(world.cache.get(Node, "burst-1")).spec.unschedulable and world.names == ["burst-1"]


def test_operator_cordon_is_left_alone() -> None:
    world = World(min_nodes=1)
    world.run_controller()
    world.provide()
    stored = present(world.cache.get(Node, "burst-1"))
    world.cache.put(with_new_revision(stored, spec=msgspec.structs.replace(stored.spec, unschedulable=True)))
    world.run_controller(after_s=500)
    assert present(world.cache.get(Node, "burst-1")).spec.unschedulable


def test_node_that_never_registers_is_requested_again() -> None:
    world = World()
    world.set_pending(2)
    world.run_controller()
    world.run_controller(after_s=NODE_POOL_START_TIMEOUT_S + 1)
    assert world.pool.status.nodes[0].since != "" and len(world.names) == 1


def test_recovery_slots_add_nodes_and_keep_them() -> None:
    world = World()
    slot = SlotShape(resources={"cpu": "2"}, count=4)
    world.cache.put(
        RecoveryBudget(metadata=meta("kept"), spec=RecoveryBudgetSpec(region="us-east", slot_shapes=(slot,)))
    )
    world.run_controller()
    assert len(world.names) == 2, "four slots of two CPUs need two nodes of four CPUs"
    world.provide()
    for n in range(4):
        spec = RecoverySlotSpec(budget="kept", node=f"burst-{n // 2 + 1}", resources={"cpu": "2"})
        world.cache.put(
            RecoverySlot(
                metadata=meta(f"h{n}"),
                spec=spec,
                status=RecoverySlotStatus(admission=SlotAdmissionStatus(admitted=True)),
            )
        )
    for _ in range(20):
        world.run_controller(after_s=60)
    assert len(world.names) == 2


def test_invalid_node_pools_are_refused() -> None:
    made = NodePool(metadata=meta("burst"), spec=NodePoolSpec(min_nodes=5, max_nodes=2))
    fields = {cause.field for cause in validate_node_pool(made, None)}
    assert {"spec.zones", "spec.capacity", "spec.maxNodes"} <= fields


acts = st.lists(
    st.tuples(st.sampled_from(["wait", "calm", "look", "look", "provide", "bind", "free", "time"]), st.integers(0, 9)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(acts, st.integers(0, 2))
def test_pool_bounds_hold_and_occupied_nodes_stay(story: list[tuple[str, int]], least: int) -> None:
    world = World(min_nodes=least)
    for act, number in story:
        match act:
            case "wait":
                world.set_pending(number)
            case "calm":
                world.set_pending(0)
            case "look":
                world.run_controller()
            case "provide":
                world.provide()
            case "bind":
                open_ = [n for n in world.cache.list(Node) if not n.spec.unschedulable]
                if open_:
                    world.bind(open_[number % len(open_)].metadata.name)
            case "free":
                world.free()
            case "time":
                world.now += number * 20
        assert len(set(world.names)) == len(world.names) <= 5
    world.set_pending(0)
    world.free()
    for _ in range(40):
        world.run_controller(after_s=61)
        world.provide()
    assert len(world.names) == least, "idle pools shrink to minNodes"
