"""The driver contract. A driver is the only part of an agent that touches running processes.

The supervisor decides; a driver acts and reports. A driver never restarts a task by itself, never forgets a task before
`forget`, and never runs one (task, run) twice: a start is recorded before it can take effect, so after an agent crash
`inspect` reports exactly what runs and what ended.

One task is one Binding. Each start of it is a run, numbered from 1; the supervisor chooses the number.

To write another driver (OCI, hollow, simulated), implement `Driver`. It must guarantee:

- `start` returns once the task runs, or raises `StartFailed`; after either, `inspect` shows the run.
- Tasks outlive the agent: a new agent process finds them with `inspect` and receives their exits from `next_exit`.
- `stop` returns only when nothing of the task runs. `next_exit` does not repeat that exit.
- After `stop`, no delayed start of that run or an earlier one can begin.
- Exclusive tasks have ended before the deadline of the last `set_lease`, and tasks with `run_until_mono_s` before that
  time, even if the agent is dead or suspended by then. A start after the deadline does not begin.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.agent.cgroups import Usage
from holdfast.agent.drivers.command_session import CommandSession
from holdfast.model.binding import DeviceClaim
from holdfast.model.replica import ExitStatus
from holdfast.model.task_programs import ProgramStatus
from holdfast.model.template import Template
from holdfast.model.volume import BoundVolume

# Output of an exec probe. The rest is cut off.
PROBE_OUTPUT_BYTES_MAX = 1024


class Task(msgspec.Struct, frozen=True):
    """Everything a driver needs to run one Binding, and a restarted agent needs to recognise it."""

    id: str
    run: int
    namespace: str
    replica: str
    replica_uid: str
    workload: str
    binding: str
    binding_uid: str
    attempt: int
    epoch: int
    node_epoch: int
    template: Template
    env: dict[str, str]
    ports: dict[str, int] = {}
    devices: tuple[DeviceClaim, ...] = ()
    resources: dict[str, int] = {}
    exclusive: bool = False
    run_until_mono_s: float | None = None
    volumes: tuple[BoundVolume, ...] = ()
    """`run_until_mono_s`: deadline of a provisional task, on the same clock as leases."""


class StartedTask(msgspec.Struct, frozen=True):
    pid: int
    started_at_s: float


class DiscoveredTask(msgspec.Struct, frozen=True):
    """One task as the driver finds it. It is running if `exit` is None."""

    task: Task
    pid: int
    started_at_s: float
    exit: ExitStatus | None = None
    ended_at_s: float = 0.0


class TaskExit(msgspec.Struct, frozen=True):
    task_id: str
    run: int
    exit: ExitStatus


class ExecResult(msgspec.Struct, frozen=True):
    code: int
    output: str


class TaskPrograms(msgspec.Struct, frozen=True):
    """States of the programs of a task. `pid` is the process of the main task; 0 while it does not run."""

    stage: str
    programs: tuple[ProgramStatus, ...]
    pid: int = 0

    @property
    def main_runs(self) -> bool:
        return self.stage == "main" and self.pid > 0


class StartFailed(Exception):
    """The run did not start and will not. `reason` is one of `model.reasons`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Driver(Protocol):
    @property
    def name(self) -> str:
        """The value of `template.driver` that this driver serves."""

    async def inspect(self) -> list[DiscoveredTask]:
        """Every task that was not forgotten, ordered by task id. Called once, before any other method."""

    async def fetch(self, task: Task) -> None:
        """Fetches what the task needs from elsewhere. May take minutes, so it is called before a start's turn comes.

        Raises StartFailed. A driver that fetches nothing inherits this.
        """

    def fetch_progress(self, task: Task) -> str:
        """How far `fetch` is, for people. A driver that cannot say inherits this."""
        return ""

    async def start(self, task: Task) -> StartedTask:
        """Starts the task. Repeating a (task id, run) that already started returns the running task."""

    async def stop(self, task_id: str, grace_s: float) -> ExitStatus:
        """Sends SIGTERM, then kills after `grace_s`. A second call may shorten the grace of the first."""

    def set_lease(self, epoch: int, until_mono_s: float) -> None:
        """Sets the node's lease on every change: exclusive tasks of this epoch may run until then."""

    def set_run_until(self, task_id: str, until_mono_s: float | None) -> None:
        """Moves the deadline of a provisional task; None makes the task permanent."""

    async def next_exit(self) -> TaskExit:
        """Waits for the next run that ended without `stop`."""

    async def forget(self, task_id: str) -> None:
        """The task has ended and its end is acknowledged. Its logs may be kept for a while."""

    async def execute(
        self, task_id: str, command: tuple[str, ...], timeout_s: float, output_bytes: int = PROBE_OUTPUT_BYTES_MAX
    ) -> ExecResult:
        """Runs a command beside the task, in its environment and under its limits. Raises TimeoutError."""

    def programs(self, task_id: str) -> TaskPrograms | None:
        """States of the programs of a task with init tasks, sidecars or hooks; None for other tasks, and for drivers
        that inherit this.
        """
        return None

    def open_command(self, task_id: str, command: tuple[str, ...], *, tty: bool) -> CommandSession:
        """Starts a command beside the task with streams in both directions, on a terminal of its own if `tty`.

        Raises OSError. A driver without commands inherits this.
        """
        raise OSError(errno.ENOTSUP, f"driver {self.name} does not run commands beside tasks")

    def usage(self, task_id: str) -> Usage | None:
        """Current resource use of the task; None if the driver cannot measure it."""

    def logs(self, task_id: str) -> Path | None:
        """The newest log file of a task, for `agent.logs`; None if the driver keeps none."""

    async def close(self) -> None:
        """Releases the driver's resources. Tasks keep running."""
