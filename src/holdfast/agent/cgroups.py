"""Control groups: the limits of one task, and its resource use.

Uses cgroup v2 if present, else v1, else `RlimitIsolation`, which is weaker and reports so.
- A task's groups lie below the agent's own group, so limits on the agent also limit its tasks.
- A group is removed only when it is empty.
- Only processes of the task are moved into its group.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from holdfast.model.quantity import CPU, MEMORY

# Processes and threads of one task. Further forks fail (TooManyProcesses).
TASK_PROCESSES_MAX = 512

_log = structlog.get_logger()

_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_V2_REQUIRED, _V2_OPTIONAL = ("memory", "pids"), ("cpu",)
_FOLDER = "holdfast"


class Usage(msgspec.Struct, frozen=True):
    """Resource use of a task: CPU time since its start, current memory and processes."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    processes: int = 0
    refused_forks: int = 0


class TaskIsolation(Protocol):
    """How tasks are held to the resources they requested."""

    @property
    def kind(self) -> str:
        """cgroup2, cgroup1, rlimits or none."""

    @property
    def limitation(self) -> str:
        """What this isolation cannot enforce, as a message for people; empty if it enforces everything."""

    def prepare(self, task_id: str, resources: Mapping[str, int]) -> list[tuple[str, object]]:
        """Creates the task's groups with their limits. Returns the launch settings: groups to enter or limits to
        set. Raises OSError.
        """

    def usage(self, task_id: str) -> Usage | None:
        """None if unknown."""

    def forget(self, task_id: str) -> None:
        """Removes the task's groups."""

    def close(self) -> None:
        """Called when the agent exits: removes the node's groups unless tasks still run in them."""


