"""Hollow nodes against the region's real gate and authority, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.agent.agent_world import REGION, World, template
from tests.agent.test_with_authority import Reached, elected
from tests.controllers import virtual

from holdfast.agent.hollow import DelayRange, HollowConfig, HollowDelays, HollowHost
from holdfast.authority.authority import Authority
from holdfast.gate.local_client import LocalClient
from holdfast.model.node import Node
from holdfast.model.principal import HOLLOW_NODES, from_identity
from holdfast.model.probe import Probe, TcpProbe
from holdfast.model.replica import Phase
from holdfast.model.template import Probes, RestartPolicy

PREFIX = "h-"
COUNT = 7


def run(check: Callable[[World, Authority, HollowHost], Awaitable[None]]) -> None:
    async def main() -> None:
        ports = virtual.VirtualPorts()
        world = await World(ports).start()
        authority = Authority(REGION, world.objects, ports)
        await authority.start(await elected(world))
        who = from_identity(f"holdfast:hollow:{REGION}:{PREFIX}", (HOLLOW_NODES,), credential="test")
        client = LocalClient(world.gate, who, placement=Reached(authority, world))
        config = HollowConfig(
            region=REGION,
            prefix=PREFIX,
            count=COUNT,
            zones=("a", "b"),
            capacity={"cpu": "4", "memory": "32Gi"},
            delays=HollowDelays(DelayRange(2.0, 3.0), DelayRange(1.0, 2.0), DelayRange(0.5, 1.0), DelayRange(5.0, 6.0)),
        )
        host = HollowHost(config, client, ports)
        tasks = [asyncio.create_task(authority.run()), asyncio.create_task(host.run())]
        await virtual.until(lambda: all(registered(world, number) for number in range(COUNT)), within_s=20)
        await check(world, authority, host)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await world.close()

    virtual.run(main)


def name(number: int) -> str:
    return f"{PREFIX}{number:05}"


def node(world: World, number: int) -> Node:
    found = world.node(name(number))
    assert found is not None
    return found


def registered(world: World, number: int) -> bool:
    return world.node(name(number)) is not None and node(world, number).status.execution.reconciled


def test_hollow_nodes_register_and_keep_their_leases() -> None:
    async def check(world: World, authority: Authority, host: HollowHost) -> None:
        assert {node(world, number).spec.zone for number in range(COUNT)} == {"a", "b"}
        assert [authority.lease_epoch(name(number)) for number in range(COUNT)] == [1] * COUNT
        await asyncio.sleep(120)
        assert all(node(world, number).status.fence.fenced_epoch == 0 for number in range(COUNT))

    run(check)


def test_hollow_task_starts_stops_and_acknowledges() -> None:
    async def check(world: World, authority: Authority, host: HollowHost) -> None:
        await world.bind("a", template(), node=name(3), node_epoch=1)
        await virtual.until(lambda: world.phase("a") == Phase.STARTING)
        assert not world.ready("a")
        await virtual.until(lambda: world.ready("a"), within_s=5)
        assert host.running == 1
        await world.request_stop("a")
        await virtual.until(lambda: bool(acknowledged(world, "a")), within_s=5)
        assert world.phase("a") == Phase.STOPPED
        assert host.running == 0

    run(check)


def test_hollow_task_with_probes_is_ready_only_after_them() -> None:
    async def check(world: World, authority: Authority, host: HollowHost) -> None:
        probes = Probes(readiness=Probe(tcp=TcpProbe()))
        await world.bind("a", template(probes=probes), node=name(0), node_epoch=1)
        await virtual.until(lambda: world.phase("a") == Phase.RUNNING, within_s=5)
        assert not world.ready("a")
        await virtual.until(lambda: world.ready("a"), within_s=5)

    run(check)


def test_hollow_batch_task_succeeds_and_acknowledges() -> None:
    async def check(world: World, authority: Authority, host: HollowHost) -> None:
        await world.bind("a", template(restart_policy=RestartPolicy.NEVER), node=name(1), node_epoch=1)
        await virtual.until(lambda: world.phase("a") == Phase.SUCCEEDED, within_s=15)
        await virtual.until(lambda: bool(acknowledged(world, "a")))

    run(check)


def test_hollow_node_after_fence_stops_tasks_and_gets_new_epoch() -> None:
    async def check(world: World, authority: Authority, host: HollowHost) -> None:
        await world.bind("a", template(), node=name(2), node_epoch=1)
        await virtual.until(lambda: world.ready("a"), within_s=5)
        world.renewal_service.away = True
        await virtual.until(lambda: node(world, 2).status.fence.fenced_epoch == 1, within_s=60)
        assert host.running == 1, "a partitioned node keeps its tasks"
        world.renewal_service.away = False
        await virtual.until(lambda: node(world, 2).status.execution.epoch == 2, within_s=30)
        await virtual.until(lambda: node(world, 2).status.execution.reconciled, within_s=30)
        await virtual.until(lambda: bool(acknowledged(world, "a")), within_s=5)
        assert host.running == 0

    run(check)


def acknowledged(world: World, replica: str) -> str:
    found = world.binding(replica)
    assert found is not None
    return found.status.acknowledged_at
