"""OCI bundles, run by crun or runc under the same shims as plain processes.

The runtime is the shim's child and stays in the foreground, so logs, exit records, adoption and the watchdog are those
of the process driver. The original bundle is never modified. A container shares the node's network, because ports are
allocated per node, and is isolated otherwise. Without an installed runtime a start fails with DriverMissing.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.cgroups import Usage
from holdfast.agent.drivers.contract import (
    PROBE_OUTPUT_BYTES_MAX,
    DiscoveredTask,
    Driver,
    ExecResult,
    StartedTask,
    StartFailed,
    Task,
    TaskExit,
)
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.records import TASK_MARK_ENV
from holdfast.agent.limits import AGENT_CALL_TIMEOUT_S
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus

RUNTIMES = ("crun", "runc")
_SHARED = ("network", "cgroup")
_SYS = {
    "destination": "/sys",
    "type": "none",
    "source": "/sys",
    "options": ["rbind", "nosuid", "noexec", "nodev", "ro"],
}


def find_runtime() -> str:
    """Path of the first installed runtime; empty if there is none."""
    return next((path for name in RUNTIMES if (path := shutil.which(name))), "")


class OciDriver(Driver):
    """`processes` is a process driver with a directory of its own. Each run of the runtime is one of its runs."""

    def __init__(self, processes: ProcessDriver, root: Path, runtime: str) -> None:
        self._processes = processes
        self._root = root
        self._runtime = runtime

    @property
    def name(self) -> str:
        return "oci"

    async def inspect(self) -> list[DiscoveredTask]:
        return await self._processes.inspect()

    async def start(self, task: Task) -> StartedTask:
        if not self._runtime:
            message = f"driver oci: no container runtime on this node (expected one of {', '.join(RUNTIMES)})"
            raise StartFailed(Reason.DRIVER_MISSING, message)
        try:
            bundle = await asyncio.to_thread(self._prepare, task)
        except (OSError, ValueError, KeyError) as error:
            raise StartFailed(Reason.START_ERROR, f"bundle {task.template.bundle}: not usable ({error})") from error
        await self._delete(task.id)  # left over from an earlier run
        command = (*self._base(), "run", "--bundle", str(bundle), _container(task.id))
        template = msgspec.structs.replace(task.template, command=command, args=(), user="", working_dir="")
        return await self._processes.start(msgspec.structs.replace(task, template=template))

    def _base(self) -> tuple[str, ...]:
        own = ("--cgroup-manager=disabled",) if Path(self._runtime).name == "crun" else ()
        return (self._runtime, *own, "--root", str(self._root / "containers"))

    def _prepare(self, task: Task) -> Path:
        """The task's own bundle: the given configuration adapted to this node, with the same root file system."""
        given = Path(task.template.bundle)
        config: dict[str, Any] = json.loads((given / "config.json").read_text())
        folder = self._root / "bundles" / task.id
        folder.mkdir(parents=True, exist_ok=True)
        process, linux = config["process"], config.setdefault("linux", {})
        process["terminal"] = False
        if task.template.command:
            process["args"] = [*task.template.command, *task.template.args]
        process["env"] = [
            *process.get("env", []),
            *(f"{key}={value}" for key, value in task.env.items()),
            f"{TASK_MARK_ENV}={task.id}",
        ]
        if task.template.working_dir:
            process["cwd"] = task.template.working_dir
        config["root"]["path"] = str((given / config["root"]["path"]).resolve())
        linux["namespaces"] = [n for n in linux.get("namespaces", []) if n.get("type") not in _SHARED]
        mounts = [m for m in config.get("mounts", []) if m.get("type") not in ("cgroup", "sysfs")]
        config["mounts"] = [*mounts, _SYS]
        linux.pop("resources", None)  # the task's own control groups enforce its limits
        linux["cgroupsPath"] = f"holdfast-oci/{_container(task.id)}"
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    async def stop(self, task_id: str, grace_s: float) -> ExitStatus:
        """Both runtimes forward signals to the container and exit with it. SIGKILL ends the whole PID namespace."""
        exit_ = await self._processes.stop(task_id, grace_s)
        await self._delete(task_id)
        return exit_

    async def _delete(self, task_id: str) -> None:
        if self._runtime:
            command = (*self._base(), "delete", "--force", _container(task_id))
            await asyncio.to_thread(
                subprocess.run, command, capture_output=True, timeout=AGENT_CALL_TIMEOUT_S, check=False
            )

    def set_lease(self, epoch: int, until_mono_s: float) -> None:
        self._processes.set_lease(epoch, until_mono_s)

    def set_run_until(self, task_id: str, until_mono_s: float | None) -> None:
        self._processes.set_run_until(task_id, until_mono_s)

    async def next_exit(self) -> TaskExit:
        ended = await self._processes.next_exit()
        await self._delete(ended.task_id)
        return ended

    async def forget(self, task_id: str) -> None:
        await self._delete(task_id)
        await asyncio.to_thread(shutil.rmtree, self._root / "bundles" / task_id, True)
        await self._processes.forget(task_id)

    async def execute(
        self, task_id: str, command: tuple[str, ...], timeout_s: float, output_bytes: int = PROBE_OUTPUT_BYTES_MAX
    ) -> ExecResult:
        inside = (*self._base(), "exec", _container(task_id), *command)
        return await self._processes.execute(task_id, inside, timeout_s, output_bytes)

    def usage(self, task_id: str) -> Usage | None:
        return self._processes.usage(task_id)

    def logs(self, task_id: str) -> Path | None:
        return self._processes.logs(task_id)

    async def close(self) -> None:
        await self._processes.close()


def _container(task_id: str) -> str:
    """Container id: runtimes allow fewer characters than task ids have. The trailing uid keeps it unique."""
    return task_id.rpartition("_")[2][:64] or task_id
