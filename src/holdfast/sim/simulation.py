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
from holdfast.model.scheduler_policy import PartitionMode, PolicyRules, SchedulerPolicy
from holdfast.sim import actors, cron_users, fault_schedule, operators, users, workload_profiles
from holdfast.sim.actors import zones_of
from holdfast.sim.checkers import Violation
from holdfast.sim.checkers.checker_set import CheckerSet
from holdfast.sim.checkers.convergence import ConvergenceCheck, ConvergenceTimer
from holdfast.sim.checkers.cron_runs import ticks_at_rest
from holdfast.sim.checkers.leaked_objects import leaked_objects
from holdfast.sim.checkers.maintenance import drains_at_rest
from holdfast.sim.checkers.pending_reasons import unexplained_waits
from holdfast.sim.checkers.quota_wakeups import QuotaWakeupChecker
from holdfast.sim.clients import RemoteClient
from holdfast.sim.commit_history import CommitHistory
from holdfast.sim.coverage import Coverage
from holdfast.sim.determinism_guards import forbid_nondeterminism
from holdfast.sim.disk import Disk
from holdfast.sim.fault_injection import LOST_STORES, REPAIRED_BY_RESYNC, FaultInjector, FaultKind, InjectedFault
from holdfast.sim.hosts import NEVER_S, AgentHost, CellHost, HostContext, agent_config
from holdfast.sim.loop import ENVIRONMENT, Livelock, VirtualLoop
from holdfast.sim.lost_stores import LostStores
from holdfast.sim.machine import TaskRun
from holdfast.sim.network import Network
from holdfast.sim.node_provider import SimNodeProvider
from holdfast.sim.ports import EPOCH_S, SimClock, SimPorts, random_stream
from holdfast.sim.releases import ReleaseVersion
from holdfast.sim.scenario_files import CROWDED_NODES, ScenarioVariant, SimulationSize, base_scenario, drawn_size

CHECK_EVERY_S = 5.0
SETUP_ATTEMPTS_MAX = 600
GLOBAL = "global"
FAILURES_MAX = 5
MIXED_RELEASES_FRACTION = 0.5
"""Share of simulations in which processes of another release keep it after healing. The mixed system must converge."""
LONG_FAULTS_S = {FaultKind.REGION_RETURNS_STALE: 240.0, FaultKind.REGION_CUT_OFF: 330.0}
"""Minimum length of the fault phase of a run with faults whose consequences take minutes."""
FAILBACK_SCENARIO = "stale-failback"
CALM_FRACTION = 0.1
"""Share of the drawn fault kinds that a run with a failback keeps."""
CORDON_AT_BIND_FRACTION = 0.5
AFTER_RESTORE_S = 120.0
FREQUENT_GC = (300, 5, 5)
CROWDED_PROFILES = ("urgent", "critical", "gang")
"""Profiles of a run with few nodes: they preempt, reclaim and wait."""
NEEDED_PROFILES = {FaultKind.REGION_RETURNS_STALE: ("critical",)}
"""Profiles that a run has if it draws the fault: without them the fault would show nothing."""
NOT_STABLE = "converged, but not stable"
"""Begins the message about a system that converged again and again."""


class RunOutcome(msgspec.Struct, frozen=True):
    """The result of a run. `objects` are the keys involved in its failures, for the timeline. `converged_in_s` leaves
    out the time in which only permitted work ran (`ConvergenceTimer`)."""

    seed: int
    violations: tuple[Violation, ...]
    unconverged: tuple[str, ...]
    failures: tuple[str, ...]
    simulated_s: float
    converged_in_s: float
    node_hours: float
    commits: int
    steps: int
    faults: dict[str, int]
    digest: str
    objects: tuple[str, ...] = ()
    base_scenario: str = ""
    """The scenario that the seed started from, if any."""

    @property
    def ok(self) -> bool:
        return not self.violations and not self.unconverged and not self.failures


class SetupRefusedError(RuntimeError):
    """A cell refused a setup write for too long. The run fails, but can still be reported."""


class RunRecording(msgspec.Struct, frozen=True):
    """The data of a finished run for the failure report."""

    injected: tuple[InjectedFault, ...]
    history: CommitHistory
    coverage: Coverage
    user_actions: tuple[InjectedFault, ...] = ()
    """Actions of users."""
    healed_s: float = 0.0
    """End of the fault phase; 0 if the run ended before."""


