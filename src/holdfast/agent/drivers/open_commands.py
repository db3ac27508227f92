"""Commands of exec sessions per task, so that a task counts as ended only when nothing of its sessions runs (S7).

A command is a child of the process that runs commands, not of the task's shim. The shim therefore does not wait for it,
and on a node without control groups and own uids does not find it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.agent.drivers.command_session import CommandSession
from holdfast.agent.drivers.records import TaskDir
from holdfast.agent.drivers.shim_processes import sweep_run

# Time for a killed command to be reaped. After that, the sweep decides.
COMMAND_REAP_S = 5.0
# Sweeps for what commands left behind. Each takes up to two seconds; after the last, only the kernel can help.
COMMAND_SWEEPS_MAX = 30


class OpenCommands:
    def __init__(self) -> None:
        self._sessions: dict[str, list[CommandSession]] = {}

    def add(self, task_id: str, session: CommandSession) -> CommandSession:
        known = self._sessions.setdefault(task_id, [])
        known[:] = [one for one in known if not one.ended.done()]
        known.append(session)
        return session

    def had_any(self, task_id: str) -> bool:
        return task_id in self._sessions

    async def end(self, folder: TaskDir, run: int) -> None:
        """Kills the commands of a task that has ended, and whatever they left behind."""
        sessions = self._sessions.pop(folder.id, [])
        ends: set[asyncio.Future[Any]] = {one.ended for one in sessions if not one.ended.done()}
        for one in sessions:
            one.kill()
        if ends:
            await asyncio.wait(ends, timeout=COMMAND_REAP_S)
        for _ in range(COMMAND_SWEEPS_MAX):
            if (await asyncio.to_thread(sweep_run, folder.path, run)).returncode == 0:
                return
