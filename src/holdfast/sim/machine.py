"""A simulated machine: work that runs on although its agent dies, and stops only when told or when the power goes.

The machine is what really happens; the agent's driver is one life's way to it. Checkers read the machine.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.drivers.contract import Ended, ExecResult, Found, Started, StartFailed, Task
from holdfast.agent.memory import Facts
from holdfast.agent.probes import Checked, Target
from holdfast.model.reasons import Reason
from holdfast.model.replica import Exit
from holdfast.model.template import Probe, RestartPolicy
from holdfast.sim.chaos import Chaos, Kind
from holdfast.sim.loop import WORLD, VirtualLoop
from holdfast.sim.ports import EPOCH_S

START_S = (0.05, 0.5)
SLOW_START_S = (5.0, 30.0)
BATCH_RUNS_S = (5.0, 40.0)
READY_AFTER_S = 0.5


class Work(msgspec.Struct):
    """One run of one task."""

    task: Task
    pid: int
    started_s: float
    exit: Exit | None = None
    ended_s: float = 0.0
    heard: bool = False


class Machine:
    """What runs on one node. `history` holds every run there was, for the checkers."""

    def __init__(self, name: str, loop: VirtualLoop, chaos: Chaos, chance: random.Random) -> None:
        self.name = name
        self.powered = True
        self.facts = Facts()
        self.runs: dict[str, Work] = {}
        self.history: list[Work] = []
        self.loop = loop
        self._chaos = chaos
        self._chance = chance
        self._pid = 1
        self._changed = asyncio.Event()

    def running(self) -> list[Work]:
        return [work for work in self.runs.values() if work.exit is None]

    def begin(self, task: Task) -> Work:
        known = self.runs.get(task.id)
        if known is not None and known.task.run >= task.run:
            return known
        self._pid += 1
        work = Work(task, self._pid, self.loop.time())
        self.runs[task.id] = work
        self.history.append(work)
        if task.template.restart_policy is not RestartPolicy.ALWAYS:
            self.loop.spawn(WORLD, self._finish(work, self._chance.uniform(*BATCH_RUNS_S), 0), name="batch ends")
        elif self._chaos.strikes(Kind.WORK_EXIT):
            self.loop.spawn(WORLD, self._finish(work, self._chance.uniform(1.0, 60.0), 1), name="work exits")
        return work

    async def _finish(self, work: Work, after_s: float, code: int) -> None:
        await asyncio.sleep(after_s)
        self.end(work, Exit(code=code, reason=Reason.EXITED))

    def end(self, work: Work, how: Exit) -> None:
        if work.exit is None:
            work.exit = how
            work.ended_s = self.loop.time()
            self._changed.set()

    def lose_power(self) -> None:
        """Everything stops at once, and the machine forgets what was not on its disk."""
        self.powered = False
        for work in self.running():
            work.exit = Exit(signal="SIGKILL", reason=Reason.KILLED)
            work.ended_s = self.loop.time()
            work.heard = True
        self.runs.clear()

    async def change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class SimDriver:
    """One agent life's driver; implements `agent.drivers.contract.Driver` on a Machine."""

    name = "process"

    def __init__(self, machine: Machine, chaos: Chaos, chance: random.Random) -> None:
        self._machine = machine
        self._chaos = chaos
        self._chance = chance
        self._stopped: dict[str, int] = {}

    async def inspect(self) -> list[Found]:
        return [
            Found(w.task, w.pid, EPOCH_S + w.started_s, w.exit, EPOCH_S + w.ended_s if w.exit else 0.0)
            for _, w in sorted(self._machine.runs.items())
        ]

    async def start(self, task: Task) -> Started:
        slow = self._chaos.strikes(Kind.START_SLOW)
        await asyncio.sleep(self._chance.uniform(*(SLOW_START_S if slow else START_S)))
        if self._stopped.get(task.id, 0) >= task.run:
            raise StartFailed(Reason.NEVER_STARTED, "stopped before it began")
        work = self._machine.begin(task)
        return Started(work.pid, EPOCH_S + work.started_s)

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

    async def next_exit(self) -> Ended:
        while True:
            for task_id, work in sorted(self._machine.runs.items()):
                if work.exit is not None and not work.heard:
                    work.heard = True
                    return Ended(task_id, work.task.run, work.exit)
            await self._machine.change()

    async def forget(self, task_id: str) -> None:
        self._machine.runs.pop(task_id, None)

    async def execute(self, task_id: str, command: tuple[str, ...], timeout_s: float) -> ExecResult:
        return ExecResult(0, "")

    def logs(self, task_id: str) -> Path | None:
        return None

    async def close(self) -> None:
        return None


class SimProber:
    """Work is ready a moment after it began, as long as it runs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def check(self, target: Target, probe: Probe) -> Checked:
        await asyncio.sleep(0.01)
        work = self._machine.runs.get(target.task_id)
        if work is None or work.exit is not None:
            return Checked(False, "nothing runs")
        return Checked(self._machine.loop.time() - work.started_s >= READY_AFTER_S, "starting")


class SimMemory:
    """The agent's few durable facts; on the machine's disk, so they outlive agent and power."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def load(self) -> Facts:
        return self._machine.facts

    def save(self, facts: Any) -> None:
        self._machine.facts = facts
