"""One simulation from one seed: setup, fault phase, healing, and the check that the system converges."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.agent.config import AgentConfig
from holdfast.model import limits
from holdfast.model.errors import Fault
from holdfast.model.scheduler_policy import PartitionMode, Rules, SchedulerPolicy
from holdfast.sim import operators, people, sorts, troubles, users
from holdfast.sim.chaos import MENDED_BY_RESYNC, Chaos, Kind, Struck
from holdfast.sim.checkers import Violation
from holdfast.sim.checkers.convergence import Unsettled
from holdfast.sim.checkers.court import Court
from holdfast.sim.checkers.leftovers import leftovers
from holdfast.sim.checkers.reasons import without_reason
from holdfast.sim.checkers.waking import WakingChecker
from holdfast.sim.clients import RemoteClient
from holdfast.sim.coverage import Coverage
from holdfast.sim.declared import Shape, base_of, shape_of
from holdfast.sim.disk import Disk
from holdfast.sim.guards import guarded
from holdfast.sim.history import History
from holdfast.sim.hosts import NEVER_S, AgentHost, CellHost, Setting, agent_config
from holdfast.sim.loop import VirtualLoop
from holdfast.sim.machine import Work
from holdfast.sim.network import Network
from holdfast.sim.ports import EPOCH_S, SimClock, SimPorts, stream
from holdfast.sim.provider import Provider
from holdfast.sim.releases import Release

LOOK_EVERY_S = 5.0
TRIES_MAX = 600
GLOBAL = "global"
FAILURES_KEPT = 5
SHARE_MIXED = 0.5
"""Share of simulations in which processes of another release keep it after healing. The mixed system must converge."""
COLLECT_OFTEN = (300, 5, 5)


class Outcome(msgspec.Struct, frozen=True):
    """The result of a run. `objects` are the keys involved in its failures, for the timeline."""

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
    base: str = ""
    """The scenario that the seed started from, if any."""

    @property
    def ok(self) -> bool:
        return not self.violations and not self.unsettled and not self.failures


class PeopleRefusedError(RuntimeError):
    """A cell refused a setup write for too long. The run fails, but can still be reported."""


class Telling(msgspec.Struct, frozen=True):
    """The data of a finished run for the failure report."""

    struck: tuple[Struck, ...]
    history: History
    coverage: Coverage
    acts: tuple[Struck, ...] = ()
    """Actions of users."""
    healed_s: float = 0.0
    """End of the fault phase; 0 if the run ended before."""


class World:
    """`only` restricts faults and user actions to the named ones. `planned` replaces the drawn fault schedule. With
    `breach_by_s` the run ends at the first violation, or at that time."""

    def __init__(
        self,
        seed: int,
        shape: Shape | None = None,
        *,
        enabled: Iterable[Kind] | None = None,
        only: frozenset[str] | None = None,
        planned: tuple[troubles.Trouble, ...] | None = None,
        breach_by_s: float | None = None,
    ) -> None:
        self.seed = seed
        self._breach_by_s = breach_by_s
        self._reached: list[str] = []
        as_drawn = shape is None and planned is None and enabled is None
        base = self.base = base_of(seed) if as_drawn else None
        self.shape = shape or (base.shape if base is not None else shape_of(seed) if as_drawn else Shape())
        self.loop = VirtualLoop(stream(seed, "schedule"))
        also = base.riding if base is not None else frozenset()
        self.chaos = Chaos(seed, self.loop.time, enabled=enabled, also=also, only=only)
        if not self.shape.resyncing:
            self.chaos.enabled -= MENDED_BY_RESYNC
        self.mixed = stream(seed, "releases").random() < SHARE_MIXED
        self.court = Court(self.loop)
        self.network = Network(self.loop, self.chaos, stream(seed, "network"))
        self.wanted = people.Wanted()
        self.sorts = sorts.drawn(stream(seed, "sorts")) if self.shape.sorts is None else self.shape.sorts
        self._setting = Setting(
            seed,
            self.loop,
            self.chaos,
            self.network,
            self.court,
            self.court.began,
            watching=self.shape.watching,
            resync_s=limits.RESYNC_S if self.shape.resyncing else NEVER_S,
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
        self.troubles = (
            planned if planned is not None else (*(base.troubles if base is not None else ()), *self._drawn())
        )

    def _cell(self, name: str) -> CellHost:
        disk = Disk(name)
        host = CellHost(name, disk, self._setting)
        disk.witnesses.append(self.court.witness(name, host.clock.now, lambda: disk.way_s, lambda: disk.by))
        disk.asked = self.court.asked
        return host

    def _drawn(self) -> tuple[troubles.Trouble, ...]:
        where = troubles.Map(
            regions=self.shape.regions,
            nodes=tuple(agent.name for agent in self.agents),
            zones=tuple(zone for region in self.shape.regions for zone in people.zones_of(region)),
            tenants=self.shape.tenants,
        )
        return troubles.draw(self.seed, self.chaos.enabled, where, self.shape.faults_s)

    # Hosts

    def cells(self) -> list[CellHost]:
        return [self.global_cell, *self.regions]

    def cell(self, name: str) -> CellHost:
        return next(cell for cell in self.cells() if cell.name == name)

    def agent(self, name: str) -> AgentHost:
        return next(agent for agent in self.agents if agent.name == name)

    def host(self, name: str) -> CellHost | AgentHost:
        return next((cell for cell in self.cells() if cell.name == name), None) or self.agent(name)

    def new_machine(self, region: CellHost, config: AgentConfig) -> AgentHost:
        return AgentHost(region, config, self._setting)

    def clock(self, name: str) -> SimClock:
        cell = next((cell for cell in self.cells() if cell.name == name), None)
        return cell.clock if cell is not None else self.agent(name).machine.clock

    def operator_of(self, cell: str, who: str = "operator") -> RemoteClient:
        """The client of a person for one cell. Watch faults do not affect it."""
        ports = SimPorts(self._people_clock, self.seed, f"{who}/{cell}")
        return RemoteClient(self.network, who, self.cell(cell), ports, self.court)

    # The story

    def run(self) -> Outcome:
        """Lives through the story once. A world is used up afterwards, and nothing of it is left."""
        with _no_collecting():
            try:
                return self.live()
            finally:
                self._dismantle()

    def live(self, *, collecting: bool = False) -> Outcome:
        """Runs without teardown, for a process that exits afterwards."""
        asyncio.set_event_loop(self.loop)
        try:
            with guarded() as reached, _collecting() if collecting else _no_collecting():
                self._reached = reached
                by_s = self._breach_by_s
                story = self._story() if by_s is None else self._until_broken(by_s)
                settled_in_s, left = self.loop.run_until_complete(story)
            return self._outcome(settled_in_s, left)
        finally:
            asyncio.set_event_loop(None)

    def telling(self) -> Telling:
        coverage = self.court.coverage
        coverage.of_one_seed(_by_name(self.chaos.fired), _by_name(self.chaos.felt))
        acts = tuple(self.chaos.acts)
        return Telling(tuple(self.chaos.struck), self.court.history, coverage, acts, self.chaos.healed_s)

    def _outcome(self, settled_in_s: float, left: Unsettled | None) -> Outcome:
        objects = dict.fromkeys(key for violation in self.court.violations for key in violation.objects)
        if left is not None:
            objects.update(left.objects)
        return Outcome(
            seed=self.seed,
            violations=tuple(self.court.violations),
            unsettled=tuple(left.found) if left is not None else (),
            failures=(*self._reached, *_dropped(self.loop), *_failures(self.loop.failures))[:FAILURES_KEPT],
            simulated_s=self.loop.time(),
            settled_in_s=settled_in_s,
            node_hours=self.loop.time() * self.shape.nodes_per_region * len(self.shape.regions) / 3600,
            commits=self.court.commits,
            steps=self.loop.steps,
            faults={kind.value: count for kind, count in sorted(self.chaos.fired.items())},
            digest=f"{self.loop.trace:016x}",
            objects=tuple(objects),
            base=self.base.title if self.base is not None else "",
        )

    def _dismantle(self) -> None:
        """Drops all references, so that the memory is free for the next simulation."""
        self.regions.clear()
        self.agents.clear()
        del self.global_cell, self.operator, self.network, self._setting
        self.loop.end()

    async def _until_broken(self, by_s: float) -> tuple[float, Unsettled | None]:
        story = self.loop.create_task(self._story())
        while not story.done() and not self.court.violations and self.loop.time() < by_s:
            await asyncio.sleep(1.0)
        return story.result() if story.done() else (0.0, None)

    async def _story(self) -> tuple[float, Unsettled | None]:
        for host in self.cells():
            host.boot()
        await asyncio.sleep(1.0)
        for agent in self.agents:
            agent.boot()
        chance = stream(self.seed, "people")
        land = people.land(self.shape.regions, self.shape.tenants, self.shape.nodes_per_region, self.sorts)
        self.wanted = await self._persist(lambda: people.set_up(self.operator, land, chance, self.chaos))
        if self.shape.partition_mode is not PartitionMode.WAIT:
            rules = Rules(partition_mode=self.shape.partition_mode)
            await self._persist(lambda: people.edit(self.operator, SchedulerPolicy, "default", "", rules=rules))
        if "pooled" in self.sorts:
            self.loop.create_task(Provider(self).run())
        self.chaos.begin()
        going_on: list[asyncio.Task[None]] = []
        if self.shape.changing:
            changing = users.keep_changing(self.operator, self.wanted, land, chance, self.chaos)
            going_on.append(self.loop.create_task(changing))
        going_on += [self.loop.create_task(troubles.suffer(self, trouble)) for trouble in self.troubles]
        looking = [self.loop.create_task(users.look_on(self.operator, tenant)) for tenant in self.shape.tenants]
        await asyncio.sleep(self.shape.faults_s)
        self.chaos.heal()
        await self._heal()
        await asyncio.gather(*going_on)
        for task in looking:
            task.cancel()
        await self._heal()
        try:
            return await self._settle()
        except PeopleRefusedError as refused:
            self._reached.append(str(refused))
            return self.shape.settle_s, None

    async def _persist(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """Retries a setup action every second. Raises after TRIES_MAX failures."""
        for _ in range(TRIES_MAX):
            try:
                return await act()
            except Fault as fault:
                refusal = fault
                await asyncio.sleep(1.0)
        raise PeopleRefusedError(f"a setup write was refused {TRIES_MAX} times: {refusal}")

    async def _heal(self) -> None:
        self.network.heal()
        hosts: list[CellHost | AgentHost] = [*self.cells(), *self.agents]
        for host in hosts:
            if host.release is not Release.PRESENT and not self.mixed:
                host.install(Release.PRESENT)
            host.heal()
        for clock in (*(c.clock for c in self.cells()), *(a.machine.clock for a in self.agents)):
            clock.step_s = 0.0
            clock.drift(1.0)

    def _standing(self) -> tuple[int, list[tuple[AgentHost, list[Work]]]]:
        """The number of stored changes and the running tasks. While they are unchanged, a check gives the same."""
        return self.court.moved, [(agent, agent.machine.running()) for agent in self.agents]

    async def _settle(self) -> tuple[float, Unsettled | None]:
        healed_s = self.loop.time()
        await self._persist(lambda: operators.put_right(self))
        await self._persist(lambda: people.calm(self.operator, self.wanted))
        quiet_since_s = -1.0
        left: Unsettled | None = None
        looked_at = self._standing()
        waited: set[tuple[str, str]] = set()
        waking = WakingChecker(self.court, self.shape.regions, self.loop.time(), watching=self.shape.watching)
        rested: dict[tuple[str, str], int] = {}
        while self.loop.time() - healed_s < self.shape.settle_s + 2 * self.shape.stable_s:
            await asyncio.sleep(LOOK_EVERY_S)
            if left is None or looked_at != self._standing():
                looked_at = self._standing()
                left = Unsettled(self.court, self.wanted, self.shape.regions, self.agents, waited)
                waking.look(self.loop.time())
            now_s = self.loop.time()
            for region, found in waking.late(now_s):
                self.court.broken(region, (found,))
            if left.found:
                if now_s - healed_s > self.shape.settle_s and len(left.found) > left.going_on:
                    break
                quiet_since_s = -1.0
                self.court.unrest.rest(None)
            elif quiet_since_s < 0 or any(left.waits.get(name, 0) < count for name, count in rested.items()):
                # The quiet phase starts here. It starts again when a pending replica got its room.
                quiet_since_s, rested = now_s, left.waits
                self.court.unrest.rest(now_s)
            elif now_s - quiet_since_s >= self.shape.stable_s:
                self.court.broken(GLOBAL, self.court.unrest.restless(now_s))
                self._look_at_rest(EPOCH_S + now_s)
                return quiet_since_s - healed_s, None
        if left is not None and not left.found:
            left.found.append(f"converged, but not stable for {self.shape.stable_s:g} s")
        return self.shape.settle_s, left

    def _look_at_rest(self, wall_s: float) -> None:
        """Checks of the quiet phase beyond convergence: no leaked objects, and a reason for every pending replica."""
        states = {cell.name: self.court.state(cell.name) for cell in self.cells()}
        for where, breach in leftovers(states, wall_s):
            self.court.broken(where, (breach,))
        for where, state in states.items():
            self.court.broken(where, without_reason(where, state, wall_s))


@contextmanager
def _collecting() -> Iterator[None]:
    """Collects garbage very often. If a result depends on the collector, the digest differs."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*COLLECT_OFTEN)
    gc.enable()
    try:
        yield
    finally:
        gc.disable()
        gc.set_threshold(*thresholds)


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Disables the garbage collector, because its timing depends on the history of the interpreter."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _by_name(counts: Counter[Kind]) -> dict[str, int]:
    return {kind.value: count for kind, count in counts.items() if count}


def _dropped(loop: VirtualLoop) -> Iterator[str]:
    for name, times in loop.dropped.items():
        yield f"{name}: not closed {times} times; next: read it inside contextlib.aclosing"


def _failures(contexts: Iterable[dict[str, Any]]) -> Iterator[str]:
    for context in contexts:
        error = context.get("exception")
        if error is not None:
            yield f"{context.get('message', '')}: {type(error).__name__}: {error}"
