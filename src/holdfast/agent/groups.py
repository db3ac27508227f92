"""Control groups: what one task may use of the node, and what it did use.

Version 2 where the system has it, version 1 where that is what it has; else `Rlimits`, which is weaker and says so.
Always: a task's groups lie below the agent's own, so that whatever limits the agent limits the work as well; a group is
removed only when nothing runs in it. Never moves anything but the work into a group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from holdfast.model import limits
from holdfast.model.quantity import CPU, MEMORY

_log = structlog.get_logger()

_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_V2_NEEDED, _V2_WANTED = ("memory", "pids"), ("cpu",)
_FOLDER = "holdfast"


class Usage(msgspec.Struct, frozen=True):
    """What a task has used: CPU time since its start, memory and processes now."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    processes: int = 0
    refused_forks: int = 0


class Confinement(Protocol):
    """How tasks are held to what they asked for."""

    @property
    def kind(self) -> str:
        """cgroup2, cgroup1, rlimits or none."""

    @property
    def weakness(self) -> str:
        """What it cannot do, in words for people; empty when it can do all."""

    def prepare(self, task_id: str, resources: Mapping[str, int]) -> list[tuple[str, object]]:
        """What the launch must say: groups to enter, made with their limits, or limits to set. Raises OSError."""

    def usage(self, task_id: str) -> Usage | None:
        """None when nothing is known."""

    def forget(self, task_id: str) -> None:
        """Removes what is left of a task's groups."""

    def close(self) -> None:
        """The agent leaves: removes what was made for the node, unless work still runs in it."""


class Groups1(Confinement):
    """One hierarchy per controller. Memory and processes are bounded; CPU is shared by what was asked for."""

    kind = "cgroup1"
    weakness = ""

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
        _set(self._bases["pids"] / task_id / "pids.max", limits.TASK_PROCESSES_MAX)
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
                memory_bytes=_used(read("memory", "memory.usage_in_bytes"), read("memory", "memory.stat")),
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


class Groups2(Confinement):
    """The unified hierarchy."""

    kind = "cgroup2"
    weakness = ""

    def __init__(self, base: Path) -> None:
        self._base = base

    def prepare(self, task_id: str, resources: Mapping[str, int]) -> list[tuple[str, object]]:
        folder = self._base / task_id
        folder.mkdir(parents=True, exist_ok=True)
        if resources.get(MEMORY):
            _set(folder / "memory.max", resources[MEMORY])
            with contextlib.suppress(OSError):
                _set(folder / "memory.swap.max", 0)
        _set(folder / "pids.max", limits.TASK_PROCESSES_MAX)
        if resources.get(CPU):
            with contextlib.suppress(OSError):
                _set(folder / "cpu.weight", min(10_000, max(1, resources[CPU] // 10)))
        return [("group", folder)]

    def usage(self, task_id: str) -> Usage | None:
        folder = self._base / task_id
        try:
            return Usage(
                cpu_s=_field((folder / "cpu.stat").read_text(), "usage_usec") / 1e6,
                memory_bytes=_used((folder / "memory.current").read_text(), (folder / "memory.stat").read_text()),
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


class Unconfined(Confinement):
    """Nothing is limited: for drivers that were not given a confinement, and operators who ask for none."""

    kind = "none"
    weakness = "work is not held to what it asked for"

    def prepare(self, task_id: str, resources: Mapping[str, int]) -> list[tuple[str, object]]:
        return []

    def usage(self, task_id: str) -> Usage | None:
        return None

    def forget(self, task_id: str) -> None:
        return None

    def close(self) -> None:
        return None


class Rlimits(Unconfined):
    """Limits per process, and per user where tasks have users of their own: what is left without control groups."""

    kind = "rlimits"

    def __init__(self, why: str) -> None:
        self._uids: dict[str, int] = {}
        self._root = os.geteuid() == 0
        own = "each task has a user of its own" if self._root else "tasks share the agent's user"
        self.weakness = f"no control groups ({why}); {own}, limits hold per process, and use is not measured"

    def prepare(self, task_id: str, resources: Mapping[str, int]) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = []
        if resources.get(MEMORY):
            found.append(("memory", resources[MEMORY]))
        if self._root:
            found += [("uid", self._uid(task_id)), ("processes", limits.TASK_PROCESSES_MAX)]
        return found

    def _uid(self, task_id: str) -> int:
        """The same for a task after a restart, unless another has it by then."""
        taken = {uid for name, uid in self._uids.items() if name != task_id}
        first = zlib.crc32(task_id.encode()) % limits.TASK_UIDS
        for step in range(limits.TASK_UIDS):
            uid = limits.TASK_UID_FIRST + (first + step) % limits.TASK_UIDS
            if uid not in taken:
                self._uids[task_id] = uid
                return uid
        raise OSError(f"all {limits.TASK_UIDS} users for tasks are taken")

    def forget(self, task_id: str) -> None:
        self._uids.pop(task_id, None)


def confinement(
    node: str, wanted: str = "auto", root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Confinement:
    """The best this system allows the agent of `node` to use, or what the configuration asks for."""
    if wanted == "none":
        return Unconfined()
    if wanted == "rlimits":
        return Rlimits("the configuration asks for rlimits")
    try:
        mine = _own_groups(own)
        if (root / "cgroup.controllers").exists():
            return Groups2(_delegated(root / mine.get("", "").lstrip("/"), node))
        bases: dict[str, Path] = {}
        for controller in _V1_CONTROLLERS:
            if (root / controller / "cgroup.procs").exists():
                base = root / controller / mine.get(controller, "").lstrip("/") / _FOLDER / node
                base.mkdir(parents=True, exist_ok=True)
                bases[controller] = base
        if "memory" in bases and "pids" in bases:
            return Groups1(bases)
        return Rlimits("memory and pids controllers are not mounted")
    except OSError as error:
        return Rlimits(f"{error.filename or root}: {error.strerror or error}")


def _own_groups(path: Path) -> dict[str, str]:
    """Controller → the agent's own group; the unified hierarchy under the empty name."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        _, names, group = line.split(":", 2)
        for name in names.split(","):
            found[name] = group
    return found


def _delegated(own: Path, node: str) -> Path:
    """A folder for tasks below the agent's own group, with the controllers they need. Raises OSError, and then leaves
    nothing behind."""
    offered = (own / "cgroup.controllers").read_text().split()
    missing = [name for name in _V2_NEEDED if name not in offered]
    if missing:
        raise OSError(errno.ENOTSUP, f"{' and '.join(missing)} not delegated to the agent's group", str(own))
    wanted = " ".join(f"+{name}" for name in (*_V2_NEEDED, *(name for name in _V2_WANTED if name in offered)))
    try:
        _set(own / "cgroup.subtree_control", wanted)
    except OSError:
        # A group with processes passes no controllers on. If they are all the agent's own, it makes room.
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
    """The groups of ended tasks, the node's and the one they share: each only when nothing is in it."""
    with contextlib.suppress(OSError):
        for folder in (*(entry for entry in base.iterdir() if entry.is_dir()), base, base.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _set(path: Path, value: object) -> None:
    path.write_text(str(value))


def _field(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)


def _used(total: str, stat: str) -> int:
    """Without the file cache that would be given up at once."""
    inactive = _field(stat, "total_inactive_file") or _field(stat, "inactive_file")
    return max(0, int(total) - inactive)
