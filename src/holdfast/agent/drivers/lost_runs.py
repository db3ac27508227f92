"""Runs whose shim was killed: ends what is left of them, and says when their end is certain.

- An exit is returned only when nothing of the run is left, as far as can be known; for exclusive work only when that is
  certain. A control group or a uid of the task's own make it certain, and so does a reboot.
- The processes of a run without either cannot be told from others. Then an operator must confirm the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import structlog

from holdfast.agent.drivers.contract import Task
from holdfast.agent.drivers.records import TaskDir
from holdfast.agent.drivers.shim_processes import sweep_run
from holdfast.agent.shim import boot_id
from holdfast.agent.shim_launch import Launch
from holdfast.foundation import metrics
from holdfast.foundation.ports import Clock
from holdfast.model import times
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus

# Pause between two attempts to kill the processes that a killed shim left, and between two checks whether an operator
# has confirmed their end.
SWEEP_EVERY_S = 1.0

_log = structlog.get_logger()


class LostRuns:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unconfirmed: dict[str, str] = {}

    def unconfirmed(self) -> dict[str, str]:
        """Exclusive tasks whose shim was killed and of which processes may be left → what to do about each."""
        return dict(self._unconfirmed)

    def _may_have_left_processes(self, folder: TaskDir, task: Task) -> bool:
        """Whether processes may be left that no sweep can find: the run began, in this boot, without a group or uid."""
        started = folder.started(task.run)
        if started is None or started.boot != boot_id() or folder.is_confirmed_ended(task.run):
            return False
        launch = launch_of(folder, task.run)
        return launch is None or not launch.task_processes.is_certain

    async def end(self, folder: TaskDir, task: Task) -> ExitStatus:
        """The exit of a run that left no exit record. Returns when nothing of the run is left, as far as can be known;
        for exclusive work only when that is certain.
        """
        started = folder.started(task.run)
        if started is None:
            return ExitStatus(
                reason=Reason.NEVER_STARTED,
                message="the agent stopped before the task was started",
                at=times.micro_text(self._clock.now()),
            )
        metrics.SHIM_DEATHS.inc()
        killed, gone = 0, started.boot != boot_id()
        while not gone:
            if started.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
            more, gone = await asyncio.to_thread(self._sweep, folder, task.run)
            killed += more
            if not gone:
                await self._clock.sleep(SWEEP_EVERY_S)
        certain = not self._may_have_left_processes(folder, task)
        while task.exclusive and not certain:
            self._hold_unconfirmed(folder, task)
            await self._clock.sleep(SWEEP_EVERY_S)
            certain = not self._may_have_left_processes(folder, task)
        self._unconfirmed.pop(task.id, None)
        what = "no process of the task is left" if certain else "processes of the task may be left"
        if folder.is_confirmed_ended(task.run):
            what = "an operator confirmed that no process of the task is left"
        what = f"{killed} remaining processes were killed and {what}" if killed else what
        return ExitStatus(
            reason=Reason.KILLED,
            message=f"no exit record, because the shim or the node failed; {what}",
            at=times.micro_text(self._clock.now()),
        )

    def _hold_unconfirmed(self, folder: TaskDir, task: Task) -> None:
        if task.id in self._unconfirmed:
            return
        path = folder.run_dir(task.run) / "confirmed"
        message = (
            f"exclusive task {task.id}: its shim was killed, and this node has neither control groups nor users per "
            f"task to tell its processes; it counts as running. next: end its processes, then touch {path}, or reboot"
        )
        self._unconfirmed[task.id] = message
        _log.error("task_end_unconfirmed", task=task.id, message=message)

    def _sweep(self, folder: TaskDir, run: int) -> tuple[int, bool]:
        """Kills what is left of a run. Returns how many processes there were, and whether none is left."""
        if launch_of(folder, run) is None:
            return 0, True
        done = sweep_run(folder.path, run)
        if done.returncode not in (0, 1):
            _log.error("task_sweep_failed", task=folder.id, error=done.stderr[-500:])
            return 0, False
        return int(done.stdout or 0), done.returncode == 0


def launch_of(folder: TaskDir, run: int) -> Launch | None:
    """How the run was launched; None if that is not known."""
    try:
        return Launch(str(folder.run_dir(run) / "launch"))
    except (OSError, ValueError, KeyError):
        return None