class CgroupV1(TaskIsolation):
    """cgroup v1: one hierarchy per controller. Memory and process count are limited; CPU is shared in proportion to
    requests.
    """

    kind = "cgroup1"
    limitation = ""

    def __init__(self, bases: dict[str, Path]) -> None:
        self._bases = bases

    def _folder(self, controller: str, task_id: str) -> Path | None:
        base = self._bases.get(controller)
        return base / task_id if base is not None else None

    def prepare(self, task_id: str, resources: Mapping[str, int]) -> list[tuple[str, object]]:
        made: list[tuple[str, object]] = []
        for controller in self._bases:
            folder = self._bases[controller] / task_id
            folder.mkdir(parents=True, exist_ok=True)
            made.append(("group", folder))
        if resources.get(MEMORY):
            memory = self._bases["memory"] / task_id
            _set(memory / "memory.limit_in_bytes", resources[MEMORY])
            with contextlib.suppress(OSError):
                _set(memory / "memory.memsw.limit_in_bytes", resources[MEMORY])
        _set(self._bases["pids"] / task_id / "pids.max", TASK_PROCESSES_MAX)
        cpu = self._folder("cpu", task_id)
        if cpu is not None and resources.get(CPU):
            _set(cpu / "cpu.shares", max(2, resources[CPU] * 1024 // 1000))
        return made

    def usage(self, task_id: str) -> Usage | None:
        def read(controller: str, name: str) -> str:
            folder = self._folder(controller, task_id)
            return (folder / name).read_text() if folder is not None else "0"

        try:
            return Usage(
                cpu_s=int(read("cpuacct", "cpuacct.usage")) / 1e9,
                memory_bytes=_working_set_bytes(read("memory", "memory.usage_in_bytes"), read("memory", "memory.stat")),
                processes=int(read("pids", "pids.current")),
                refused_forks=_field(read("pids", "pids.events"), "max"),
            )
        except (OSError, ValueError):
            return None

    def forget(self, task_id: str) -> None:
        for base in self._bases.values():
            with contextlib.suppress(OSError):
                (base / task_id).rmdir()

    def close(self) -> None:
        for base in self._bases.values():
            _remove_empty(base)


class CgroupV2(TaskIsolation):
    """cgroup v2: the unified hierarchy."""

    kind = "cgroup2"
    limitation = ""

    def __init__(self, base: Path) -> None:
        self._base = base

    def prepare(self, task_id: str, resources: Mapping[str, int]) -> list[tuple[str, object]]:
        folder = self._base / task_id
        folder.mkdir(parents=True, exist_ok=True)
        if resources.get(MEMORY):
            _set(folder / "memory.max", resources[MEMORY])
            with contextlib.suppress(OSError):
                _set(folder / "memory.swap.max", 0)
        _set(folder / "pids.max", TASK_PROCESSES_MAX)
        if resources.get(CPU):
            with contextlib.suppress(OSError):
                _set(folder / "cpu.weight", min(10_000, max(1, resources[CPU] // 10)))
        return [("group", folder)]

    def usage(self, task_id: str) -> Usage | None:
        folder = self._base / task_id
        try:
            return Usage(
                cpu_s=_field((folder / "cpu.stat").read_text(), "usage_usec") / 1e6,
                memory_bytes=_working_set_bytes(
                    (folder / "memory.current").read_text(), (folder / "memory.stat").read_text()
                ),
                processes=int((folder / "pids.current").read_text()),
                refused_forks=_field((folder / "pids.events").read_text(), "max"),
            )
        except (OSError, ValueError):
            return None

    def forget(self, task_id: str) -> None:
        with contextlib.suppress(OSError):
            (self._base / task_id).rmdir()

    def close(self) -> None:
        _remove_empty(self._base)


class NoIsolation(TaskIsolation):
    """No limits: for drivers without an isolation, and for `isolation = "none"`."""

    kind = "none"
    limitation = "resource limits are not enforced"

    def prepare(self, task_id: str, resources: Mapping[str, int]) -> list[tuple[str, object]]:
        return []

    def usage(self, task_id: str) -> Usage | None:
        return None

    def forget(self, task_id: str) -> None:
        return None

    def close(self) -> None:
        return None


class RlimitIsolation(NoIsolation):
    """Limits per process, and per user where each task has its own uid: the fallback without control groups."""

    kind = "rlimits"

    def __init__(self, why: str) -> None:
        self.limitation = f"no control groups ({why}); limits apply per process, usage is not measured"

    def prepare(self, task_id: str, resources: Mapping[str, int]) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = []
        if resources.get(MEMORY):
            found.append(("memory", resources[MEMORY]))
        if os.geteuid() == 0:  # the limit counts all processes of a user, and so needs a user per task
            found.append(("processes", TASK_PROCESSES_MAX))
        return found


def choose_isolation(
    node: str, wanted: str = "auto", root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> TaskIsolation:
    """The strongest isolation that this system allows the agent, or the configured one. `node` names its group."""
    if wanted == "none":
        return NoIsolation()
    if wanted == "rlimits":
        return RlimitIsolation("isolation is set to rlimits")
    try:
        own_groups = _own_groups(own)
        if (root / "cgroup.controllers").exists():
            return CgroupV2(_delegated_group(root / own_groups.get("", "").lstrip("/"), node))
        bases: dict[str, Path] = {}
        for controller in _V1_CONTROLLERS:
            if (root / controller / "cgroup.procs").exists():
                base = root / controller / own_groups.get(controller, "").lstrip("/") / _FOLDER / node
                base.mkdir(parents=True, exist_ok=True)
                bases[controller] = base
        if "memory" in bases and "pids" in bases:
            return CgroupV1(bases)
        return RlimitIsolation("memory and pids controllers are not mounted")
    except OSError as error:
        return RlimitIsolation(f"{error.filename or root}: {error.strerror or error}")


def group_of_agent(node: str, state_dir: str) -> str:
    """Name of the agent's group. Agents of one machine can have the same node name, in different platforms."""
    return f"{node}-{hashlib.blake2b(os.path.realpath(state_dir).encode(), digest_size=4).hexdigest()}"


def _own_groups(path: Path) -> dict[str, str]:
    """Controller → the agent's own group; the unified hierarchy has the empty name."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        _, names, group = line.split(":", 2)
        for name in names.split(","):
            found[name] = group
    return found


def _delegated_group(own: Path, node: str) -> Path:
    """A group for tasks below the agent's own group, with the controllers they need. Raises OSError, and then leaves
    nothing behind.
    """
    offered = (own / "cgroup.controllers").read_text().split()
    missing = [name for name in _V2_REQUIRED if name not in offered]
    if missing:
        raise OSError(errno.ENOTSUP, f"{' and '.join(missing)} not delegated to the agent's group", str(own))
    wanted = " ".join(f"+{name}" for name in (*_V2_REQUIRED, *(name for name in _V2_OPTIONAL if name in offered)))
    try:
        _set(own / "cgroup.subtree_control", wanted)
    except OSError:
        # A group with processes cannot delegate controllers. If the agent is alone in it, it moves to a child group.
        if (own / "cgroup.procs").read_text().split() != [str(os.getpid())]:
            raise
        (own / "agent").mkdir(exist_ok=True)
        _set(own / "agent" / "cgroup.procs", os.getpid())
        _set(own / "cgroup.subtree_control", wanted)
    base = own / _FOLDER / node
    base.mkdir(parents=True, exist_ok=True)
    _set(own / _FOLDER / "cgroup.subtree_control", wanted)
    _set(base / "cgroup.subtree_control", wanted)
    return base


def _remove_empty(base: Path) -> None:
    """Removes the groups of ended tasks, the node's group and their common parent, each only if empty."""
    with contextlib.suppress(OSError):
        for folder in (*(entry for entry in base.iterdir() if entry.is_dir()), base, base.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _set(path: Path, value: object) -> None:
    path.write_text(str(value))


def _field(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)


def _working_set_bytes(total: str, stat: str) -> int:
    """Memory without the inactive file cache, which the kernel would reclaim at once."""
    inactive = _field(stat, "total_inactive_file") or _field(stat, "inactive_file")
    return max(0, int(total) - inactive)
