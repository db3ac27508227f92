"""The in-process client: reads, watches, events, and placement calls."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.expected import present
from tests.gate.conftest import USER, World, binding, by, node, node_agent, with_spec, workload

from holdfast.gate.events import EVENT_TTL_S, EventLog
from holdfast.gate.local_client import LocalClient
from holdfast.model import limits
from holdfast.model.binding import Binding
from holdfast.model.core import Event
from holdfast.model.errors import BadRequest, Forbidden
from holdfast.model.kinds import BY_NAME
from holdfast.model.node import Node
from holdfast.model.placement_api import PlacementResponse, RenewItem, RenewRequest, ReserveRequest
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload
from holdfast.model.writes import Create, Delete, Notice, Update

EVENT = BY_NAME["Event"]


async def test_local_client_reads_lists_and_watches_shared_objects(world: World) -> None:
    client = LocalClient(world.gate, USER)
    assert client.cell == "global"
    made = await world.create(USER, workload())
    assert await client.get(Workload, "web", "shop") is world.get(Workload, "web", "shop")
    assert await client.get(Workload, "none", "shop") is None
    listing = await client.list(Workload, "shop")
    assert listing.items == (made,) and listing.revision == world.store.head

    watch = client.watch(Workload, "shop", after=listing.revision)
    await client.commit([Update(with_spec(made, replicas=2)), Create(workload("b"))])
    (changed, new) = [seen for seen in await anext(watch)]
    assert (present(changed.object).spec.replicas, present(changed.old).spec.replicas, changed.deleted) == (2, 1, False)
    assert (present(new.object).metadata.name, new.old) == ("b", None)
    assert new.object is world.get(Workload, "b", "shop"), "shared, not copied or decoded again"


async def test_local_client_watch_by_field_filters(north: World) -> None:
    client = LocalClient(north.gate, by("replicate", "north"))
    start = (await client.list(Binding, fields={"node": "n1"})).revision
    watch = client.watch(Binding, after=start, fields={"node": "n1"})
    await north.plant(binding("b2", "n2"))
    planted = await north.plant(binding("b1", "n1"))
    (seen,) = await anext(watch)
    assert present(seen.object).metadata.name == "b1"
    assert (await client.list(Binding, fields={"node": "n1"})).items == (planted,)


async def test_local_client_commit_passes_the_gate(world: World) -> None:
    with pytest.raises(Forbidden):
        await LocalClient(world.gate, by("assign")).commit([Create(workload())])


class _Authority:
    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def reserve(self, who: Any, request: Any) -> PlacementResponse:
        self.requests.append((who.name, request))
        return PlacementResponse()

    bind = renew = reserve

    async def release(self, who: Any, request: Any, *, token: Any = None) -> PlacementResponse:
        return PlacementResponse()


async def test_local_client_placement_reaches_authority(world: World, north: World) -> None:
    with pytest.raises(BadRequest, match="call the region's cell"):
        await LocalClient(world.gate, by("scheduler")).reserve(ReserveRequest())
    authority = _Authority()
    await LocalClient(north.gate, by("scheduler", "north"), placement=authority).reserve(ReserveRequest())
    assert authority.requests[0][0] == "holdfast:controller:scheduler"
    with pytest.raises(Forbidden):
        await LocalClient(north.gate, by("replicate", "north"), placement=authority).reserve(ReserveRequest())
    agent = LocalClient(north.gate, node_agent("n1"), placement=authority)
    await agent.renew(RenewRequest((RenewItem("n1"),)))
    with pytest.raises(Forbidden, match='for node "n2"'):
        await agent.renew(RenewRequest((RenewItem("n2"),)))
    assert (await north.audit())[-1].verb == "renew"


def events(world: World, namespace: str = "") -> list[Event]:
    return [e for e in world.objects.list(EVENT, namespace)[0] if isinstance(e, Event)]


async def test_repeated_notice_increments_event_count(world: World) -> None:
    client = LocalClient(world.gate, by("assign"))
    made = await world.create(USER, workload())
    notice = Notice(made, "Assigned", "to north")
    await client.notify([notice], component="assign")
    world.ports.clock.now_s += 5
    await client.notify([notice, notice, Notice(made, "Assigned", "to south", warning=True)], component="assign")
    first, second = sorted(events(world, "shop"), key=lambda e: e.type)
    assert (first.count, first.message, first.type) == (3, "to north", "Normal")
    assert (first.first_timestamp, first.last_timestamp) == ("2027-01-15T08:00:00Z", "2027-01-15T08:00:05Z")
    assert (second.count, second.type) == (1, "Warning")
    about = first.involved_object
    assert (about.uid, about.kind, about.name, about.namespace) == (made.uid, "Workload", "web", "shop")
    assert about.api_version == "holdfast.dev/v1"
    stem, _, mark = first.metadata.name.rpartition(".")
    assert stem == "web" and len(mark) == 16 and first.metadata.uid


async def test_event_of_cluster_scoped_object_is_in_default_namespace(north: World) -> None:
    machine: Node = await north.create(node_agent(), node())
    await LocalClient(north.gate, by("node-health", "north")).notify(
        [Notice(machine, "LeaseExpired", "x")], component="h"
    )
    (event,) = events(north)
    assert event.metadata.namespace == "default" and event.involved_object.namespace == ""
    never_stored = msgspec.structs.replace(node(), metadata=node().metadata)
    await LocalClient(north.gate, by("node-health", "north")).notify([Notice(never_stored, "X", "x")], component="h")
    assert len(events(north)) == 1


async def test_events_expire_and_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(world.objects, world.ports)
    made = await world.create(USER, workload())
    await log.record([Notice(made, "Old", "x")], component="c")
    world.ports.clock.now_s += EVENT_TTL_S - 1
    await log.record([Notice(made, "New", str(n)) for n in range(5)], component="c")
    world.ports.clock.now_s += 2
    await log.sweep()
    assert {e.reason for e in events(world)} == {"New"}
    monkeypatch.setattr(limits, "EVENTS_MAX", 3)
    world.ports.clock.now_s += 1
    await log.record([Notice(made, "Newest", "x")], component="c")
    await log.sweep()
    assert len(events(world)) == 3 and "Newest" in {e.reason for e in events(world)}
    shop = world.get(Tenant, "shop")
    await world.do(by("collect"), Delete("Tenant", shop.key, shop.uid))
    task = asyncio.create_task(log.run())
    async with asyncio.timeout(5):
        while events(world):
            await asyncio.sleep(0.005)
    task.cancel()
