"""Node pools grow for what a node cures, shrink when nodes hold nothing, and never take a recovery place away."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fleet import node_pools
from holdfast.model import limits
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.hold import Hold, HoldSpec, HoldStatus, KeptBlock
from holdfast.model.meta import Key
from holdfast.model.node import Contact, Node
from holdfast.model.node_pool import NodePool, NodePoolSpec, validate_node_pool
from holdfast.model.placement_rules import Placement
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, Slot
from holdfast.model.scheduling_request import (
    RefusalCount,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.template import Template
from holdfast.model.writes import SetStatus, Update
from holdfast.runtime.cache import Cache
from making import again, meta, node, view

NOW = 1_800_000_000.0
UNIT = Template(command=("x",), resources={"cpu": "2"})


class World:
    """A region with one pool. The provider is as slow as a test says."""

    def __init__(self, **spec: Any) -> None:
        given = {"zones": ("a", "b"), "capacity": {"cpu": "4"}, "max_nodes": 5, "idle_seconds": 60.0, **spec}
        self.now = NOW
        self.cache: Cache = view(NodePool(metadata=meta("burst"), spec=NodePoolSpec(**given)))
        self.claims = 0

    @property
    def pool(self) -> NodePool:
        found = self.cache.get(NodePool, "burst")
        assert found is not None
        return found

    @property
    def names(self) -> list[str]:
        return [n.name for n in self.pool.status.nodes]

    def waits(self, pending: int, reason: str = "InsufficientCpu", template: Template = UNIT, **spec: Any) -> None:
        status = SchedulingRequestStatus(pending=pending, reasons=(RefusalCount(reason, 3),))
        made = SchedulingRequestSpec(workload="api", assignment="api", revision="1", template=template, **spec)
        self.cache.put(SchedulingRequest(metadata=meta("api", "acme"), spec=made, status=status))

    def look(self, after_s: float = 0.0) -> None:
        self.now += after_s
        decide = node_pools.decider("us-east")
        for write in decide(Key("", "burst"), self.cache, self.now).writes:
            if isinstance(write, SetStatus):
                status = msgspec.structs.replace(self.pool.status, **write.blocks)
                self.cache.put(again(self.pool, status=status))
            elif isinstance(write, Update):
                self.cache.put(again(write.object))

    def provide(self) -> None:
        """Nodes that should exist come; those that should not, and hold nothing, go."""
        bound = {b.spec.node for b in self.cache.list(Binding)}
        for wanted in self.pool.status.nodes:
            if self.cache.get(Node, wanted.name) is None:
                self.cache.put(node(wanted.name, zone=wanted.zone, pool="burst", capacity={"cpu": "4"}))
        for item in list(self.cache.list(Node)):
            if item.metadata.name not in self.names:
                assert item.metadata.name not in bound, "a node with work on it was to go"
                self.drop(item)

    def drop(self, item: Any) -> None:
        self.cache.remove(type(item), item.key, int(again(item).metadata.resource_version))

    def bind(self, where: str) -> None:
        self.claims += 1
        spec = BindingSpec(replica=f"r{self.claims}", intent=Intent("u", "h", 1), node=where, template=UNIT)
        self.cache.put(Binding(metadata=meta(f"r{self.claims}.1", "acme"), spec=spec))

    def free(self) -> None:
        for item in list(self.cache.list(Binding)):
            self.drop(item)


def test_what_waits_for_room_brings_as_many_nodes_as_it_needs_and_no_more():
    world = World()
    world.waits(5)
    world.look()
    assert world.names == ["burst-1", "burst-2", "burst-3"]
    assert {n.zone for n in world.pool.status.nodes} == {"a", "b"}
    for _ in range(5):
        world.look(after_s=5)
    assert len(world.names) == 3, "those on their way count"
    assert world.pool.status.reason == "PoolGrowing"


def test_reasons_that_no_node_cures_bring_none():
    for reason in ("QuotaExceeded", "GrantExpired", "TaintNotTolerated", "NodeAvoided", "AntiAffinityViolated"):
        world = World()
        world.waits(5, reason)
        world.look()
        assert not world.names, reason


def test_work_that_insists_on_an_empty_pool_brings_its_first_node_and_no_more_for_that_reason():
    world = World()
    world.waits(2, "PoolNotAllowed", placement=Placement(pools=("burst",)))
    world.look()
    assert world.names == ["burst-1"]
    world.provide()
    world.look(after_s=5)
    assert world.names == ["burst-1"], "from then on the pool has a node, and what that lacks is what counts"


def test_the_first_node_stays_while_the_work_that_brought_it_is_kept_off_it():
    """Its other nodes still say PoolNotAllowed: a node that went would be brought back at once, for ever."""
    world = World()
    seen = []
    for _ in range(60):
        only = ("PoolNotAllowed",) if not list(world.cache.list(Node)) else ("PoolNotAllowed", "LabelsDoNotMatch")
        world.waits(1, only[0], placement=Placement(pools=("burst",)))
        waiting = world.cache.get(SchedulingRequest, "api", "acme")
        assert waiting is not None
        told = msgspec.structs.replace(waiting.status, reasons=tuple(RefusalCount(reason, 3) for reason in only))
        world.cache.put(again(waiting, status=told))
        world.look(after_s=5)
        world.provide()
        seen.append(world.names)
    assert seen == [["burst-1"]] * 60
    assert world.pool.status.reason == "PoolSteady"
    world.waits(1, "QuotaExceeded", placement=Placement(pools=("burst",)))
    for _ in range(4):
        world.look(after_s=5)
        world.provide()
    assert not world.names, "what no node of any pool would help brings none back"


def test_work_that_does_not_take_the_nodes_it_brought_brings_no_more_of_them():
    """It needs a label that the pool's nodes do not have, say, and is told that those which have it are full."""
    world = World()
    world.waits(1)
    for _ in range(40):
        world.look(after_s=5)
        world.provide()
    assert [n.zone for n in world.pool.status.nodes] == ["a", "b"], "one in every zone is proof enough"
    assert world.pool.status.reason == "PoolSteady" and "2 node(s) of the pool stay empty" in world.pool.status.message
    world.waits(7)
    world.look(after_s=5)
    assert len(world.names) == 4, "as many as more would need, beside the empty ones"


