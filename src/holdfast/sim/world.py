"""One world from one seed: cells, agents, people, faults; then healing, and the demand that everything comes right."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.model.errors import Fault
from holdfast.model.scheduler_policy import PartitionMode, Rules, SchedulerPolicy
from holdfast.sim import operators, people, sorts, troubles
from holdfast.sim.chaos import Chaos, Kind, Struck
from holdfast.sim.checkers import Violation
from holdfast.sim.checkers.convergence import Unsettled
from holdfast.sim.checkers.court import Court
from holdfast.sim.clients import RemoteClient
from holdfast.sim.coverage import Coverage
from holdfast.sim.disk import Disk
from holdfast.sim.guards import guarded
from holdfast.sim.history import History
from holdfast.sim.hosts import AgentHost, CellHost, Setting, agent_config
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.network import Network
from holdfast.sim.ports import SimClock, SimPorts, stream

LOOK_EVERY_S = 5.0
GLOBAL = "global"


class Shape(msgspec.Struct, frozen=True):
    """How large the world is, for how long things go wrong in it, and how long it may take to come right."""

    regions: tuple[str, ...] = ("east", "west")
    tenants: tuple[str, ...] = ("acme", "globex")
    nodes_per_region: int = 12
    faults_s: float = 150.0
    settle_s: float = 600.0
    stable_s: float = 300.0
    sorts: tuple[str, ...] | None = None
    """What users run (`sim/sorts.py`); None leaves it to the seed."""
    partition_mode: PartitionMode = PartitionMode.WAIT
    watching: bool = True
    """Whether watches say anything; without them everything must be found by listing from time to time."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a run. `objects` are the keys that its failures are about, for the timeline."""

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
    objects: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.violations and not self.unsettled and not self.failures


class Telling(msgspec.Struct, frozen=True):
    """What a story can be told from, after its world is gone."""

    struck: tuple[Struck, ...]
    history: History
    coverage: Coverage


