"""A simulated machine: its tasks survive an agent crash, and end when stopped, at their deadline or at power loss.

The machine is the ground truth that checkers read. Each agent process has its own driver for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.agent import task_decision
from holdfast.agent.cgroups import Usage
from holdfast.agent.drivers.command_session import CommandSession
from holdfast.agent.drivers.contract import DiscoveredTask, ExecResult, StartedTask, StartFailed, Task, TaskExit
from holdfast.agent.drivers.records import TaskRecord
from holdfast.agent.persisted_state import PersistedState
from holdfast.agent.probes import ProbeResult, ProbeTarget
from holdfast.model.probe import Probe
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus
from holdfast.sim.fault_injection import FaultInjector, FaultKind
from holdfast.sim.loop import ENVIRONMENT, Call, VirtualLoop
from holdfast.sim.ports import SimClock
from holdfast.sim.releases import ReleaseVersion, record_left_by
from holdfast.sim.workload_profiles import (
    BEHAVIOUR_ENV,
    EXITS_SOMETIMES,
    FAILS,
    FAILS_AT_ONCE,
    FAILS_SOMETIMES,
    HALF_READY,
    NEVER_READY,
    NEVER_UP,
    QUICK,
    TURNS_UNHEALTHY,
)

START_S = (0.05, 0.5)
SLOW_START_S = (5.0, 30.0)
LINGERS_S = (2.0, 60.0)
BATCH_RUNS_S = (5.0, 40.0)
QUICK_RUNS_S = (0.0, 0.05)
EXITS_SOMETIMES_RUNS_S = (5.0, 60.0)
EXITS_SOMETIMES_FRACTION = 0.6
"""Share of the runs that exit by themselves, of tasks that may."""
READY_AFTER_S = 0.5
HEALTHY_FOR_S = 25.0
"""How long a task that turns unhealthy passes its probes."""
CRASH_EXITS = (
    ExitStatus(code=1, reason=Reason.EXITED),
    ExitStatus(signal="SIGSEGV", reason=Reason.KILLED),
    ExitStatus(signal="SIGKILL", reason=Reason.OUT_OF_MEMORY),
    ExitStatus(code=1, reason=Reason.TOO_MANY_PROCESSES),
)
OWN_EXITS = (ExitStatus(code=1, reason=Reason.EXITED), ExitStatus(code=0, reason=Reason.EXITED))
START_ERRORS = (
    Reason.START_ERROR,
    Reason.COMMAND_NOT_FOUND,
    Reason.ARTIFACT_MISSING,
    Reason.ARTIFACT_MISMATCH,
    Reason.DISK_FULL,
)


class TaskRun(msgspec.Struct):
    """One run of one task, in true time."""

    task: Task
    pid: int
    started_s: float
    until_mono_s: float | None = None
    exit: ExitStatus | None = None
    ended_s: float = 0.0
    exit_reported: bool = False
    probe_failed: bool = False
    """Whether a probe has failed since the task was up, so that its agent may stop it."""
    watchdog: Call | None = None
    """Timer of the next deadline check."""


class Machine:
    """The tasks of one node and their watchdogs, which stop a task at its deadline even without an agent.

    `began` is called at the start of every run; checkers use it.
    """

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        faults: FaultInjector,
        rng: random.Random,
        began: Callable[[Machine, TaskRun], None],
    ) -> None:
        self.name = name
        self.powered = True
        self.clock = SimClock(loop)
        self.persisted_state = PersistedState()
        self.start_disabled = False
        """Whether every task start fails, as on a machine with a broken disk."""
        self.start_delay_s = 0.0
        """Additional time that every task start takes, as on a machine that fetches everything again."""
        self.runs: dict[str, TaskRun] = {}
        self.volumes: dict[str, None] = {}
        """Uids of the persistent volumes whose data is here."""
        self.lease = (0, 0.0)
        """Epoch and end of the node's lease, as the agent last wrote them for the watchdogs."""
        self.loop = loop
        self._faults = faults
        self._rng = rng
        self._began = began
        self._pid = 1
        self._changed = asyncio.Event()

    def stage_volumes(self, task: Task) -> None:
        """Makes the new persistent volumes of a task. Raises StartFailed if data is missing that was here."""
        for volume in task.volumes:
            if volume.uid not in self.volumes and not volume.new:
                raise StartFailed(Reason.VOLUME_DATA_MISSING, f"volume {volume.name}: its data is not here (simulated)")
            self.volumes[volume.uid] = None

    def running(self) -> list[TaskRun]:
        return [work for work in self.runs.values() if work.exit is None]

    def start_task(self, task: Task) -> TaskRun:
        known = self.runs.get(task.id)
        if known is not None and known.task.run >= task.run:
            return known
        self._pid += 1
        work = TaskRun(task, self._pid, self.loop.time(), task.run_until_mono_s)
        self.runs[task.id] = work
        self._began(self, work)
        self.arm_watchdog(work)
        if task.template.command[:1] == ("work",):
            how = ExitStatus(code=int(self._fails(task)), reason=Reason.EXITED)
            quick = task.env.get(BEHAVIOUR_ENV) in (QUICK, FAILS_AT_ONCE)
            after_s = self._rng.uniform(*(QUICK_RUNS_S if quick else BATCH_RUNS_S))
            self.loop.spawn(ENVIRONMENT, self._finish(work, after_s, how), name="batch ends")
        elif self._exits_now(task):
            how = self._rng.choice(OWN_EXITS)
            self.loop.spawn(
                ENVIRONMENT, self._exit_later(work, self._rng.uniform(*EXITS_SOMETIMES_RUNS_S), how), name="work ends"
            )
        elif (own := self._faults.draw(FaultKind.WORK_EXIT, self.name)) is not None:
            self.loop.spawn(
                ENVIRONMENT, self._exit_later(work, own.uniform(1.0, 60.0), own.choice(CRASH_EXITS)), name="work exits"
            )
        return work

    def _fails(self, task: Task) -> bool:
        """Whether a batch task fails. Unsteady tasks fail only during the fault phase."""
        behaves = task.env.get(BEHAVIOUR_ENV)
        return behaves in (FAILS, FAILS_AT_ONCE) or (
            behaves == FAILS_SOMETIMES and not self._faults.healed and self._rng.random() < 0.5
        )

    def _exits_now(self, task: Task) -> bool:
        """Whether a service task exits by itself. This happens only during the fault phase."""
        mortal = task.env.get(BEHAVIOUR_ENV) == EXITS_SOMETIMES and not self._faults.healed
        return mortal and self._rng.random() < EXITS_SOMETIMES_FRACTION

    # Watchdogs

    def deadline(self, task: Task, until_mono_s: float | None) -> tuple[float, Reason]:
        """Deadline of a run on this machine's monotonic clock, and the exit reason."""
        end, why = float("inf"), Reason.LEASE_EXPIRED
        if task.exclusive:
            epoch, end = self.lease
            if epoch != task.node_epoch:
                end = 0.0
        if until_mono_s is not None and until_mono_s < end:
            end, why = until_mono_s, Reason.LEASE_EXPIRED if task.exclusive else Reason.PROVISIONAL_EXPIRED
        return end, why

    def arm_watchdog(self, work: TaskRun) -> None:
        """Ends the run at its deadline, or sets a timer to check again, because a renewal may move the deadline."""
        if work.watchdog is not None:
            work.watchdog.cancel()
            work.watchdog = None
        if work.exit is not None or not self.powered or self.runs.get(work.task.id) is not work:
            return
        end_mono_s, why = self.deadline(work.task, work.until_mono_s)
        if end_mono_s == float("inf"):
            return
        lead_s = task_decision.WATCHDOG_KILL_LEAD_S if why is Reason.LEASE_EXPIRED else 0.0
        left_s = end_mono_s - lead_s - self.clock.monotonic()
        if left_s <= 0:
            self.end_task(work, ExitStatus(signal="SIGKILL", reason=why))
            return
        work.watchdog = self.loop.call_from_environment(self.clock.true_s(left_s), self.arm_watchdog, work)

    def permit(self, epoch: int, until_mono_s: float) -> None:
        shorter = epoch != self.lease[0] or until_mono_s < self.lease[1]
        self.lease = (epoch, until_mono_s)
        if shorter:
            for work in self.running():
                self.arm_watchdog(work)

    async def _exit_later(self, work: TaskRun, after_s: float, how: ExitStatus) -> None:
        """Ends a service task, unless the fault phase is over by then."""
        await asyncio.sleep(after_s)
        if self.powered and not self._faults.healed:
            self.end_task(work, how)

    async def _finish(self, work: TaskRun, after_s: float, how: ExitStatus) -> None:
        await asyncio.sleep(after_s)
        if self.powered:
            self.end_task(work, how)

    def end_task(self, work: TaskRun, how: ExitStatus) -> None:
        if work.exit is None:
            work.exit = how
            work.ended_s = self.loop.time()
            self._changed.set()

    def lose_power(self) -> None:
        """Power loss: all tasks end and are forgotten, and the lease of this boot is void."""
        self.powered = False
        for work in self.running():
            work.exit = ExitStatus(signal="SIGKILL", reason=Reason.KILLED)
            work.ended_s = self.loop.time()
            work.exit_reported = True
        self.runs.clear()
        self.lease = (0, 0.0)
        self.persisted_state = msgspec.structs.replace(self.persisted_state, lease_until_mono_s=0.0)

    def wall_s(self, true_s: float) -> float:
        """A true time converted to this machine's wall clock."""
        return self.clock.now() - (self.loop.time() - true_s)

    async def wait_for_exit(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class SimDriver:
    """The driver of one agent process; implements `agent.drivers.contract.Driver` on a Machine."""

    name = "process"

    def __init__(
        self,
        machine: Machine,
        faults: FaultInjector,
        rng: random.Random,
        release: ReleaseVersion = ReleaseVersion.CURRENT,
    ) -> None:
        self._machine = machine
        self._release = release
        self._faults = faults
        self._rng = rng
        self._stopped: dict[str, int] = {}
        self.on_stop: Callable[[TaskRun], None] = lambda work: None
        """Called when the agent stops a task; checkers use it."""

    async def inspect(self) -> list[DiscoveredTask]:
        wall_s = self._machine.wall_s
        return [
            DiscoveredTask(w.task, w.pid, wall_s(w.started_s), w.exit, wall_s(w.ended_s) if w.exit else 0.0)
            for _, w in sorted(self._machine.runs.items())
        ]

    async def fetch(self, task: Task) -> None:
        """Simulated tasks have no artifacts."""

    def fetch_progress(self, task: Task) -> str:
        return ""

    async def start(self, task: Task) -> StartedTask:
        place = self._machine.name
        slow = self._faults.draw(FaultKind.START_SLOW, place)
        await asyncio.sleep(slow.uniform(*SLOW_START_S) if slow is not None else self._rng.uniform(*START_S))
        if self._machine.start_delay_s:
            await asyncio.sleep(self._machine.start_delay_s)
        if self._machine.start_disabled:
            raise StartFailed(Reason.START_ERROR, "the machine cannot start tasks (simulated)")
        if (own := self._faults.draw(FaultKind.START_FAILS, place)) is not None:
            raise StartFailed(own.choice(START_ERRORS), "the start failed (simulated)")
        if self._stopped.get(task.id, 0) >= task.run:
            raise StartFailed(Reason.NEVER_STARTED, "stopped before it started")
        end_mono_s, why = self._machine.deadline(task, task.run_until_mono_s)
        if end_mono_s - task_decision.WATCHDOG_LEAD_S <= self._machine.clock.monotonic():
            raise StartFailed(Reason.NEVER_STARTED, f"its deadline passed before it started ({why})")
        self._machine.stage_volumes(task)
        work = self._machine.start_task(record_left_by(self._release, TaskRecord(task)).task)
        return StartedTask(work.pid, self._machine.wall_s(work.started_s))

    async def stop(self, task_id: str, grace_s: float) -> ExitStatus:
        work = self._machine.runs.get(task_id)
        self._stopped[task_id] = work.task.run if work is not None else 1_000_000
        if work is None:
            return ExitStatus(reason=Reason.NEVER_STARTED)
        if work.exit is None:
            self.on_stop(work)
            lingers = self._faults.draw(FaultKind.TASK_LINGERS, self._machine.name)
            await asyncio.sleep(
                lingers.uniform(*LINGERS_S) if lingers is not None else self._rng.uniform(0.0, min(grace_s, 2.0))
            )
        work.exit_reported = True
        self._machine.end_task(work, ExitStatus(signal="SIGTERM", reason=Reason.STOPPED_ON_REQUEST))
        return work.exit or ExitStatus()

    def set_lease(self, epoch: int, until_mono_s: float) -> None:
        self._machine.permit(epoch, until_mono_s)

    def set_run_until(self, task_id: str, until_mono_s: float | None) -> None:
        work = self._machine.runs.get(task_id)
        if work is not None:
            work.until_mono_s = until_mono_s
            self._machine.arm_watchdog(work)

    def programs(self, task_id: str) -> None:
        return None

    def usage(self, task_id: str) -> Usage | None:
        return None

    async def next_exit(self) -> TaskExit:
        while True:
            for task_id, work in sorted(self._machine.runs.items()):
                if work.exit is not None and not work.exit_reported:
                    work.exit_reported = True
                    return TaskExit(task_id, work.task.run, work.exit)
            await self._machine.wait_for_exit()

    async def forget(self, task_id: str) -> None:
        self._machine.runs.pop(task_id, None)

    async def execute(
        self, task_id: str, command: tuple[str, ...], timeout_s: float, output_bytes: int = 0
    ) -> ExecResult:
        return ExecResult(0, "")

    def open_command(self, task_id: str, command: tuple[str, ...], *, tty: bool) -> CommandSession:
        raise OSError("simulated tasks have no processes")

    def logs(self, task_id: str) -> Path | None:
        return None

    async def close(self) -> None:
        return None


class SimProber:
    """Probes of simulated tasks: ready shortly after the start, unless the behaviour or a fault says otherwise."""

    def __init__(self, machine: Machine, faults: FaultInjector) -> None:
        self._machine = machine
        self._faults = faults

    async def check(self, target: ProbeTarget, probe: Probe) -> ProbeResult:
        work = self._machine.runs.get(target.task_id)
        if work is None or work.exit is not None:
            return ProbeResult(False, "not running")
        result = self._result(work)
        was_up = self._machine.loop.time() - work.started_s >= READY_AFTER_S
        work.probe_failed = work.probe_failed or (was_up and not result.ok)
        return result

    def _result(self, work: TaskRun) -> ProbeResult:
        if self._faults.draw(FaultKind.PROBE_FAILS, self._machine.name) is not None:
            return ProbeResult(False, "no response (simulated)")
        ran_s, behaves = self._machine.loop.time() - work.started_s, work.task.env.get(BEHAVIOUR_ENV)
        if behaves in (NEVER_READY, NEVER_UP) or (behaves == TURNS_UNHEALTHY and ran_s > HEALTHY_FOR_S):
            return ProbeResult(False, f"error response ({behaves}, simulated)")
        if behaves == HALF_READY and int(work.task.replica.rpartition("-")[2]) % 2:
            return ProbeResult(False, "error response (simulated)")
        return ProbeResult(ran_s >= READY_AFTER_S, "starting")


class SimStateStore:
    """The agent's persisted state on the machine's disk. It survives agent restarts; epochs also survive power loss."""

    def __init__(self, machine: Machine, release: ReleaseVersion = ReleaseVersion.CURRENT) -> None:
        self._machine = machine
        self._release = release

    def load(self) -> PersistedState:
        return self._machine.persisted_state

    def save(self, facts: PersistedState) -> None:
        self._machine.persisted_state = record_left_by(self._release, facts)
