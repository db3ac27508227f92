"""A simulated machine: its tasks survive an agent crash, and end when stopped, at their deadline or at power loss.

The machine is the ground truth that checkers read. Each agent process has its own driver for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.agent.drivers.contract import Ended, ExecResult, Found, Started, StartFailed, Task
from holdfast.agent.drivers.records import TaskRecord
from holdfast.agent.groups import Usage
from holdfast.agent.memory import Facts
from holdfast.agent.probes import Checked, Target
from holdfast.model import limits
from holdfast.model.reasons import Reason
from holdfast.model.replica import Exit
from holdfast.model.template import Probe
from holdfast.sim.chaos import Chaos, Kind
from holdfast.sim.loop import WORLD, Call, VirtualLoop
from holdfast.sim.ports import SimClock
from holdfast.sim.releases import Release, left_on_disk
from holdfast.sim.sorts import (
    BEHAVES,
    FAILS,
    FAILS_AT_ONCE,
    HALF_READY,
    MORTAL,
    NEVER_READY,
    NEVER_UP,
    QUICK,
    UNSTEADY,
    UNWELL,
)

START_S = (0.05, 0.5)
SLOW_START_S = (5.0, 30.0)
BATCH_RUNS_S = (5.0, 40.0)
QUICK_RUNS_S = (0.0, 0.05)
MORTAL_RUNS_S = (5.0, 60.0)
MORTAL_SHARE = 0.6
"""Share of the runs that exit by themselves, of tasks that may."""
READY_AFTER_S = 0.5
WELL_FOR_S = 25.0
"""How long a task that turns unhealthy passes its probes."""
ENDS = (
    Exit(code=1, reason=Reason.EXITED),
    Exit(signal="SIGSEGV", reason=Reason.KILLED),
    Exit(signal="SIGKILL", reason=Reason.OUT_OF_MEMORY),
    Exit(code=1, reason=Reason.TOO_MANY_PROCESSES),
)
MORTAL_ENDS = (Exit(code=1, reason=Reason.EXITED), Exit(code=0, reason=Reason.EXITED))
REFUSALS = (
    Reason.START_ERROR,
    Reason.COMMAND_NOT_FOUND,
    Reason.ARTIFACT_MISSING,
    Reason.ARTIFACT_MISMATCH,
    Reason.DISK_FULL,
)


class Work(msgspec.Struct):
    """One run of one task, in true time. `heard` is set after the agent was told of its exit."""

    task: Task
    pid: int
    started_s: float
    until_mono_s: float | None = None
    exit: Exit | None = None
    ended_s: float = 0.0
    heard: bool = False
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
        chaos: Chaos,
        chance: random.Random,
        began: Callable[[Machine, Work], None],
    ) -> None:
        self.name = name
        self.powered = True
        self.clock = SimClock(loop)
        self.facts = Facts()
        self.broken = False
        """Whether every task start fails, as on a machine with a broken disk."""
        self.runs: dict[str, Work] = {}
        self.lease = (0, 0.0)
        """Epoch and end of the node's lease, as the agent last wrote them for the watchdogs."""
        self.loop = loop
        self._chaos = chaos
        self._chance = chance
        self._began = began
        self._pid = 1
        self._changed = asyncio.Event()

    def running(self) -> list[Work]:
        return [work for work in self.runs.values() if work.exit is None]

    def begin(self, task: Task) -> Work:
        known = self.runs.get(task.id)
        if known is not None and known.task.run >= task.run:
            return known
        self._pid += 1
        work = Work(task, self._pid, self.loop.time(), task.until_mono_s)
        self.runs[task.id] = work
        self._began(self, work)
        self.guard(work)
        if task.template.command[:1] == ("work",):
            how = Exit(code=int(self._fails(task)), reason=Reason.EXITED)
            quick = task.env.get(BEHAVES) in (QUICK, FAILS_AT_ONCE)
            after_s = self._chance.uniform(*(QUICK_RUNS_S if quick else BATCH_RUNS_S))
            self.loop.spawn(WORLD, self._finish(work, after_s, how), name="batch ends")
        elif self._dies(task):
            how = self._chance.choice(MORTAL_ENDS)
            self.loop.spawn(WORLD, self._die(work, self._chance.uniform(*MORTAL_RUNS_S), how), name="work ends")
        elif (own := self._chaos.strikes(Kind.WORK_EXIT, self.name)) is not None:
            self.loop.spawn(WORLD, self._die(work, own.uniform(1.0, 60.0), own.choice(ENDS)), name="work exits")
        return work

    def _fails(self, task: Task) -> bool:
        """Whether a batch task fails. Unsteady tasks fail only during the fault phase."""
        behaves = task.env.get(BEHAVES)
        return behaves in (FAILS, FAILS_AT_ONCE) or (
            behaves == UNSTEADY and not self._chaos.healed and self._chance.random() < 0.5
        )

    def _dies(self, task: Task) -> bool:
        """Whether a service task exits by itself. This happens only during the fault phase."""
        mortal = task.env.get(BEHAVES) == MORTAL and not self._chaos.healed
        return mortal and self._chance.random() < MORTAL_SHARE

    # Watchdogs

    def deadline(self, task: Task, until_mono_s: float | None) -> tuple[float, Reason]:
        """Deadline of a run on this machine's monotonic clock, and the exit reason."""
        end, why = float("inf"), Reason.LEASE_LAPSED
        if task.exclusive:
            epoch, end = self.lease
            if epoch != task.node_epoch:
                end = 0.0
        if until_mono_s is not None and until_mono_s < end:
            end, why = until_mono_s, Reason.LEASE_LAPSED if task.exclusive else Reason.PROVISIONAL_ENDED
        return end, why

    def guard(self, work: Work) -> None:
        """Ends the run at its deadline, or sets a timer to check again, because a renewal may move the deadline."""
        if work.watchdog is not None:
            work.watchdog.cancel()
            work.watchdog = None
        if work.exit is not None or not self.powered or self.runs.get(work.task.id) is not work:
            return
        end_mono_s, why = self.deadline(work.task, work.until_mono_s)
        if end_mono_s == float("inf"):
            return
        lead_s = limits.WATCHDOG_FORCE_S if why is Reason.LEASE_LAPSED else 0.0
        left_s = end_mono_s - lead_s - self.clock.monotonic()
        if left_s <= 0:
            self.end(work, Exit(signal="SIGKILL", reason=why))
            return
        work.watchdog = self.loop.arrive_later(self.clock.true_s(left_s), self.guard, work)

    def permit(self, epoch: int, until_mono_s: float) -> None:
        shorter = epoch != self.lease[0] or until_mono_s < self.lease[1]
        self.lease = (epoch, until_mono_s)
        if shorter:
            for work in self.running():
                self.guard(work)

    async def _die(self, work: Work, after_s: float, how: Exit) -> None:
        """Ends a service task, unless the fault phase is over by then."""
        await asyncio.sleep(after_s)
        if self.powered and not self._chaos.healed:
            self.end(work, how)

    async def _finish(self, work: Work, after_s: float, how: Exit) -> None:
        await asyncio.sleep(after_s)
        if self.powered:
            self.end(work, how)

    def end(self, work: Work, how: Exit) -> None:
        if work.exit is None:
            work.exit = how
            work.ended_s = self.loop.time()
            self._changed.set()

    def lose_power(self) -> None:
        """Power loss: all tasks end and are forgotten, and the lease of this boot is void."""
        self.powered = False
        for work in self.running():
            work.exit = Exit(signal="SIGKILL", reason=Reason.KILLED)
            work.ended_s = self.loop.time()
            work.heard = True
        self.runs.clear()
        self.lease = (0, 0.0)
        self.facts = msgspec.structs.replace(self.facts, lease_until_mono_s=0.0)

    def wall_s(self, true_s: float) -> float:
        """A true time converted to this machine's wall clock."""
        return self.clock.now() - (self.loop.time() - true_s)

    async def change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class SimDriver:
    """The driver of one agent process; implements `agent.drivers.contract.Driver` on a Machine."""

    name = "process"

    def __init__(
        self, machine: Machine, chaos: Chaos, chance: random.Random, release: Release = Release.PRESENT
    ) -> None:
        self._machine = machine
        self._release = release
        self._chaos = chaos
        self._chance = chance
        self._stopped: dict[str, int] = {}

    async def inspect(self) -> list[Found]:
        wall_s = self._machine.wall_s
        return [
            Found(w.task, w.pid, wall_s(w.started_s), w.exit, wall_s(w.ended_s) if w.exit else 0.0)
            for _, w in sorted(self._machine.runs.items())
        ]

    async def start(self, task: Task) -> Started:
        place = self._machine.name
        slow = self._chaos.strikes(Kind.START_SLOW, place)
        await asyncio.sleep(slow.uniform(*SLOW_START_S) if slow is not None else self._chance.uniform(*START_S))
        if self._machine.broken:
            raise StartFailed(Reason.START_ERROR, "the machine cannot start tasks (simulated)")
        if (own := self._chaos.strikes(Kind.START_FAILS, place)) is not None:
            raise StartFailed(own.choice(REFUSALS), "the start failed (simulated)")
        if self._stopped.get(task.id, 0) >= task.run:
            raise StartFailed(Reason.NEVER_STARTED, "stopped before it started")
        end_mono_s, why = self._machine.deadline(task, task.until_mono_s)
        if end_mono_s - limits.WATCHDOG_LEAD_S <= self._machine.clock.monotonic():
            raise StartFailed(Reason.NEVER_STARTED, f"its deadline passed before it started ({why})")
        work = self._machine.begin(left_on_disk(self._release, TaskRecord(task)).task)
        return Started(work.pid, self._machine.wall_s(work.started_s))

    async def stop(self, task_id: str, grace_s: float) -> Exit:
        work = self._machine.runs.get(task_id)
        self._stopped[task_id] = work.task.run if work is not None else 1_000_000
        if work is None:
            return Exit(reason=Reason.NEVER_STARTED)
        if work.exit is None:
            await asyncio.sleep(self._chance.uniform(0.0, min(grace_s, 2.0)))
        work.heard = True
        self._machine.end(work, Exit(signal="SIGTERM", reason=Reason.STOPPED_AS_ASKED))
        return work.exit or Exit()

    def permit(self, epoch: int, until_mono_s: float) -> None:
        self._machine.permit(epoch, until_mono_s)

    def run_until(self, task_id: str, until_mono_s: float | None) -> None:
        work = self._machine.runs.get(task_id)
        if work is not None:
            work.until_mono_s = until_mono_s
            self._machine.guard(work)

    def usage(self, task_id: str) -> Usage | None:
        return None

    async def next_exit(self) -> Ended:
        while True:
            for task_id, work in sorted(self._machine.runs.items()):
                if work.exit is not None and not work.heard:
                    work.heard = True
                    return Ended(task_id, work.task.run, work.exit)
            await self._machine.change()

    async def forget(self, task_id: str) -> None:
        self._machine.runs.pop(task_id, None)

    async def execute(
        self, task_id: str, command: tuple[str, ...], timeout_s: float, output_bytes: int = 0
    ) -> ExecResult:
        return ExecResult(0, "")

    def logs(self, task_id: str) -> Path | None:
        return None

    async def close(self) -> None:
        return None