class Simulation:
    """One run of the whole system. `only` restricts faults and user actions to the named ones. `planned` replaces the
    drawn fault schedule. With `violation_by_s` the run ends at the first violation, or at that time. `schedule` selects
    another interleaving and other latencies of the same seed. `until_converged` skips the check of stability."""

    def __init__(
        self,
        seed: int,
        size: SimulationSize | None = None,
        *,
        enabled: Iterable[FaultKind] | None = None,
        only: frozenset[str] | None = None,
        planned: tuple[fault_schedule.ScheduledFault, ...] | None = None,
        violation_by_s: float | None = None,
        schedule: int = 0,
        until_converged: bool = False,
    ) -> None:
        self.seed = seed
        self._until_converged = until_converged
        variant = f"/{schedule}" if schedule else ""
        self._violation_by_s = violation_by_s
        self._nondeterminism: list[str] = []
        as_drawn = size is None and planned is None and enabled is None
        base = self.base_scenario = base_scenario(seed) if as_drawn else None
        self.size = size or (base.size if base is not None else drawn_size(seed) if as_drawn else SimulationSize())
        self.loop = VirtualLoop(random_stream(seed, f"schedule{variant}"))
        also = base.operation_faults if base is not None else frozenset()
        self.faults = FaultInjector(seed, self.loop.time, enabled=enabled, also=also, only=only)
        if not self.size.resync_enabled:
            self.faults.enabled -= REPAIRED_BY_RESYNC
        if as_drawn:
            self.faults.enabled = _calmed(seed, self.faults.enabled, base)
            self.size = _size_for(self.size, self.faults.enabled)
        self.keeps_mixed_releases = random_stream(seed, "releases").random() < MIXED_RELEASES_FRACTION
        self.checkers = CheckerSet(self.loop)
        self.network = Network(self.loop, self.faults, random_stream(seed, f"network{variant}"))
        self.desired = actors.DesiredObjects()
        self.profiles = (
            workload_profiles.draw_profiles(random_stream(seed, "sorts"))
            if self.size.profiles is None
            else self.size.profiles
        )
        needed = [p for kind, names in NEEDED_PROFILES.items() if kind in self.faults.enabled for p in names]
        crowded = as_drawn and base is None and self.size.nodes_per_region == CROWDED_NODES
        needed += CROWDED_PROFILES if crowded else ()
        self.profiles = (*self.profiles, *(p for p in needed if p not in self.profiles))
        self.plans_maintenance = FaultKind.MAINTENANCE in self.faults.enabled or self.size.maintenance
        self._setting = HostContext(
            seed,
            self.loop,
            self.faults,
            self.network,
            self.checkers,
            self.checkers.task_started,
            self.checkers.task_stopped,
            watches_enabled=self.size.watches_enabled,
            resync_s=limits.RESYNC_S if self.size.resync_enabled else NEVER_S,
            rebalances=self.size.rebalances,
            maintenance=self.plans_maintenance,
            before_bind=self._cordon_at_bind,
        )
        self._cordon_rng = random_stream(seed, "cordon at bind")
        self.global_cell = self._cell(GLOBAL)
        self.regions = [self._cell(name) for name in self.size.regions]
        for region in self.regions:
            region.global_host = self.global_cell
            region.peers = {other.name: other for other in self.regions}
        rng, volumes = random_stream(seed, "machines"), "stateful" in self.profiles
        self.agents = [
            AgentHost(region, agent_config(region.name, n, zones_of(region.name), rng, volumes=volumes), self._setting)
            for region in self.regions
            for n in range(self.size.nodes_per_region)
        ]
        self.restored_cells: list[str] = []
        """Cells that were restored from a backup. Their commits since the backup are lost."""
        self._user_clock = SimClock(self.loop)
        self.stores = LostStores(self)
        self.operator = self.operator_client(GLOBAL)
        self.fault_schedule = (
            planned if planned is not None else (*(base.faults if base is not None else ()), *self._drawn())
        )

    def _cell(self, name: str) -> CellHost:
        disk = Disk(name)
        host = CellHost(name, disk, self._setting)
        disk.commit_observers.append(
            self.checkers.commit_observer(
                name, host.clock.now, lambda: disk.commit_latency_s, lambda: disk.writer_release
            )
        )
        disk.on_commit_attempt = self.checkers.commit_attempted
        return host

    def _drawn(self) -> tuple[fault_schedule.ScheduledFault, ...]:
        where = fault_schedule.FaultTargets(
            regions=self.size.regions,
            nodes=tuple(agent.name for agent in self.agents),
            zones=tuple(zone for region in self.size.regions for zone in actors.zones_of(region)),
            tenants=self.size.tenants,
        )
        return fault_schedule.draw_schedule(self.seed, self.faults.enabled, where, self.size.faults_s)

    # Hosts

    def cells(self) -> list[CellHost]:
        return [self.global_cell, *self.regions]

    def cell(self, name: str) -> CellHost:
        return next(cell for cell in self.cells() if cell.name == name)

    def agent(self, name: str) -> AgentHost:
        return next(agent for agent in self.agents if agent.name == name)

    def host(self, name: str) -> CellHost | AgentHost:
        return next((cell for cell in self.cells() if cell.name == name), None) or self.agent(name)

    def new_agent_host(self, region: CellHost, config: AgentConfig) -> AgentHost:
        return AgentHost(region, config, self._setting)

    def clock(self, name: str) -> SimClock:
        cell = next((cell for cell in self.cells() if cell.name == name), None)
        return cell.clock if cell is not None else self.agent(name).machine.clock

    def operator_client(self, cell: str, user: str = "operator") -> RemoteClient:
        """The client of a person for one cell. Watch faults do not affect it."""
        ports = SimPorts(self._user_clock, self.seed, f"{user}/{cell}")
        return RemoteClient(self.network, user, self.cell(cell), ports, self.checkers)

    def scheduler_client(self, region: str) -> RemoteClient:
        """The client of another scheduler of the region."""
        caller = f"scheduler/{region}"
        ports = SimPorts(self._user_clock, self.seed, caller)
        return RemoteClient(self.network, caller, self.cell(region), ports, self.checkers)

    def _cordon_at_bind(self, cell: str, node: str) -> None:
        """Cordons some nodes at the moment of a bind in two steps."""
        if self._cordon_rng.random() < CORDON_AT_BIND_FRACTION and not self.faults.healed:
            self.loop.spawn(ENVIRONMENT, operators.cordon_briefly(self, cell, node, self._cordon_rng), name="cordon")

    # The run

    def run(self) -> RunOutcome:
        """Runs all phases and tears everything down. A simulation runs once."""
        with _no_collecting():
            try:
                return self.run_without_teardown()
            finally:
                self._tear_down()

    def run_without_teardown(self, *, collecting: bool = False) -> RunOutcome:
        """Runs without teardown, for a process that exits afterwards."""
        asyncio.set_event_loop(self.loop)
        try:
            with forbid_nondeterminism() as nondeterminism, _collecting() if collecting else _no_collecting():
                self._nondeterminism = nondeterminism
                violation_by_s = self._violation_by_s
                phases = self._run_phases() if violation_by_s is None else self._run_until_violation(violation_by_s)
                try:
                    converged_in_s, left = self.loop.run_until_complete(phases)
                except Livelock as stuck:
                    converged_in_s, left = 0.0, None
                    self.checkers.livelocked(stuck.process.name, str(stuck))
            return self._outcome(converged_in_s, left)
        finally:
            asyncio.set_event_loop(None)

    def recording(self) -> RunRecording:
        coverage = self.checkers.coverage
        coverage.finish_seed(_by_name(self.faults.injected_counts), _by_name(self.faults.effective_counts))
        acts = tuple(self.faults.user_actions)
        return RunRecording(tuple(self.faults.injected), self.checkers.history, coverage, acts, self.faults.healed_s)

    def _outcome(self, converged_in_s: float, left: ConvergenceCheck | None) -> RunOutcome:
        objects = dict.fromkeys(key for violation in self.checkers.violations for key in violation.objects)
        if left is not None:
            objects.update(left.objects)
        return RunOutcome(
            seed=self.seed,
            violations=tuple(self.checkers.violations),
            unconverged=tuple(left.problems) if left is not None else (),
            failures=(*self._nondeterminism, *_dropped(self.loop), *_failures(self.loop.failures))[:FAILURES_MAX],
            simulated_s=self.loop.time(),
            converged_in_s=converged_in_s,
            node_hours=self.loop.time() * self.size.nodes_per_region * len(self.size.regions) / 3600,
            commits=self.checkers.commits,
            steps=self.loop.steps,
            faults={kind.value: count for kind, count in sorted(self.faults.injected_counts.items())},
            digest=f"{self.loop.digest:016x}",
            objects=tuple(objects),
            base_scenario=self.base_scenario.title if self.base_scenario is not None else "",
        )

    def _tear_down(self) -> None:
        """Drops all references, so that the memory is free for the next simulation."""
        self.regions.clear()
        self.agents.clear()
        del self.global_cell, self.operator, self.network, self._setting
        self.loop.shut_down()

    async def _run_until_violation(self, violation_by_s: float) -> tuple[float, ConvergenceCheck | None]:
        phases = self.loop.create_task(self._run_phases())
        while not phases.done() and not self.checkers.violations and self.loop.time() < violation_by_s:
            await asyncio.sleep(1.0)
        return phases.result() if phases.done() else (0.0, None)

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        for host in self.cells():
            host.boot()
        await asyncio.sleep(1.0)
        for agent in self.agents:
            agent.boot()
        rng = random_stream(self.seed, "people")
        topology = actors.make_topology(self.size.regions, self.size.tenants, self.size.nodes_per_region, self.profiles)
        self.desired = await self._persist(
            lambda: actors.create_initial_objects(self.operator, topology, rng, self.faults)
        )
        if self.size.partition_mode is not PartitionMode.WAIT:
            rules = PolicyRules(partition_mode=self.size.partition_mode)
            await self._persist(lambda: actors.edit_spec(self.operator, SchedulerPolicy, "default", "", rules=rules))
        if self.size.crons:
            draw = random_stream(self.seed, "cron")
            await self._persist(lambda: cron_users.create_cron_workloads(self.operator, self.size.tenants[0], draw))
        if "pooled" in self.profiles:
            self.loop.create_task(SimNodeProvider(self).run())
        if any(scheduled.kind in LOST_STORES for scheduled in self.fault_schedule):
            self.loop.create_task(self.stores.run())
        self.faults.start()
        fault_tasks: list[asyncio.Task[None]] = []
        if self.size.users_active:
            changing = users.act_as_users(self.operator, self.desired, topology, rng, self.faults)
            fault_tasks.append(self.loop.create_task(changing))
        fault_tasks += [
            self.loop.create_task(fault_schedule.inject_scheduled(self, scheduled)) for scheduled in self.fault_schedule
        ]
        watch_tasks = [
            self.loop.create_task(users.watch_own_workloads(self.operator, tenant)) for tenant in self.size.tenants
        ]
        await asyncio.sleep(self.size.faults_s)
        self.faults.heal()
        await self._heal()
        await asyncio.gather(*fault_tasks)
        for task in watch_tasks:
            task.cancel()
        await self._heal()
        try:
            return await self._converge()
        except SetupRefusedError as refused:
            self._nondeterminism.append(str(refused))
            return self.size.convergence_timeout_s, None

    async def _persist(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """Retries a setup action every second. Raises after TRIES_MAX failures."""
        for _ in range(SETUP_ATTEMPTS_MAX):
            try:
                return await act()
            except Fault as fault:
                refusal = fault
                await asyncio.sleep(1.0)
        raise SetupRefusedError(f"a setup write was refused {SETUP_ATTEMPTS_MAX} times: {refusal}")

    async def _heal(self) -> None:
        self.network.heal()
        hosts: list[CellHost | AgentHost] = [*self.cells(), *self.agents]
        for host in hosts:
            if host.release is not ReleaseVersion.CURRENT and not self.keeps_mixed_releases:
                host.switch_release(ReleaseVersion.CURRENT)
            host.heal()
        for clock in (*(c.clock for c in self.cells()), *(a.machine.clock for a in self.agents)):
            clock.step_s = 0.0
            clock.drift(1.0)

    def _progress_marker(self) -> tuple[int, list[tuple[AgentHost, list[TaskRun]]]]:
        """The number of stored changes and the running tasks. While they are unchanged, a check gives the same."""
        return self.checkers.change_count, [(agent, agent.machine.running()) for agent in self.agents]

    async def _converge(self) -> tuple[float, ConvergenceCheck | None]:
        healed_s = self.loop.time()
        if self.restored_cells:  # desired state and backup may differ, so only safety is checked, for a while
            await asyncio.sleep(AFTER_RESTORE_S)
            return 0.0, None
        await self._persist(lambda: operators.undo_operator_changes(self))
        await self._persist(lambda: actors.restate_desired(self.operator, self.desired))
        if self.size.crons:
            await self._persist(lambda: cron_users.suspend_cron_workloads(self.operator))
        quiet_since_s, converged_in_s = -1.0, 0.0
        left: ConvergenceCheck | None = None
        marker = self._progress_marker()
        waited: set[tuple[str, str]] = set()
        quota_wakeups = QuotaWakeupChecker(
            self.checkers, self.size.regions, self.loop.time(), watching=self.size.watches_enabled
        )
        self.checkers.on_commit = quota_wakeups.committed
        waiting_before: dict[tuple[str, str], int] = {}
        timer, timeout_s = ConvergenceTimer(healed_s), self.size.convergence_timeout_s
        while self.loop.time() - healed_s < timeout_s + max(timeout_s, 2 * self.size.stable_s):
            await asyncio.sleep(CHECK_EVERY_S)
            if left is None or marker != self._progress_marker():
                marker = self._progress_marker()
                former = [region.name for region in self.regions if region.release is ReleaseVersion.PREVIOUS]
                left = ConvergenceCheck(
                    self.checkers, self.desired, self.size.regions, self.agents, waited, former_releases=former
                )
                quota_wakeups.observe(self.loop.time())
            now_s = self.loop.time()
            timer.observe(now_s, left)
            for region, found in quota_wakeups.overdue(now_s):
                self.checkers.report(region, (found,))
            if left.problems:
                if timer.elapsed_s(now_s) > timeout_s and not left.all_permitted:
                    break
                quiet_since_s = -1.0
                self.checkers.churn.set_quiet_since(None)
            elif quiet_since_s < 0 or any(left.waiting.get(name, 0) < count for name, count in waiting_before.items()):
                # The quiet phase starts here. It starts again when a pending replica got its room.
                if self._until_converged:
                    return timer.elapsed_s(now_s), None
                quiet_since_s, waiting_before = now_s, left.waiting
                converged_in_s = timer.elapsed_s(now_s)
                self.checkers.churn.set_quiet_since(now_s)
            elif now_s - quiet_since_s >= self.size.stable_s:
                self.checkers.report(GLOBAL, self.checkers.churn.quiet_phase_writes(now_s))
                self._check_quiet_state(EPOCH_S + now_s)
                return converged_in_s, None
        if left is not None and not left.problems:
            left.problems.append(f"{NOT_STABLE} for {self.size.stable_s:g} s")
        return timeout_s, left

    def _check_quiet_state(self, wall_s: float) -> None:
        """Checks of the quiet phase beyond convergence: no leaked objects, and a reason for every pending replica."""
        states = {cell.name: self.checkers.state(cell.name) for cell in self.cells()}
        for where, violation in leaked_objects(states, wall_s):
            self.checkers.report(where, (violation,))
        self.checkers.report(GLOBAL, ticks_at_rest(states[GLOBAL]))
        for where, state in states.items():
            self.checkers.report(where, unexplained_waits(where, state, wall_s))
            self.checkers.report(where, drains_at_rest(state))


def _calmed(seed: int, enabled: frozenset[FaultKind], base: ScenarioVariant | None) -> frozenset[FaultKind]:
    """The enabled kinds, fewer in a run with a failback: many faults at once would prevent the failback."""
    if FaultKind.REGION_RETURNS_STALE not in enabled and (base is None or base.title != FAILBACK_SCENARIO):
        return enabled
    rng = random_stream(seed, "calm")
    kept = frozenset(kind for kind in sorted(enabled) if rng.random() < CALM_FRACTION)
    return kept | (enabled & {FaultKind.REGION_RETURNS_STALE})


def _size_for(size: SimulationSize, enabled: Iterable[FaultKind]) -> SimulationSize:
    """The size with a fault phase that is long enough for the drawn faults. A region that is cut off beyond its grant
    leases may place provisional work."""
    faults_s = max((size.faults_s, *(LONG_FAULTS_S.get(kind, 0.0) for kind in enabled)))
    provisional = FaultKind.REGION_CUT_OFF in enabled
    mode = PartitionMode.PROVISIONAL if provisional else size.partition_mode
    return msgspec.structs.replace(size, faults_s=faults_s, partition_mode=mode)


@contextmanager
def _collecting() -> Iterator[None]:
    """Collects garbage very often. If a result depends on the collector, the digest differs."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*FREQUENT_GC)
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


def _by_name(counts: Counter[FaultKind]) -> dict[str, int]:
    return {kind.value: count for kind, count in counts.items() if count}


def _dropped(loop: VirtualLoop) -> Iterator[str]:
    for name, times in loop.unclosed_generators.items():
        yield f"{name}: not closed {times} times; next: read it inside contextlib.aclosing"


def _failures(contexts: Iterable[dict[str, Any]]) -> Iterator[str]:
    for context in contexts:
        error = context.get("exception")
        if error is not None:
            yield f"{context.get('message', '')}: {type(error).__name__}: {error}"