def test_a_node_that_cannot_be_taken_is_no_proof():
    world = World()
    world.waits(1)
    for _ in range(40):
        world.look(after_s=5)
        world.provide()
        for item in list(world.cache.list(Node)):
            lapsed = msgspec.structs.replace(item.status.contact, state=Contact.LAPSED)
            world.cache.put(again(item, status=msgspec.structs.replace(item.status, contact=lapsed)))
    assert len(world.names) == 5


def test_a_node_that_has_just_come_is_about_to_be_taken():
    world = World()
    world.waits(1)
    world.look()
    world.provide()
    world.look(after_s=5)
    world.look(after_s=5)
    assert world.names == ["burst-1"]


def test_work_that_would_not_fit_or_may_not_use_the_pool_brings_none():
    for case in (
        {"template": Template(command=("x",), resources={"cpu": "8"})},
        {"template": Template(command=("x",), resources={"cpu": "1", "gpu": "1"})},
        {"placement": Placement(pools=("other",))},
        {"placement": Placement(zones=("c",))},
    ):
        world = World()
        world.waits(5, **case)
        world.look()
        assert not world.names, case


def test_a_full_pool_says_so():
    world = World(max_nodes=2)
    world.waits(50)
    world.look()
    assert len(world.names) == 2 and world.pool.status.reason == "PoolFull"


def test_an_idle_node_is_closed_then_given_up_and_a_busy_one_stays():
    world = World()
    world.waits(4)
    world.look()
    world.provide()
    world.bind("burst-1")
    world.waits(0)
    world.look(after_s=5)
    world.look(after_s=30)
    assert world.names == ["burst-1", "burst-2"]
    world.look(after_s=31)
    closed = world.cache.get(Node, "burst-2")
    assert closed is not None and closed.spec.unschedulable and world.pool.status.reason == "PoolShrinking"
    world.look(after_s=5)
    assert world.names == ["burst-1"]
    world.provide()
    for _ in range(30):
        world.look(after_s=30)
    assert world.names == ["burst-1"]


def test_work_that_comes_while_a_node_is_closed_opens_it_again():
    world = World()
    world.waits(2)
    world.look()
    world.provide()
    world.waits(0)
    world.look()
    world.look(after_s=61)
    assert world.cache.get(Node, "burst-1").spec.unschedulable
    world.waits(1)
    world.look()
    assert not world.cache.get(Node, "burst-1").spec.unschedulable and world.names == ["burst-1"]


def test_an_operators_own_cordon_is_left_alone():
    world = World(min_nodes=1)
    world.look()
    world.provide()
    stored = world.cache.get(Node, "burst-1")
    world.cache.put(again(stored, spec=msgspec.structs.replace(stored.spec, unschedulable=True)))
    world.look(after_s=500)
    assert world.cache.get(Node, "burst-1").spec.unschedulable


def test_a_node_that_never_comes_is_asked_for_again():
    world = World()
    world.waits(2)
    world.look()
    world.look(after_s=limits.NODE_POOL_START_S + 1)
    assert world.pool.status.nodes[0].since != "" and len(world.names) == 1


def test_recovery_places_bring_nodes_and_keep_them():
    world = World()
    slot = Slot(resources={"cpu": "2"}, count=4)
    world.cache.put(RecoveryBudget(metadata=meta("kept"), spec=RecoveryBudgetSpec(region="us-east", slots=(slot,))))
    world.look()
    assert len(world.names) == 2, "four places of two CPUs need two nodes of four"
    world.provide()
    for n in range(4):
        spec = HoldSpec(budget="kept", node=f"burst-{n // 2 + 1}", resources={"cpu": "2"})
        world.cache.put(Hold(metadata=meta(f"h{n}"), spec=spec, status=HoldStatus(kept=KeptBlock(kept=True))))
    for _ in range(20):
        world.look(after_s=60)
    assert len(world.names) == 2


def test_bad_pools_are_refused():
    made = NodePool(metadata=meta("burst"), spec=NodePoolSpec(min_nodes=5, max_nodes=2))
    fields = {cause.field for cause in validate_node_pool(made, None)}
    assert {"spec.zones", "spec.capacity", "spec.maxNodes"} <= fields


acts = st.lists(
    st.tuples(st.sampled_from(["wait", "calm", "look", "look", "provide", "bind", "free", "time"]), st.integers(0, 9)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(acts, st.integers(0, 2))
def test_whatever_happens_bounds_hold_and_no_node_with_work_goes(story, least):
    world = World(min_nodes=least)
    for act, number in story:
        match act:
            case "wait":
                world.waits(number)
            case "calm":
                world.waits(0)
            case "look":
                world.look()
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
    world.waits(0)
    world.free()
    for _ in range(40):
        world.look(after_s=61)
        world.provide()
    assert len(world.names) == least, "idle pools come down to their least"
