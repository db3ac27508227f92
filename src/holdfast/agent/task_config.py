"""Gets the values that a task's template refers to from the region, and keeps its files up to date.

Values live in `TaskMemory` only: not in the agent's state, records, logs or command lines. If the region cannot be
reached, a restart uses the values of the run before.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import structlog

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.records import TASK_MARK_ENV
from holdfast.agent.task_memory import TaskMemory, link_into
from holdfast.foundation.ports import Clock
from holdfast.model.config_references import (
    ConfigFile,
    OnChange,
    container_path_error,
    file_place,
    has_values,
    references,
)
from holdfast.model.config_values import TaskValues
from holdfast.model.errors import Fault, NotFound
from holdfast.model.reasons import Reason
from holdfast.model.registry_login import RegistryLogin
from holdfast.model.template import DriverName

# Interval at which files of running tasks are compared with the region. A change reaches a file within this time.
CONFIG_REFRESH_EVERY_S = 10.0

_log = structlog.get_logger()


class ValueSource(Protocol):
    """The region's API, as an agent reads the values of its own Bindings there."""

    async def task_values(self, node: str, tenant: str, binding: str) -> TaskValues: ...

    async def registry_login(self, node: str, tenant: str, binding: str) -> RegistryLogin: ...


class TaskConfig:
    def __init__(self, node: str, source: ValueSource | None, memory: TaskMemory) -> None:
        self._node = node
        self._source = source
        self._memory = memory
        self._prepared: dict[str, int] = {}
        """Task → the run whose values are in memory."""

    async def fetch(self, task: Task) -> None:
        """Writes the values of one run to memory. Raises StartFailed, which names what is missing."""
        if not has_values(task.template) or self._prepared.get(task.id) == task.run:
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

    async def registry_login(self, task: Task) -> RegistryLogin:
        """The credentials for one pull of the task's image. The caller forgets them after it."""
        if self._source is None:
            raise StartFailed(Reason.CONFIG_UNREACHABLE, "this agent has no connection that serves values")
        try:
            return await self._source.registry_login(self._node, task.namespace, task.binding)
        except NotFound:
            raise StartFailed(Reason.NEVER_STARTED, "withdrawn while its pull secrets were read") from None
        except Fault as fault:
            message = f"pull secrets: the region does not answer ({fault.reason})"
            raise StartFailed(Reason.CONFIG_UNREACHABLE, message) from None

    def install(self, task: Task, work: Path, settings: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
        """Hands the files to the user of the task and links them into its directory. Returns the launch settings."""
        if not has_values(task.template):
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
            wanted = [file for file in values.files if file.updates]
            changed = await asyncio.to_thread(self._memory.update, task.id, wanted, _mounted_alone(task))
            if changed:
                _log.info("task_files_updated", task=task.id, files=changed)
        except (Fault, OSError) as error:
            _log.info("task_files_not_updated", task=task.id, error=type(error).__name__)


class ContainerConfig(TaskConfig):
    """Values of containers. Their bundle has the environment and mounts the files, so the shim gets neither.

    Runtimes copy the environment to their own state: bundle and state of such a container are in memory.
    """

    def install(self, task: Task, work: Path, settings: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
        return []

    def bundle_dir(self, task_id: str) -> Path | None:
        return self._memory.bundle_dir(task_id)

    def runtime_dir(self, task_id: str) -> Path | None:
        return self._memory.runtime_dir(task_id)

    def add_to(self, bundle: dict[str, Any], task: Task, identity: Mapping[str, object]) -> Path | None:
        """Adds the values to the configuration of the container. Returns the directory to write it to, if it has any.

        Variables of the template replace them; `TaskConfig.fetch` has left those out.
        """
        if not has_values(task.template):
            return None
        if not self._memory.is_available or not self._memory.holds(task.id):
            raise StartFailed(Reason.CONFIG_UNREACHABLE, f"task {task.id}: its values are not in memory")
        process = bundle["process"]
        uid, gid = identity.get("uid", process["user"]["uid"]), identity.get("gid", process["user"]["gid"])
        self._memory.give_to(task.id, int(str(uid)), int(str(gid)))
        known = dict(pair.split("=", 1) for pair in process.get("env", ()))
        values = {name: _text(name, value) for name, value in self._memory.environment(task.id).items()}
        values.pop(TASK_MARK_ENV, None)
        process["env"] = [f"{name}={value}" for name, value in {**known, **values}.items()]
        bundle["mounts"] = [*bundle["mounts"], *self._mounts(task, str(process["cwd"]))]
        return self._memory.make_bundle_dir(task.id)

    def _mounts(self, task: Task, cwd: str) -> Iterator[dict[str, object]]:
        """Each path is a mount of its own. A relative one is below the working directory of the container."""
        for file in task.template.files:
            place, source = posixpath.join(cwd, file.path), self._memory.files_dir(task.id) / file_place(file.path)
            if rule := container_path_error(place):
                raise StartFailed(Reason.TEMPLATE_UNUSABLE, f"file {file.path}: {place} {rule}")
            if source.exists():  # else it is optional, and its object or key does not exist
                options = ["bind", "ro", "nosuid", "nodev"]
                yield {"destination": place, "type": "none", "source": str(source), "options": options}


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        message = f"environment variable {name}: its value is not UTF-8; next: use it as a file"
        raise StartFailed(Reason.CONFIG_UNUSABLE, message) from None


def _mounted_alone(task: Task) -> frozenset[str]:
    """Files that a container has as mounts of their own, and not in a directory."""
    if task.template.driver is not DriverName.OCI:
        return frozenset()
    return frozenset(file_place(file.path) for file in task.template.files if file.key)


def _updates(task: Task) -> bool:
    return any(isinstance(r, ConfigFile) and r.on_change is OnChange.UPDATE for r in references(task.template))