class World:
    """`only` limits the faults to those named; `planned` replaces the drawn troubles by a list of one's own."""

    def __init__(
        self,
        seed: int,
        shape: Shape | None = None,
        *,
        enabled: Iterable[Kind] | None = None,
        only: frozenset[str] | None = None,
        planned: tuple[troubles.Trouble, ...] | None = None,
    ) -> None:
        self.seed = seed
        self.shape = shape or Shape()
        self.loop = VirtualLoop(stream(seed, "schedule"))
        self.chaos = Chaos(seed, self.loop.time, enabled=enabled, only=only)
        self.court = Court(self.loop)
        self.network = Network(self.loop, self.chaos, stream(seed, "network"))
        self.wanted = people.Wanted()
        self._setting = Setting(
            seed, self.loop, self.chaos, self.network, self.court, self.court.began, self.shape.watching
        )
        self.global_cell = self._cell(GLOBAL)
        self.regions = [self._cell(name) for name in self.shape.regions]
        for region in self.regions:
            region.above = self.global_cell
            region.peers = {other.name: other for other in self.regions}
        chance = stream(seed, "machines")
        self.agents = [
            AgentHost(
                region, agent_config(region.name, n, people.zones_of(region.name), chance), self._setting
            )
            for region in self.regions
            for n in range(self.shape.nodes_per_region)
        ]  # fmt: skip
        self._people_clock = SimClock(self.loop)
        self.operator = self.operator_of(GLOBAL)
        self.troubles = planned if planned is not None else self._drawn()

    def _cell(self, name: str) -> CellHost:
        disk = Disk(name)
        disk.witnesses.append(self.court.witness(name))
        disk.asked = self.court.asked
        return CellHost(name, disk, self._setting)

    def _drawn(self) -> tuple[troubles.Trouble, ...]:
        where = troubles.Map(
            regions=self.shape.regions,
            nodes=tuple(agent.name for agent in self.agents),
            zones=tuple(zone for region in self.shape.regions for zone in people.zones_of(region)),
            tenants=self.shape.tenants,
        )
        return troubles.draw(self.seed, self.chaos.enabled, where, self.shape.faults_s)

    # Who is there

    def cells(self) -> list[CellHost]:
        return [self.global_cell, *self.regions]

    def cell(self, name: str) -> CellHost:
        return next(cell for cell in self.cells() if cell.name == name)

    def agent(self, name: str) -> AgentHost:
        return next(agent for agent in self.agents if agent.name == name)

    def clock(self, name: str) -> SimClock:
        cell = next((cell for cell in self.cells() if cell.name == name), None)
        return cell.clock if cell is not None else self.agent(name).machine.clock

    def operator_of(self, cell: str, who: str = "operator") -> RemoteClient:
        """A person's client of one cell; what people see is not disturbed by what a run does to watches."""
        ports = SimPorts(self._people_clock, self.seed, f"{who}/{cell}")
        return RemoteClient(self.network, who, self.cell(cell), ports, self.court)

    # The story

    def run(self) -> Outcome:
        """Lives through the story once. A world is used up afterwards."""
        asyncio.set_event_loop(self.loop)
        try:
            with guarded(), _no_collecting():
                settled_in_s, left = self.loop.run_until_complete(self._story())
            return self._outcome(settled_in_s, left)
        finally:
            asyncio.set_event_loop(None)
            self._dismantle()

    def telling(self) -> Telling:
        coverage = self.court.coverage
        coverage.faults.update({kind.value: count for kind, count in self.chaos.fired.items()})
        return Telling(tuple(self.chaos.struck), self.court.history, coverage)

    def _outcome(self, settled_in_s: float, left: Unsettled | None) -> Outcome:
        objects = dict.fromkeys(key for violation in self.court.violations for key in violation.objects)
        if left is not None:
            objects.update(left.objects)
        return Outcome(
            seed=self.seed,
            violations=tuple(self.court.violations),
            unsettled=tuple(left.found) if left is not None else (),
            failures=tuple(_failure(f) for f in self.loop.failures if f.get("exception") is not None)[:5],
            simulated_s=self.loop.time(),
            settled_in_s=settled_in_s,
            node_hours=self.loop.time() * self.shape.nodes_per_region * len(self.shape.regions) / 3600,
            commits=self.court.commits,
            steps=self.loop.steps,
            faults={kind.value: count for kind, count in sorted(self.chaos.fired.items())},
            digest=f"{self.loop.trace:016x}",
            objects=tuple(objects),
        )

    def _dismantle(self) -> None:
        """Forgets every process, so that nothing of this world is left in memory when the next one begins."""
        self.regions.clear()
        self.agents.clear()
        del self.global_cell, self.operator, self.network, self._setting
        self.loop.end()

    async def _story(self) -> tuple[float, Unsettled | None]:
        for host in self.cells():
            host.boot()
        await asyncio.sleep(1.0)
        for agent in self.agents:
            agent.boot()
        chance = stream(self.seed, "people")
        brought = sorts.drawn(stream(self.seed, "sorts")) if self.shape.sorts is None else self.shape.sorts
        land = people.land(self.shape.regions, self.shape.tenants, self.shape.nodes_per_region, brought)
        self.wanted = await self._persist(lambda: people.set_up(self.operator, land, chance))
        if self.shape.partition_mode is not PartitionMode.WAIT:
            rules = Rules(partition_mode=self.shape.partition_mode)
            await self._persist(lambda: people.edit(self.operator, SchedulerPolicy, "default", "", rules=rules))
        self.chaos.begin()
        going_on = [
            self.loop.create_task(people.keep_changing(self.operator, self.wanted, land, chance, self.chaos)),
            *(self.loop.create_task(troubles.suffer(self, trouble)) for trouble in self.troubles),
        ]
        looking = [self.loop.create_task(people.look_on(self.operator, tenant)) for tenant in self.shape.tenants]
        await asyncio.sleep(self.shape.faults_s)
        self.chaos.heal()
        await self._heal()
        await asyncio.gather(*going_on)
        for task in looking:
            task.cancel()
        await self._heal()
        return await self._settle()

    async def _persist(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """People try again until it works."""
        while True:
            try:
                return await act()
            except Fault:
                await asyncio.sleep(1.0)

    async def _heal(self) -> None:
        self.network.heal()
        hosts: list[CellHost | AgentHost] = [*self.cells(), *self.agents]
        for host in hosts:
            host.heal()
        for clock in (*(c.clock for c in self.cells()), *(a.machine.clock for a in self.agents)):
            clock.step_s = 0.0
            clock.drift(1.0)

    async def _settle(self) -> tuple[float, Unsettled | None]:
        healed_s = self.loop.time()
        await self._persist(lambda: operators.put_right(self))
        await self._persist(lambda: people.calm(self.operator, self.wanted))
        quiet_since_s = -1.0
        left: Unsettled | None = None
        while self.loop.time() - healed_s < self.shape.settle_s + self.shape.stable_s:
            await asyncio.sleep(LOOK_EVERY_S)
            left = Unsettled(self.court, self.wanted, self.shape.regions, self.agents)
            now_s = self.loop.time()
            if left.found:
                if now_s - healed_s > self.shape.settle_s:
                    break
                quiet_since_s = -1.0
                self.court.unrest.rest(None)
            elif quiet_since_s < 0:
                quiet_since_s = now_s
                self.court.unrest.rest(now_s)
            elif now_s - quiet_since_s >= self.shape.stable_s:
                self.court.broken(GLOBAL, self.court.unrest.restless(now_s))
                return quiet_since_s - healed_s, None
        return self.shape.settle_s, left


@contextmanager
def _no_collecting() -> Iterator[None]:
    """When a cycle is collected depends on everything the interpreter ever did; so none is while a world runs."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _failure(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message', '')}: {type(error).__name__}: {error}"