class SimProber:
    """Probes of simulated tasks: ready shortly after the start, unless the behaviour or a fault says otherwise."""

    def __init__(self, machine: Machine, chaos: Chaos) -> None:
        self._machine = machine
        self._chaos = chaos

    async def check(self, target: Target, probe: Probe) -> Checked:
        work = self._machine.runs.get(target.task_id)
        if work is None or work.exit is not None:
            return Checked(False, "not running")
        if self._chaos.strikes(Kind.PROBE_FAILS, self._machine.name) is not None:
            return Checked(False, "no response (simulated)")
        ran_s, behaves = self._machine.loop.time() - work.started_s, work.task.env.get(BEHAVES)
        if behaves in (NEVER_READY, NEVER_UP) or (behaves == UNWELL and ran_s > WELL_FOR_S):
            return Checked(False, f"error response ({behaves}, simulated)")
        if behaves == HALF_READY and int(work.task.replica.rpartition("-")[2]) % 2:
            return Checked(False, "error response (simulated)")
        return Checked(ran_s >= READY_AFTER_S, "starting")


class SimMemory:
    """The agent's persisted state on the machine's disk. It survives agent restarts; epochs also survive power loss."""

    def __init__(self, machine: Machine, release: Release = Release.PRESENT) -> None:
        self._machine = machine
        self._release = release

    def load(self) -> Facts:
        return self._machine.facts

    def save(self, facts: Facts) -> None:
        self._machine.facts = left_on_disk(self._release, facts)
