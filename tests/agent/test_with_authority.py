"""The supervisor against the region's real authority, in virtual time: registration, partition, fence and rejoin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import pytest
from tests.agent.agent_world import (
    REGION,
    KeptMemory,
    RenewalService,
    ScriptedDriver,
    ScriptedProber,
    World,
    config,
    template,
)
from tests.controllers import virtual

from holdfast.agent.limits import AGENT_RESYNC_S
from holdfast.agent.persisted_state import PersistedState
from holdfast.agent.registration import Registration
from holdfast.agent.supervisor import TaskSupervisor
from holdfast.authority.authority import Authority
from holdfast.authority.lease_book import LeaseBook
from holdfast.client.contract import FencingToken
from holdfast.model import limits
from holdfast.model.codec import encode
from holdfast.model.election_term import INCARNATION_TERM, Term, TermSpec
from holdfast.model.errors import Unavailable
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Node
from holdfast.model.placement_api import PlacementResponse, RenewRequest
from holdfast.model.principal import Principal
from holdfast.model.replica import Phase
from holdfast.store.contract import Put, Txn


class Reached(RenewalService):
    """The connection from the agent to the authority, which can be partitioned."""

    def __init__(self, authority: Authority, world: World) -> None:
        super().__init__(world.ports)
        self._authority, self._world = authority, world

    async def renew(self, who: Principal, request: RenewRequest) -> PlacementResponse:
        if self._world.renewal_service.away:
            raise Unavailable("the region cannot be reached")
        return await self._authority.renew(who, request)


async def elected(world: World) -> FencingToken:
    term = Term(ObjectMeta(name="authority", uid="term"), TermSpec("me", 1))
    key = BY_NAME["Term"].store_key("", "authority")
    return FencingToken(
        "authority", (await world.objects.commit(None, Txn(writes=(Put(key, encode(term), term),)))).revision
    )


def test_partitioned_agent_is_fenced_and_rejoins() -> None:
    async def main() -> None:
        ports = virtual.VirtualPorts()
        world = await World(ports).start()
        authority = Authority(REGION, world.objects, ports)
        await authority.start(await elected(world))
        leading = asyncio.create_task(authority.run())
        client = world.agent(placement=Reached(authority, world))
        driver = ScriptedDriver(ports)
        supervisor = TaskSupervisor(
            config(),
            client,
            drivers={"process": driver},
            prober=ScriptedProber(driver),
            memory=KeptMemory(),
            ports=ports,
        )
        agent = asyncio.create_task(supervisor.run())

        def node() -> Node:
            found = world.node()
            assert found is not None
            return found

        await virtual.until(lambda: world.node() is not None and node().status.execution.reconciled)
        assert node().status.execution.epoch == authority.lease_epoch("n1") == 1
        await world.bind("a", template(), node_epoch=1)
        await virtual.until(lambda: world.ready("a"))
        await asyncio.sleep(120)
        assert node().status.fence.fenced_epoch == 0, "a live agent is not fenced"

        world.renewal_service.away = True
        await virtual.until(lambda: node().status.fence.fenced_epoch == 1, within_s=60)
        assert driver.running() == ["a"], "committed tasks that are not exclusive keep running"
        world.renewal_service.away = False
        await virtual.until(lambda: node().status.execution.epoch == 2 and node().status.execution.reconciled)
        assert driver.running() == [] and driver.log == ["start a run 1", "stop a run 1"]
        await virtual.until(lambda: world.binding("a").status.acknowledged_at)
        assert world.binding("a").status.phase is Phase.STOPPED
        assert authority.lease_epoch("n1") == 2

        for task in (agent, leading):
            task.cancel()
        await asyncio.gather(agent, leading, return_exceptions=True)
        await world.close()

    virtual.run(main)


class Beside(NamedTuple):
    """An agent with persisted state and the authority of its region, both running."""

    world: World
    authority: Authority
    memory: KeptMemory
    driver: ScriptedDriver


@asynccontextmanager
async def remembering(facts: PersistedState) -> AsyncIterator[Beside]:
    ports = virtual.VirtualPorts()
    world = await World(ports).start()
    authority = Authority(REGION, world.objects, ports)
    await authority.start(await elected(world))
    leading = asyncio.create_task(authority.run())
    memory, driver = KeptMemory(), ScriptedDriver(ports)
    memory.save(facts)
    supervisor = TaskSupervisor(
        config(),
        world.agent(placement=Reached(authority, world)),
        drivers={"process": driver},
        prober=ScriptedProber(driver),
        memory=memory,
        ports=ports,
    )
    agent = asyncio.create_task(supervisor.run())
    yield Beside(world, authority, memory, driver)
    agent.cancel()
    authority.stop()
    await asyncio.gather(agent, leading, return_exceptions=True)
    await world.close()


def test_lease_from_older_cell_incarnation_is_rejected() -> None:
    """The agent has seen incarnation 3; a process that still serves the data before the restore is not its cell."""

    async def main() -> None:
        async with remembering(PersistedState(epoch=1, incarnation=3)) as (world, _, memory, driver):
            await virtual.until(lambda: world.node() is not None)
            await world.bind("a", template(), node_epoch=1)
            await asyncio.sleep(60)
            assert memory.load().lease_until_mono_s == 0.0, "it accepted a lease of an older incarnation"
            assert driver.running() == [], "it started a task of an older incarnation"
            life = Term(ObjectMeta(name=INCARNATION_TERM, uid="life"), TermSpec("joined", 4))
            key = BY_NAME["Term"].store_key("", INCARNATION_TERM)
            await world.objects.commit(None, Txn(writes=(Put(key, encode(life), life),)))
            await virtual.until(lambda: memory.load().lease_until_mono_s > 0.0)
            assert memory.load().incarnation == 4

    virtual.run(main)


def test_registration_gets_epoch_above_known_fenced_epoch() -> None:
    """The agent was fenced up to epoch 7; the region has forgotten that, because the Node was deleted long ago."""

    async def main() -> None:
        async with remembering(PersistedState(epoch=7, fenced_epoch=7)) as (world, authority, memory, _):
            await virtual.until(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
            assert authority.lease_epoch("n1") == memory.load().epoch == 8
            await world.bind("a", template(), node_epoch=8)
            await virtual.until(lambda: world.ready("a"))

    virtual.run(main)


class Granting(RenewalService):
    """Grants leases of one length. With zero, the responses name no length."""

    def __init__(self, world: World, granted_s: float) -> None:
        super().__init__(world.ports)
        self.book = LeaseBook(granted_s or limits.NODE_LEASE_TTL_S)
        self._granted_s = granted_s

    async def renew(self, who: Principal, request: RenewRequest) -> PlacementResponse:
        response = await super().renew(who, request)
        results = [msgspec.structs.replace(result, ttl_seconds=self._granted_s) for result in response.results]
        return msgspec.structs.replace(response, results=tuple(results))


@pytest.mark.parametrize(("granted_s", "held_s"), [(8.0, 8.0), (60.0, 60.0), (0.0, limits.NODE_LEASE_TTL_S)])
def test_lease_lasts_as_long_as_the_authority_grants_counted_from_the_request(granted_s: float, held_s: float) -> None:
    """A longer lease would outlive the authority's wait before a fence (S7). Without a length the limit applies."""

    async def main() -> None:
        memory = KeptMemory()
        remaining_s: list[float] = []

        def record_lease(now_s: float) -> None:
            remaining_s.append(memory.load().lease_until_mono_s - now_s)

        async with registering(memory, lambda world: Granting(world, granted_s), changed=record_lease):
            await virtual.until(lambda: len(remaining_s) >= 3)
        assert remaining_s == pytest.approx([held_s] * len(remaining_s)), "no time passes between request and response"

    virtual.run(main)


