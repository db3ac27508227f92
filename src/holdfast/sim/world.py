"""One world from one seed: cells, agents, people, faults; then healing, and the demand that everything comes right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.model.errors import Fault
from holdfast.sim import people
from holdfast.sim.chaos import Chaos, Kind
from holdfast.sim.checkers import Violation
from holdfast.sim.checkers.convergence import unsettled
from holdfast.sim.checkers.court import Court
from holdfast.sim.disk import Disk
from holdfast.sim.hosts import AgentHost, CellHost
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.network import Network, RemoteClient
from holdfast.sim.ports import SimPorts, stream


class Shape(msgspec.Struct, frozen=True):
    """How large the world is, and for how long things go wrong in it."""

    regions: tuple[str, ...] = ("east", "west")
    nodes_per_region: int = 2
    faults_s: float = 120.0
    settle_s: float = 600.0
    stable_s: float = 60.0


class Outcome(msgspec.Struct, frozen=True):
    seed: int
    violations: tuple[Violation, ...]
    unsettled: tuple[str, ...]
    failures: tuple[str, ...]
    simulated_s: float
    settled_in_s: float
    node_hours: float
    commits: int
    steps: int
    faults: dict[str, int]
    digest: str

    @property
    def ok(self) -> bool:
        return not self.violations and not self.unsettled and not self.failures


class World:
    def __init__(self, seed: int, shape: Shape | None = None, *, enabled: frozenset[Kind] | None = None) -> None:
        self.seed = seed
        self.shape = shape or Shape()
        self.loop = VirtualLoop(stream(seed, "schedule"))
        self.chaos = Chaos(seed, enabled=enabled)
        self.court = Court(self.loop.time)
        self.network = Network(self.loop, self.chaos, stream(seed, "network"))
        self.global_cell = self._cell("global")
        self.regions = [self._cell(name) for name in self.shape.regions]
        for region in self.regions:
            region.above = self.global_cell
        self.agents = [
            AgentHost(
                region, f"{region.name}-n{n}", f"{region.name}-{'ab'[n % 2]}", seed=seed, gpus=n % 2, loop=self.loop,
                chaos=self.chaos, network=self.network, capacity={"cpu": "4", "memory": "16Gi"},
            )
            for region in self.regions
            for n in range(self.shape.nodes_per_region)
        ]  # fmt: skip
        ports = SimPorts(self.loop, seed, "operator")
        self.operator = RemoteClient(self.network, "operator", self.global_cell, ports)

    def _cell(self, name: str) -> CellHost:
        disk = Disk(name)
        disk.witnesses.append(self.court.witness(name))
        return CellHost(name, disk, loop=self.loop, chaos=self.chaos, network=self.network, seed=self.seed)

    def cells(self) -> list[CellHost]:
        return [self.global_cell, *self.regions]

    # The story

    def run(self) -> Outcome:
        """Lives through the story once. A world is used up afterwards."""
        asyncio.set_event_loop(self.loop)
        try:
            settled_in_s, left = self.loop.run_until_complete(self._story())
            return self._outcome(settled_in_s, left)
        finally:
            asyncio.set_event_loop(None)
            self._dismantle()

    def _outcome(self, settled_in_s: float, left: list[str]) -> Outcome:
        return Outcome(
            seed=self.seed,
            violations=tuple(self.court.violations),
            unsettled=tuple(left),
            failures=tuple(_failure(f) for f in self.loop.failures if f.get("exception") is not None)[:5],
            simulated_s=self.loop.time(),
            settled_in_s=settled_in_s,
            node_hours=self.loop.time() * len(self.agents) / 3600,
            commits=self.court.commits,
            steps=self.loop.steps,
            faults={kind.value: count for kind, count in sorted(self.chaos.fired.items())},
            digest=f"{self.loop.trace:016x}",
        )

    def _dismantle(self) -> None:
        """Forgets every process, so that nothing of this world is left in memory when the next one begins."""
        self.regions.clear()
        self.agents.clear()
        del self.global_cell, self.operator, self.network
        self.loop.end()

    async def _story(self) -> tuple[float, list[str]]:
        for host in self.cells():
            host.boot()
        await asyncio.sleep(1.0)
        for agent in self.agents:
            agent.boot()
        chance = stream(self.seed, "people")
        wanted = await self._persist(lambda: people.set_up(self.operator, self.shape.regions, chance))
        until = self.loop.time() + self.shape.faults_s
        troubles = [
            self.loop.create_task(trouble)
            for trouble in (
                people.keep_changing(self.operator, wanted, chance, until, self.loop),
                self._crashes(until),
                self._node_troubles(until),
                self._cuts(until),
            )
        ]
        await asyncio.gather(*troubles)
        return await self._heal(wanted)

    async def _persist(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """People try again until it works."""
        while True:
            try:
                return await act()
            except Fault:
                await asyncio.sleep(1.0)

    async def _heal(self, wanted: people.Wanted) -> tuple[float, list[str]]:
        self.chaos.heal()
        for region in self.regions:
            self.network.join(f"region/{region.name}", "global")
        hosts: list[CellHost | AgentHost] = [*self.cells(), *self.agents]
        for host in hosts:
            if host.process is None or not host.process.alive:
                host.boot()
            elif host.process.paused:
                self.loop.resume(host.process)
        await self._persist(lambda: people.calm(self.operator, wanted))
        healed_s = self.loop.time()
        quiet_since = -1.0
        left: list[str] = []
        while self.loop.time() - healed_s < self.shape.settle_s:
            await asyncio.sleep(2.0)
            left = unsettled(self.court, wanted, self.regions, self.agents)
            if left:
                quiet_since = -1.0
            elif quiet_since < 0:
                quiet_since = self.loop.time()
            elif self.loop.time() - quiet_since >= self.shape.stable_s:
                return quiet_since - healed_s, []
        return self.shape.settle_s, left

    # Troubles that come by themselves

    async def _crashes(self, until: float) -> None:
        chance = self.chaos.of(Kind.CELL_CRASH)
        while Kind.CELL_CRASH in self.chaos.enabled and self.loop.time() < until:
            await asyncio.sleep(chance.uniform(5.0, 40.0))
            host = chance.choice(self.cells())
            self.chaos.note(Kind.CELL_CRASH)
            host.crash()
            await asyncio.sleep(chance.uniform(0.1, 20.0))
            host.boot()

    async def _node_troubles(self, until: float) -> None:
        kinds = [k for k in (Kind.AGENT_CRASH, Kind.AGENT_PAUSE, Kind.NODE_LOSS) if k in self.chaos.enabled]
        chance = self.chaos.of(Kind.AGENT_CRASH)
        while kinds and self.loop.time() < until:
            await asyncio.sleep(chance.uniform(3.0, 30.0))
            agent = chance.choice(self.agents)
            kind = chance.choice(kinds)
            if agent.process is None or not agent.process.alive or agent.process.paused:
                continue
            self.chaos.note(kind)
            self.loop.create_task(self._trouble(agent, kind, chance))

    async def _trouble(self, agent: AgentHost, kind: Kind, chance: random.Random) -> None:
        process = agent.process
        assert process is not None
        for_s = chance.uniform(0.5, 60.0)
        if kind is Kind.AGENT_PAUSE:
            self.loop.pause(process)
            await asyncio.sleep(for_s)
            if process.alive:
                self.loop.resume(process)
            return
        if kind is Kind.NODE_LOSS:
            agent.lose_power()
        else:
            agent.crash()
        await asyncio.sleep(for_s)
        if agent.process is process:
            agent.boot()

    async def _cuts(self, until: float) -> None:
        chance = self.chaos.of(Kind.LINK_CUT)
        while Kind.LINK_CUT in self.chaos.enabled and self.loop.time() < until:
            await asyncio.sleep(chance.uniform(10.0, 40.0))
            region = chance.choice(self.regions)
            self.chaos.note(Kind.LINK_CUT)
            self.network.cut(f"region/{region.name}", "global")
            await asyncio.sleep(chance.uniform(1.0, 60.0))
            self.network.join(f"region/{region.name}", "global")


def _failure(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message', '')}: {type(error).__name__}: {error}"
