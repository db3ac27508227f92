"""Gets the values that a task's template refers to from the region, and keeps its files up to date.

Values live in `TaskMemory` only: not in the agent's state, records, logs or command lines. If the region cannot be
reached, a restart uses the values of the run before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import structlog

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.task_memory import TaskMemory, link_into
from holdfast.foundation.ports import Clock
from holdfast.model.config_references import ConfigFile, OnChange, has_references, references
from holdfast.model.config_values import TaskValues
from holdfast.model.errors import Fault, NotFound
from holdfast.model.reasons import Reason

# Interval at which files of running tasks are compared with the region. A change reaches a file within this time.
CONFIG_REFRESH_EVERY_S = 10.0

_log = structlog.get_logger()


class ValueSource(Protocol):
    """The region's API, as an agent reads the values of its own Bindings there."""

    async def task_values(self, node: str, tenant: str, binding: str) -> TaskValues: ...


class TaskConfig:
    def __init__(self, node: str, source: ValueSource | None, memory: TaskMemory) -> None:
        self._node = node
        self._source = source
        self._memory = memory
        self._prepared: dict[str, int] = {}
        """Task → the run whose values are in memory."""

    async def fetch(self, task: Task) -> None:
        """Writes the values of one run to memory. Raises StartFailed, which names what is missing."""
        if not has_references(task.template) or self._prepared.get(task.id) == task.run:
            return
        if not self._memory.is_available:
            what = "this node has no writable tmpfs for values (expected one at /dev/shm or /run)"
            raise StartFailed(Reason.CONFIG_UNREACHABLE, what)
        values = await self._read(task)
        if values is not None:
            if values.reason:
                raise StartFailed(values.reason, values.message)
            kept = {name: value for name, value in values.env.items() if name not in task.env}
            try:
                await asyncio.to_thread(self._memory.write, task.id, TaskValues(env=kept, files=values.files))
            except OSError as error:
                raise StartFailed(
                    Reason.START_ERROR, f"values: cannot hold them in memory ({error.strerror})"
                ) from None
        self._prepared[task.id] = task.run

    async def _read(self, task: Task) -> TaskValues | None:
        """None if the values of an earlier run are to be used, because the region does not answer."""
        if self._source is None:
            raise StartFailed(Reason.CONFIG_UNREACHABLE, "this agent has no connection that serves values")
        try:
            return await self._source.task_values(self._node, task.namespace, task.binding)
        except NotFound:
            raise StartFailed(Reason.NEVER_STARTED, "withdrawn while its values were read") from None
        except Fault as fault:
            if self._memory.holds(task.id):
                _log.warning("task_values_reused", task=task.id, run=task.run, reason=fault.reason)
                return None
            raise StartFailed(
                Reason.CONFIG_UNREACHABLE, f"values: the region does not answer ({fault.reason})"
            ) from None

    def install(self, task: Task, work: Path, settings: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
        """Hands the files to the user of the task and links them into its directory. Returns the launch settings."""
        if not has_references(task.template):
            return []
        if not self._memory.is_available or not self._memory.holds(task.id):
            raise StartFailed(Reason.CONFIG_UNREACHABLE, f"task {task.id}: its values are not in memory")
        facts = dict(settings)
        owner = (int(str(facts.get("uid", 0))), int(str(facts.get("gid", 0))))
        self._memory.give_to(task.id, *owner)
        made: list[tuple[str, object]] = [("values", self._memory.env_file(task.id))]
        if task.template.files:
            top = self._memory.files_dir(task.id)
            link_into(work, top, (file.path for file in task.template.files), owner if owner[0] else None)
            made.append(("visible", top))
        return made

    def forget(self, task_id: str) -> None:
        self._prepared.pop(task_id, None)
        self._memory.remove(task_id)

    async def keep_files_current(self, running: Callable[[], Iterable[Task]], clock: Clock) -> None:
        """Runs until cancelled. A region that does not answer changes nothing."""
        while True:
            await clock.sleep(CONFIG_REFRESH_EVERY_S)
            for task in [task for task in running() if _updates(task)]:
                await self._refresh(task)

    async def _refresh(self, task: Task) -> None:
        assert self._source is not None
        try:
            values = await self._source.task_values(self._node, task.namespace, task.binding)
            if values.reason:
                return  # deleted since: a running task keeps what it has
            changed = await asyncio.to_thread(self._memory.update, task.id, [f for f in values.files if f.updates])
            if changed:
                _log.info("task_files_updated", task=task.id, files=changed)
        except (Fault, OSError) as error:
            _log.info("task_files_not_updated", task=task.id, error=type(error).__name__)


def _updates(task: Task) -> bool:
    return any(isinstance(r, ConfigFile) and r.on_change is OnChange.UPDATE for r in references(task.template))
