"""What a driver is: the only part of an agent that touches running work.

The supervisor decides; a driver acts and reports. A driver never restarts anything by itself, never forgets a task it
was not told to forget, and never runs one (task, run) twice: a start is recorded before the work can begin, so that
after a crash of the agent `inspect` tells the whole truth about what runs and what ended.

One task is one Binding. Each start of it is a run, numbered from 1; the supervisor chooses the number.

Writing another driver (OCI, hollow, simulated) means implementing `Driver`. What must hold:

- `start` returns once the work really runs, or raises `StartFailed`; after either, `inspect` shows the run.
- work outlives the agent: a new agent process finds it with `inspect` and goes on receiving its end from `next_exit`.
- `stop` returns only when nothing of the task runs any more. Its exit is not repeated by `next_exit`.
- after `stop` of a task, no late start of a run up to that one can begin.
- exclusive work has ended before the moment of the last `permit`, and work with `until_mono_s` before that moment, even
  if the agent is dead or stopped by then; a start that comes too late for it does not begin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.agent.groups import Usage
from holdfast.model import limits
from holdfast.model.binding import DeviceClaim
from holdfast.model.replica import Exit
from holdfast.model.template import Template


class Task(msgspec.Struct, frozen=True):
    """All a driver needs to run one Binding, and all a restarted agent needs to recognise it."""

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
    until_mono_s: float | None = None
    """`until_mono_s` is the end of provisional work, on the clock leases are counted on."""


class Started(msgspec.Struct, frozen=True):
    pid: int
    started_at_s: float


class Found(msgspec.Struct, frozen=True):
    """One task as it really is: running when `exit` is None."""

    task: Task
    pid: int
    started_at_s: float
    exit: Exit | None = None
    ended_at_s: float = 0.0


class Ended(msgspec.Struct, frozen=True):
    task_id: str
    run: int
    exit: Exit


class ExecResult(msgspec.Struct, frozen=True):
    code: int
    output: str


class StartFailed(Exception):
    """The run did not begin, and will not. `reason` is one of `model.reasons`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Driver(Protocol):
    @property
    def name(self) -> str:
        """The value of `template.driver` it serves."""

    async def inspect(self) -> list[Found]:
        """Everything not yet forgotten, in the order of task ids. Called once, before anything else."""

    async def start(self, task: Task) -> Started:
        """Runs it. Repeating a (task id, run) that was started is answered with what runs, not started again."""

    async def stop(self, task_id: str, grace_s: float) -> Exit:
        """Asks politely, then by force after `grace_s`. A second call may shorten the grace of the first."""

    def permit(self, epoch: int, until_mono_s: float) -> None:
        """The node's lease, whenever it is another: what exclusive work of that epoch may run under, and how long."""

    def run_until(self, task_id: str, until_mono_s: float | None) -> None:
        """Moves the end of provisional work; None makes it ordinary work."""

    async def next_exit(self) -> Ended:
        """Waits for the next run that ended without `stop`."""

    async def forget(self, task_id: str) -> None:
        """The task is over and acknowledged. Its logs may be kept for a while."""

    async def execute(
        self, task_id: str, command: tuple[str, ...], timeout_s: float, output_bytes: int = limits.PROBE_OUTPUT_BYTES
    ) -> ExecResult:
        """Runs a command beside the work, in its environment and under its limits. Raises TimeoutError."""

    def usage(self, task_id: str) -> Usage | None:
        """What the work uses now; None when the driver cannot tell."""

    def logs(self, task_id: str) -> Path | None:
        """The newest log file of a task, for `agent.logs`; None when the driver keeps none."""

    async def close(self) -> None:
        """Lets go without touching the work."""