class GrantingFencedEpoch(RenewalService):
    """Grants epoch 7 in the second response and from then on, as a cell that has forgotten its fence would."""

    async def renew(self, who: Principal, request: RenewRequest) -> PlacementResponse:
        response = await super().renew(who, request)
        if len(self.requests) < 2 or not request.items[0].epoch:
            return response
        return msgspec.structs.replace(
            response, results=tuple(msgspec.structs.replace(result, epoch=7) for result in response.results)
        )


def test_tasks_stop_at_once_if_a_fenced_epoch_is_granted() -> None:
    async def main() -> None:
        quiesced_s: list[float] = []
        memory = KeptMemory()
        memory.save(PersistedState(epoch=8, fenced_epoch=7))
        fenced_s: list[float] = []

        def record_fence(now_s: float) -> None:
            if memory.load().epoch == 7:
                fenced_s.append(now_s)

        async with registering(
            memory, lambda world: GrantingFencedEpoch(world.ports), changed=record_fence, quiesced=quiesced_s.append
        ):
            await virtual.until(lambda: bool(quiesced_s), within_s=60)
        assert quiesced_s[0] == fenced_s[0], "not only at the next renewal"

    virtual.run(main)


def test_registration_reads_its_node_once_in_a_resync_interval() -> None:
    """A read with every renewal would cost a region one read per node every five seconds."""

    async def main() -> None:
        async with registering(KeptMemory(), lambda world: world.renewal_service) as registration:
            read_s: set[float] = set()

            async def watch_reads() -> None:
                while True:
                    read_s.add(registration.node_read_mono_s)
                    await asyncio.sleep(1)

            watching = asyncio.create_task(watch_reads())
            await asyncio.sleep(10 * AGENT_RESYNC_S)
            watching.cancel()
        assert 7 <= len(read_s - {0.0}) <= 13, "ten intervals with jitter"

    virtual.run(main)


@asynccontextmanager
async def registering(
    memory: KeptMemory,
    authority: Callable[[World], RenewalService],
    *,
    changed: Callable[[float], None] = lambda now_s: None,
    quiesced: Callable[[float], None] = lambda now_s: None,
) -> AsyncIterator[Registration]:
    """A registration without tasks. `changed` and `quiesced` get the time of each call."""
    ports = virtual.VirtualPorts()
    world = await World(ports).start()

    async def quiesce() -> None:
        quiesced(ports.clock.monotonic())

    registration = Registration(
        config(),
        world.agent(placement=authority(world)),
        memory,
        ports,
        changed=lambda: changed(ports.clock.monotonic()),
        quiesce=quiesce,
        active=lambda: 0,
    )
    running = asyncio.create_task(registration.run())
    yield registration
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await world.close()
