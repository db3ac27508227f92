"""A shim that the process driver watches, and the end of its run."""

from __future__ import annotations

import asyncio

from holdfast.agent.drivers.contract import Task
from holdfast.agent.drivers.records import TaskDir
from holdfast.foundation import metrics
from holdfast.model.replica import ExitStatus


class LiveShim:
    """One running shim. `ended` receives the exit when the shim is gone."""

    def __init__(self, task: Task, pidfd: int, shim_pid: int) -> None:
        self.task = task
        self.pidfd = pidfd
        self.shim_pid = shim_pid
        self.ended: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self.stopping = False
        self.starting = False

    def end(self, folder: TaskDir, exit_: ExitStatus) -> None:
        metrics.SHIM_LOST_OUTPUT.inc(folder.lost_output_bytes(self.task.run))
        self.ended.set_result(exit_)
