"""The user of each task: a uid of its own where the agent is root, else the user of the agent.

- A uid belongs to one task. It is given to another only when the former task is forgotten, which means that no process
  and no file of it is left. Uids are given in turn, so that one is used again as late as possible.
- A task is never root, and never a named user, unless the node's configuration allows its tenant that user. The gate
  has checked the policy of the tenant (`Tenant.spec.allowedUsers`).
- Agents of one machine use disjoint uids: each claims a block, recorded beside those of the others.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import holdfast
from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.shim_confine import can_make_views
from holdfast.agent.shim_guard import read_uids
from holdfast.model.errors import Invalid
from holdfast.model.reasons import Reason

# User ids of one agent, and so the tasks of a node that can have one at a time. Without a free one a start fails.
TASK_UID_BLOCK = 4_096
# Blocks of user ids on one machine, and so the agents that can run on it with the default `task_uids`.
TASK_UID_BLOCKS_MAX = 2_048
# First user ids to try: one far above the users of systems and containers, then one that fits a container of 65,536
# user ids.
TASK_UID_FIRST = (1_900_000_000, 20_000)

_REGISTRY = Path("/var/lib/holdfast/task-uids")
_ROOT = "root"


class UserAssignment(Protocol):
    """What a driver asks about the user of a task."""

    def adopt(self, tasks_dir: Path) -> None:
        """Learns the users of the tasks that an earlier agent process started."""

    def prepare(self, task: Task, task_dir: Path) -> list[tuple[str, object]]:
        """The launch settings that decide the user of a task. Creates its directories. Raises StartFailed."""

    def environment(self, task_dir: Path, inherited: dict[str, str]) -> dict[str, str]:
        """What a task gets of the agent's environment."""

    def release(self, task_id: str) -> None:
        """The task is forgotten, and nothing of it is left."""


class RuntimeUser(UserAssignment):
    """For a container runtime, which needs the rights of the agent. The runtime gives the container its user.

    `settings` has further launch settings of each task: its writable layer, its termination file.
    """

    def __init__(self) -> None:
        self.settings: dict[str, list[tuple[str, object]]] = {}

    def adopt(self, tasks_dir: Path) -> None:
        return None

    def prepare(self, task: Task, task_dir: Path) -> list[tuple[str, object]]:
        return [("root", 1), *self.settings.get(task.id, ())]

    def environment(self, task_dir: Path, inherited: dict[str, str]) -> dict[str, str]:
        return inherited

    def release(self, task_id: str) -> None:
        return None


class TaskUsers(UserAssignment):
    """`state_dir` is the agent's. `uids` is the range in the node's configuration; None: a block of this machine.
    `allowed` are the named users by tenant.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        uids: tuple[int, int] | None = None,
        allowed: Mapping[str, tuple[str, ...]] | None = None,
        host_paths: Iterable[str] = (),
        registry: Path = _REGISTRY,
    ) -> None:
        self._allowed = allowed or {}
        self._state_dir = state_dir
        self.switches = os.geteuid() == 0
        self.makes_views = self.switches and can_make_views()
        named = [os.path.abspath(path) for path in (*runtime_paths(), *host_paths)]
        self._host_paths = tuple(dict.fromkeys((*named, *(os.path.realpath(path) for path in named))))
        self._uids: dict[str, int] = {}
        """Task → its uid."""
        self._taken: set[int] = set()
        self._next = 0
        self._lock = threading.Lock()
        if not self.switches:
            return
        state_dir.mkdir(parents=True, exist_ok=True)
        # Without views, tasks reach their directories through the state directory. They can list nothing there.
        state_dir.chmod(0o700 if self.makes_views else 0o711)
        self._first, self._last = uids or claim_block(state_dir, registry)
        self._cursor = state_dir / "next-uid"
        self._next = self._read_cursor()
        self._taken |= uids_in_use(self._first, self._last)

    @property
    def limitation(self) -> str:
        """What separates tasks less than they should be, as a message for people; empty if nothing."""
        if not self.switches:
            return "the agent is not root: tasks run as its user and can read what it can read"
        return "" if self.makes_views else "no mount namespaces: tasks share /tmp with the node"

    def adopt(self, tasks_dir: Path) -> None:
        """Learns the uids of the tasks that an earlier agent process started, from the owners of their directories."""
        for path in tasks_dir.iterdir() if self.switches else ():
            try:
                owner = (path / "work").stat().st_uid
            except OSError:
                continue
            if self._first <= owner <= self._last:
                self._uids[path.name] = owner
                self._taken.add(owner)

    def prepare(self, task: Task, task_dir: Path) -> list[tuple[str, object]]:
        """The launch settings that decide the user of a task. Creates its directories. Raises StartFailed."""
        work = task_dir / "work"
        work.mkdir(parents=True, exist_ok=True)
        settings = self.identify(task)
        for name in ("tmp", "var-tmp"):
            (task_dir / name).mkdir(exist_ok=True)
        if not self.switches:
            return settings
        facts = dict(settings)
        os.chown(work, int(str(facts.get("uid", 0))), int(str(facts.get("gid", 0))))
        work.chmod(0o700)
        task_dir.chmod(0o711)
        return settings + self._view(task_dir, work)

    def identify(self, task: Task) -> list[tuple[str, object]]:
        """Who the task is: `uid` and `gid`, unless it has the user of the agent. Raises StartFailed."""
        if task.template.user:
            return self._named_user(task.namespace, task.template.user)
        if not self.switches:
            return []
        uid = self._own_uid(task.id)
        return [("uid", uid), ("gid", uid), ("own_uid", 1)]

    def environment(self, task_dir: Path, inherited: dict[str, str]) -> dict[str, str]:
        """What a task gets of the agent's environment: a home and a directory for temporary files that it may write."""
        if not self.switches:
            return {**inherited, "TMPDIR": str(task_dir / "tmp")}
        tmp = "/tmp" if self.makes_views else str(task_dir / "tmp")
        return {**inherited, "HOME": str(task_dir / "work"), "TMPDIR": tmp}

    def _view(self, task_dir: Path, work: Path) -> list[tuple[str, object]]:
        """Directories for the task's own /tmp and /var/tmp. They belong to root and are sticky, like the real ones, so
        that the task cannot replace the paths that are mounted below them.
        """
        for name in ("tmp", "var-tmp"):
            (task_dir / name).chmod(0o1777)
        if not self.makes_views:
            return []
        paths = (os.path.realpath(work), *self._host_paths)
        return [("view", task_dir), *(("visible", path) for path in dict.fromkeys(paths) if os.path.isdir(path))]

    def _named_user(self, tenant: str, user: str) -> list[tuple[str, object]]:
        """A user of the machine, with its groups. Its processes cannot be told from others of the same user."""
        allowed = self._allowed.get(tenant, ())
        if user not in allowed:
            message = (
                f"user {user}: not allowed for tenant {tenant} on this node ({', '.join(allowed) or 'none'} allowed)"
            )
            raise StartFailed(Reason.USER_NOT_ALLOWED, f"{message}; next: add it to `allowed_users` of the agent")
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise StartFailed(Reason.TEMPLATE_UNUSABLE, f"user {user}: does not exist on this node") from None
        if entry.pw_uid == 0 and _ROOT not in allowed:
            raise StartFailed(Reason.USER_NOT_ALLOWED, f"user {user}: is root, and root is not allowed on this node")
        if entry.pw_uid == os.geteuid():
            return [("root", 1)] if entry.pw_uid == 0 else []
        if not self.switches:
            message = f"user {user}: the agent is not root and cannot change to another user"
            raise StartFailed(Reason.USER_NOT_ALLOWED, message)
        groups = os.getgrouplist(user, entry.pw_gid)
        return [("uid", entry.pw_uid), ("gid", entry.pw_gid), ("user_groups", " ".join(map(str, groups)))]

    def _own_uid(self, task_id: str) -> int:
        """The uid that the task already has, else the next free one. Raises OSError if there is none."""
        with self._lock:
            if task_id in self._uids:
                return self._uids[task_id]
            count = self._last - self._first + 1
            for step in range(count):
                uid = self._first + (self._next + step) % count
                if uid not in self._taken:
                    self._uids[task_id] = uid
                    self._taken.add(uid)
                    self._next = (self._next + step + 1) % count
                    self._cursor.write_text(str(self._next))
                    return uid
        raise OSError(f"all {count} task uids are in use")

    def release(self, task_id: str) -> None:
        """The task has ended and its directory is deleted: its uid may be given to another task, after all others."""
        with self._lock:
            self._taken.discard(self._uids.pop(task_id, 0))

    def _read_cursor(self) -> int:
        try:
            return int(self._cursor.read_text())
        except (OSError, ValueError):
            return 0


