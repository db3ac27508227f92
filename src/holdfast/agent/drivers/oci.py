"""OCI bundles and images, run by crun or runc under the same shims as plain processes.

The runtime is the shim's child and stays in the foreground, so logs, exit records, adoption and the watchdog are those
of the process driver. The original bundle is never modified. A container shares the node's network, because ports are
allocated per node, and is isolated otherwise. Without an installed runtime a start fails with DriverMissing.

A bundle decides much about a container, so it must belong to the node: a directory that only its operator can change.
The user is that of every task, whatever the bundle says: a uid of its own, without capabilities.

An image needs no such trust: the agent writes the configuration itself. Its root file system is shared read-only by
all tasks of the node. Each task writes to a layer of its own in memory, which ends with the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.cgroups import TASK_PROCESSES_MAX, Usage
from holdfast.agent.drivers.command_session import CommandSession
from holdfast.agent.drivers.container_network import ContainerNetwork
from holdfast.agent.drivers.contract import (
    PROBE_OUTPUT_BYTES_MAX,
    DiscoveredTask,
    Driver,
    ExecResult,
    StartedTask,
    StartFailed,
    Task,
    TaskExit,
    TaskPrograms,
)
from holdfast.agent.drivers.image_bundle import runtime_config
from holdfast.agent.drivers.images import ImageCache
from holdfast.agent.drivers.oci_programs import ProgramContainers, program_containers
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.records import TASK_MARK_ENV, TERMINATION_ENV
from holdfast.agent.drivers.volumes import TaskVolumes
from holdfast.agent.limits import AGENT_CALL_TIMEOUT_S
from holdfast.agent.shim_confine import can_make_layers
from holdfast.agent.task_config import ContainerConfig
from holdfast.agent.task_users import RuntimeUser, TaskUsers
from holdfast.foundation.container_runtime import RUNTIMES
from holdfast.model.quantity import CPU, DISK, MEMORY
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus
from holdfast.model.template import Template

# Size of the writable layer of a task that runs an image and requests no `disk`. It is memory of the task.
IMAGE_LAYER_BYTES_DEFAULT = 256 * 1024**2
# Between two looks at a container that its runtime is still making.
CONTAINER_POLL_S = 0.05
# A command gets at least this long, however long its container took.
EXEC_TIMEOUT_MIN_S = 1.0
# Size of the file system for the termination file of a container. Writes beyond it fail.
TERMINATION_SPACE_BYTES = 64 * 1024
TERMINATION_PLACE = "/dev/termination-log"
_SHARED = ("network", "cgroup")
_SYS = {
    "destination": "/sys",
    "type": "none",
    "source": "/sys",
    "options": ["rbind", "nosuid", "noexec", "nodev", "ro"],
}


class OciDriver(Driver):
    """`processes` is a process driver with a directory of its own. Each run of the runtime is one of its runs."""

    def __init__(
        self,
        processes: ProcessDriver,
        root: Path,
        runtime: str,
        users: TaskUsers,
        bundle_dirs: Sequence[str],
        *,
        images: ImageCache | None = None,
        runtime_user: RuntimeUser | None = None,
        volumes: TaskVolumes | None = None,
        values: ContainerConfig | None = None,
        network: ContainerNetwork | None = None,
    ) -> None:
        """`runtime_user` and `values` are those that `processes` has. `runtime_user` gives each container its writable
        layer.
        """
        self._values = values
        self._network = network or ContainerNetwork("127.0.0.1")
        self._images = images
        self._settings = runtime_user.settings if runtime_user is not None else {}
        self._makes_layers = runtime_user is not None and makes_layers(root)
        self._volumes = volumes or TaskVolumes(in_view=False)
        self._users = users
        self._processes = processes
        self._root = root
        self._runtime = runtime
        self._bundle_dirs = tuple(Path(directory).resolve() for directory in bundle_dirs)
        self._made: set[str] = set()
        """Tasks whose container has been seen running."""

    @property
    def name(self) -> str:
        return "oci"

    async def inspect(self) -> list[DiscoveredTask]:
        found = await self._processes.inspect()
        for each in found:
            if self._images is not None and each.task.template.image and each.exit is None:
                self._images.adopt(each.task)
        return found

    async def fetch(self, task: Task) -> None:
        if task.template.image:
            if self._images is None:
                what, step = f"image {task.template.image}: this node runs no images", "restart its agent with it"
                raise StartFailed(Reason.DRIVER_MISSING, f"{what}; next: set images.registries and {step}")
            await self._images.fetch(task)
        await self._processes.fetch(task)

    def fetch_progress(self, task: Task) -> str:
        return self._images.progress(task) if self._images is not None and task.template.image else ""

    async def start(self, task: Task) -> StartedTask:
        if not self._runtime:
            message = f"driver oci: no container runtime that runs on this node (expected one of {', '.join(RUNTIMES)})"
            raise StartFailed(Reason.DRIVER_MISSING, message)
        try:
            prepare = self._prepare_image if task.template.image else self._prepare
            bundle = await asyncio.to_thread(prepare, task)
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            what = f"image {task.template.image}" if task.template.image else f"bundle {task.template.bundle}"
            message = f"{what}: not usable ({error})"
            raise StartFailed(Reason.TEMPLATE_UNUSABLE, message) from error
        await self._delete(task.id)  # left over from an earlier run
        command = (*self._base(task.id), "run", "--bundle", str(bundle), _container(task.id))
        template = msgspec.structs.replace(task.template, command=command, args=(), user="", working_dir="")
        template = await asyncio.to_thread(self._contain_programs, template, task, bundle)
        return await self._processes.start(msgspec.structs.replace(task, template=template))

    def _base(self, task_id: str) -> tuple[str, ...]:
        own = ("--cgroup-manager=disabled",) if Path(self._runtime).name == "crun" else ()
        in_memory = self._values.runtime_dir(task_id) if self._values is not None else None
        return (self._runtime, *own, "--root", str(in_memory or self._root / "containers"))

    def _bundle(self, task_id: str) -> Path:
        """Where the container's configuration is, and those of the programs around it."""
        in_memory = self._values.bundle_dir(task_id) if self._values is not None else None
        return in_memory or self._root / "bundles" / task_id

    def _write_bundle(self, task: Task, config: dict[str, Any], folder: Path) -> Path:
        """With values from Secrets and ConfigMaps the bundle is in memory, else in `folder`."""
        self._settings.setdefault(task.id, []).extend(self._network.add_to(config, task, folder))
        if self._makes_layers:
            self._add_termination_file(task, config, folder)
        if self._values is not None:
            folder = self._values.add_to(config, task, dict(self._users.identify(task))) or folder
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def _prepare(self, task: Task) -> Path:
        """The task's own bundle: the given configuration adapted to this node, with the same root file system."""
        given = self._allowed(task.template.bundle)
        for path in (given / "config.json", given, *given.parents):
            _check_owner(path)
        config: dict[str, Any] = json.loads((given / "config.json").read_text())
        folder = self._root / "bundles" / task.id
        folder.mkdir(parents=True, exist_ok=True)
        self._settings[task.id] = []
        process, linux = config["process"], config.setdefault("linux", {})
        process["terminal"] = False
        self._set_user(process, task)
        config.pop("hooks", None)  # they run on the node, as root
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
        linux["resources"] = self._limits(task)
        config["mounts"] = [*mounts, _SYS, *self._volumes.oci_mounts(task, self._root / "tasks" / task.id)]
        linux["cgroupsPath"] = f"holdfast-oci/{_container(task.id)}"
        return self._write_bundle(task, config, folder)

    def _add_termination_file(self, task: Task, config: dict[str, Any], folder: Path) -> None:
        """A file of bounded size: in a small file system in memory, which the shim mounts and reads at the exit."""
        user = {**config["process"].get("user", {}), **dict(self._users.identify(task))}
        uid, gid = int(str(user.get("uid", 0))), int(str(user.get("gid", 0)))
        stage = folder / "termination"
        stage.mkdir(exist_ok=True)
        volume = {"name": "termination", "stage": str(stage), "place": "", "ro": False, "kind": "tmpfs"}
        request = {**volume, "size": TERMINATION_SPACE_BYTES, "uid": uid, "gid": gid}
        self._settings.setdefault(task.id, []).extend(
            (
                ("volume", json.dumps(request)),
                ("termination", stage / "message"),
                ("termination_uid", uid),
                ("termination_gid", gid),
            )
        )
        options = ["bind", "nosuid", "nodev", "noexec"]
        mount = {"type": "none", "source": str(stage / "message"), "options": options}
        config["mounts"] = [*config["mounts"], {"destination": TERMINATION_PLACE, **mount}]
        config["process"]["env"] = [*config["process"].get("env", []), f"{TERMINATION_ENV}={TERMINATION_PLACE}"]

    def _limits(self, task: Task) -> dict[str, Any]:
        """Limits for runc, which moves the container to a control group of its own. With crun the container stays in
        the task's control groups, which have the limits already.
        """
        if Path(self._runtime).name != "runc":
            return {}
        found: dict[str, Any] = {"pids": {"limit": TASK_PROCESSES_MAX}}
        if MEMORY in task.resources:
            found["memory"] = {"limit": task.resources[MEMORY]}
        if CPU in task.resources:
            found["cpu"] = {"shares": max(2, task.resources[CPU] * 1024 // 1000)}
        return found

    def _prepare_image(self, task: Task) -> Path:
        """The task's bundle, written by the agent alone. Its root is the shared image, below a layer of the task."""
        assert self._images is not None
        rootfs, image = self._images.root_of(task)
        folder = self._root / "bundles" / task.id
        folder.mkdir(parents=True, exist_ok=True)
        root = rootfs
        self._settings[task.id] = []
        if self._makes_layers:
            layer = folder / "layer"
            layer.mkdir(exist_ok=True)
            size = task.resources.get(DISK, 0) or IMAGE_LAYER_BYTES_DEFAULT
            self._settings[task.id] = [("layer", layer), ("layer_lower", rootfs), ("layer_bytes", size)]
            root = layer / "root"
        identity = dict(self._users.identify(task))
        # A read-only root has a layer too: the runtime makes the places of its mounts there, not in the shared image.
        writable = self._makes_layers and not task.template.read_only_root
        config = runtime_config(task, image, root=str(root), writable=writable, identity=identity)
        volumes = self._volumes.oci_mounts(task, self._root / "tasks" / task.id)
        config["mounts"] = [*config["mounts"], _SYS, *volumes]
        config["linux"]["cgroupsPath"] = f"holdfast-oci/{_container(task.id)}"
        config["linux"]["resources"] = self._limits(task)
        return self._write_bundle(task, config, folder)

    def _contain_programs(self, template: Template, task: Task, bundle: Path) -> Template:
        """The template with each program around the main task in a container of its own: with the same root file
        system, user and volumes. Hooks run in the container of the main task.
        """
        programs = ProgramContainers(self._base(task.id), bundle, _container(task.id))
        return programs.contain(template, task)

    def _allowed(self, bundle: str) -> Path:
        """The bundle, if it is below a directory that the node's configuration names, after following all links.

        A bundle says what is mounted and as whom it runs. One that a tenant wrote would own the node.
        """
        found = Path(bundle).resolve()
        if not any(found != directory and found.is_relative_to(directory) for directory in self._bundle_dirs):
            why = "not below a directory of bundles of this node; next: add its directory to bundle_dirs"
            raise StartFailed(Reason.DRIVER_MISSING, f"bundle {bundle}: {why}")
        return found

    def _set_user(self, process: dict[str, Any], task: Task) -> None:
        process["noNewPrivileges"] = True
        identity = dict(self._users.identify(task))
        if "root" in identity:
            return  # node and tenant allow it: the user and the capabilities are those of the bundle
        process["capabilities"] = {}
        if "uid" in identity:
            process["user"] = {"uid": identity["uid"], "gid": identity["gid"]}

    async def stop(self, task_id: str, grace_s: float) -> ExitStatus:
        """Both runtimes forward signals to the container and exit with it. SIGKILL ends the whole PID namespace."""
        exit_ = await self._processes.stop(task_id, grace_s)
        await self._delete(task_id)
        return exit_

    async def _delete(self, task_id: str) -> None:
        self._made.discard(task_id)
        containers = (_container(task_id), *program_containers(self._bundle(task_id), _container(task_id)))
        for container in containers if self._runtime else ():
            command = (*self._base(task_id), "delete", "--force", container)
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
        self._users.release(task_id)
        if self._images is not None:
            self._images.release(task_id)
        self._settings.pop(task_id, None)

    async def execute(
        self, task_id: str, command: tuple[str, ...], timeout_s: float, output_bytes: int = PROBE_OUTPUT_BYTES_MAX
    ) -> ExecResult:
        started = asyncio.get_running_loop().time()
        await self._wait_for_container(task_id, timeout_s)
        left_s = max(EXEC_TIMEOUT_MIN_S, timeout_s - (asyncio.get_running_loop().time() - started))
        inside = (*self._base(task_id), "exec", _container(task_id), *command)
        return await self._processes.execute(task_id, inside, left_s, output_bytes)

    async def _wait_for_container(self, task_id: str, timeout_s: float) -> None:
        """A task is started once its runtime runs, which then still has to make the container. Until then a command
        in it would fail as if the task were broken.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while task_id not in self._made and not await self._container_runs(task_id):
                    await asyncio.sleep(CONTAINER_POLL_S)
                self._made.add(task_id)

    async def _container_runs(self, task_id: str) -> bool:
        command = (*self._base(task_id), "state", _container(task_id))
        found = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, timeout=AGENT_CALL_TIMEOUT_S, check=False
        )
        # A stopped container is not waited for: the runtime's own error says what is wrong.
        return found.returncode == 0 and json.loads(found.stdout)["status"] not in ("creating", "created")

    def programs(self, task_id: str) -> TaskPrograms | None:
        return self._processes.programs(task_id)

    def open_command(self, task_id: str, command: tuple[str, ...], *, tty: bool) -> CommandSession:
        terminal = ("--tty",) if tty else ()
        inside = (*self._base(task_id), "exec", *terminal, _container(task_id), *command)
        return self._processes.open_command(task_id, inside, tty=tty)

    def usage(self, task_id: str) -> Usage | None:
        return self._processes.usage(task_id)

    def logs(self, task_id: str) -> Path | None:
        return self._processes.logs(task_id)

    async def close(self) -> None:
        await self._processes.close()


def makes_layers(root: Path) -> bool:
    """Whether containers get a writable layer. Without overlays their root is read-only, except for /tmp and /run."""
    probe = root / "layer-probe"
    try:
        probe.mkdir(parents=True, exist_ok=True)
        return os.geteuid() == 0 and can_make_layers(str(probe))
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _check_owner(path: Path) -> None:
    """Raises OSError if a user other than the agent's and root could have made or could change the file or folder."""
    found = path.stat()
    writable = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    if found.st_uid not in (0, os.geteuid()) or writable:
        raise PermissionError(errno.EPERM, "not only its operator can change it", str(path))


def _container(task_id: str) -> str:
    """Container id: runtimes allow fewer characters than task ids have. The trailing uid keeps it unique."""
    return task_id.rpartition("_")[2][:64] or task_id
