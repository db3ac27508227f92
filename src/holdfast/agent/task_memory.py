"""Values of tasks in memory-backed files: the environment and the files that come from Secrets and ConfigMaps.

Owns one directory on a tmpfs, so nothing of it reaches a disk. It outlives the agent, and a new agent process finds it.
`TASK/env` is readable for the agent and the shim only; `TASK/files/…` belongs to the user of the task. For a container,
`TASK/bundle` and `TASK/runtime` are what its runtime reads and writes, because both repeat the environment. The
directory of a task is removed when the task is forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from holdfast.model.config_values import TaskFile, TaskValues

TMPFS_PLACES = ("/dev/shm", "/run")
_ENV, _FILES, _BUNDLE, _RUNTIME = "env", "files", "bundle", "runtime"
_PART = ".part-"


def find_tmpfs() -> Path | None:
    """The first place on a tmpfs that this process may write to; None if the node has none."""
    kinds: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, place, kind, *_ = line.split(" ")
            kinds[place] = kind
    return next((Path(p) for p in TMPFS_PLACES if kinds.get(p) == "tmpfs" and os.access(p, os.W_OK)), None)


class TaskMemory:
    """The values of one agent's tasks. `state_dir` tells agents on one machine apart."""

    def __init__(self, state_dir: Path, place: Path | None) -> None:
        digest = hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:16]
        self._root = place / f"holdfast-{os.geteuid()}-{digest}" if place is not None else None

    @property
    def is_available(self) -> bool:
        return self._root is not None

    def holds(self, task_id: str) -> bool:
        """Whether complete values of the task are there: the environment is written last."""
        return self._root is not None and (self._root / task_id / _ENV).exists()

    def env_file(self, task_id: str) -> Path:
        return self._dir(task_id) / _ENV

    def files_dir(self, task_id: str) -> Path:
        return self._dir(task_id) / _FILES

    def environment(self, task_id: str) -> dict[str, bytes]:
        pairs = (pair.partition(b"=") for pair in self.env_file(task_id).read_bytes().split(b"\0") if pair)
        return {os.fsdecode(name): value for name, _, value in pairs}

    def make_bundle_dir(self, task_id: str) -> Path:
        """The directory for the container's configuration. From here on its runtime keeps its state in memory too."""
        for name in (_BUNDLE, _RUNTIME):
            (self._dir(task_id) / name).mkdir(mode=0o700, exist_ok=True)
        return self._dir(task_id) / _BUNDLE

    def bundle_dir(self, task_id: str) -> Path | None:
        return self._existing(task_id, _BUNDLE)

    def runtime_dir(self, task_id: str) -> Path | None:
        return self._existing(task_id, _RUNTIME)

    def _existing(self, task_id: str, name: str) -> Path | None:
        found = self._root / task_id / name if self._root is not None else None
        return found if found is not None and found.is_dir() else None

    def write(self, task_id: str, values: TaskValues) -> None:
        """Replaces the values of a task that does not run."""
        folder = self._dir(task_id)
        self._make_root()
        folder.mkdir(mode=0o711, exist_ok=True)
        (folder / _ENV).unlink(missing_ok=True)
        shutil.rmtree(folder / _FILES, ignore_errors=True)
        (folder / _FILES).mkdir(mode=0o700)
        for file in values.files:
            self._write_file(folder / _FILES, file, None)
        pairs = [name.encode() + b"=" + value for name, value in values.env.items()]
        _write(folder / _ENV, b"\0".join(pairs), 0o600)

    def give_to(self, task_id: str, uid: int, gid: int) -> None:
        """Makes the user of the task the owner of its files. Nothing of the task runs yet."""
        if os.geteuid() != 0 or not uid:
            return
        top = self.files_dir(task_id)
        for path in (top, *top.rglob("*")):
            os.chown(path, uid, gid, follow_symlinks=False)

    def update(self, task_id: str, files: Iterable[TaskFile], rewritten: Collection[str] = ()) -> int:
        """Replaces changed files of a running task, each atomically. Returns how many.

        `rewritten` files are mounted into a container one by one. A mount shows the file that was there when it was
        made, so the file itself is written.
        """
        top = self.files_dir(task_id)
        try:
            owner = top.stat()
        except FileNotFoundError:
            return 0
        changed = 0
        for file in files:
            path = top / file.path
            with contextlib.suppress(OSError):
                if not path.is_symlink() and path.read_bytes() == file.content:
                    continue
            if file.path in rewritten:
                _rewrite(path, file.content)
            else:
                self._write_file(top, file, (owner.st_uid, owner.st_gid))
            changed += 1
        return changed

    def remove(self, task_id: str) -> None:
        if self._root is not None:
            shutil.rmtree(self._root / task_id, ignore_errors=True)

    def keep_only(self, task_ids: Iterable[str]) -> None:
        """Removes values of tasks that this agent does not know, such as those forgotten just before a crash."""
        kept = set(task_ids)
        if self._root is not None and self._root.is_dir():
            for path in self._root.iterdir():
                if path.name not in kept:
                    shutil.rmtree(path, ignore_errors=True)

    def _dir(self, task_id: str) -> Path:
        assert self._root is not None
        return self._root / task_id

    def _make_root(self) -> None:
        """Refuses a directory that somebody else made: the place is open to all users of the node."""
        assert self._root is not None
        self._root.mkdir(mode=0o711, exist_ok=True)
        found = self._root.lstat()
        if found.st_uid != os.geteuid() or self._root.is_symlink() or found.st_mode & 0o022:
            raise PermissionError(f"{self._root}: not owned by the agent; next: remove it")

    def _write_file(self, top: Path, file: TaskFile, owner: tuple[int, int] | None) -> None:
        """A component of the path that is not a directory of ours is refused: the task owns the tree."""
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            *folders, name = file.path.split("/")
            for folder in folders:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700, dir_fd=fd)
                    if owner is not None and os.geteuid() == 0:
                        os.chown(folder, *owner, dir_fd=fd, follow_symlinks=False)
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                os.close(fd)
                fd = inner
            part = f"{_PART}{secrets.token_hex(4)}"
            out = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=fd)
            try:
                _write_all(out, file.content)
                if owner is not None and os.geteuid() == 0:
                    os.fchown(out, *owner)
                os.fchmod(out, file.mode)
            finally:
                os.close(out)
            os.rename(part, name, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            os.close(fd)


def link_into(work: Path, target: Path, paths: Iterable[str], owner: tuple[int, int] | None) -> None:
    """Symbolic links in the task's directory to its files in memory: one per first path component.

    The task owns `work`, so nothing there is followed; a file of the task in the way is replaced.
    """
    fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for first in sorted({path.partition("/")[0] for path in paths}):
            part = f"{_PART}{secrets.token_hex(4)}"
            os.symlink(target / first, part, dir_fd=fd)
            if owner is not None and os.geteuid() == 0:
                os.chown(part, *owner, dir_fd=fd, follow_symlinks=False)
            try:
                os.rename(part, first, src_dir_fd=fd, dst_dir_fd=fd)
            except OSError:
                os.unlink(part, dir_fd=fd)
                raise
    finally:
        os.close(fd)


def _write(path: Path, data: bytes, mode: int) -> None:
    part = path.with_name(f"{_PART}{secrets.token_hex(4)}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        _write_all(fd, data)
    finally:
        os.close(fd)
    part.rename(path)


def _rewrite(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _write_all(fd, data)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