def runtime_paths() -> tuple[str, ...]:
    """The Python installation and the package of the agent, which is on the PATH that tasks inherit. They may lie in a
    home directory that others cannot enter.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(holdfast.__file__)))
    return (sys.base_prefix, sys.prefix, package)


def uids_in_use(first: int, last: int) -> set[int]:
    """The uids of this range under which any process runs."""
    found: set[int] = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found.update(uid for text in read_uids(entry) if first <= (uid := int(text)) <= last)
            except (OSError, ValueError):
                continue
    return found


def claim_block(state_dir: Path, registry: Path) -> tuple[int, int]:
    """The block of uids that belongs to this state directory. A block whose state directory is gone is free, unless
    processes still run under it.
    """
    try:
        registry.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(registry / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"{registry}: cannot record the uids of this agent ({error.strerror}); next: set `task_uids`"
        raise Invalid(message) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        base = first_task_uid()
        owners = {int(path.name): path.read_text() for path in registry.iterdir() if path.name.isdigit()}
        here = str(state_dir.resolve())
        rows = mapped_uids()
        blocks = [base + index * TASK_UID_BLOCK for index in range(TASK_UID_BLOCKS_MAX)]
        blocks = [first for first in blocks if is_mapped(first, first + TASK_UID_BLOCK - 1, rows)]
        mine = next((first for first in blocks if owners.get(first) == here), None)
        for first in blocks if mine is None else ():
            taken = first in owners and Path(owners[first]).exists()
            if not taken and not uids_in_use(first, first + TASK_UID_BLOCK - 1):
                (registry / str(first)).write_text(here)
                mine = first
                break
        if mine is None:
            raise Invalid(f"{registry}: all {len(blocks)} blocks of task uids are taken; next: set `task_uids`")
        return mine, mine + TASK_UID_BLOCK - 1
    finally:
        os.close(lock)


def first_task_uid() -> int:
    for first in TASK_UID_FIRST:
        if is_mapped(first, first + TASK_UID_BLOCK - 1, mapped_uids()):
            return first
    raise Invalid("the agent is root in a user namespace with too few uids; next: set `task_uids` to a range it has")


def mapped_uids() -> list[tuple[int, int]]:
    """First uid and count of each range that processes of this user namespace can have."""
    rows = (line.split() for line in Path("/proc/self/uid_map").read_text().splitlines())
    return [(int(first), int(count)) for first, _, count in rows]


def is_mapped(first: int, last: int, rows: list[tuple[int, int]]) -> bool:
    return any(start <= first and last < start + count for start, count in rows)
