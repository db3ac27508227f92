"""Reads the task logs that the shims write on this node: the last lines, then new lines.

Read-only. Following a rotated file neither loses nor repeats a line, as long as the reader keeps up.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.agent.drivers.records import LOG_FILES_MAX, TaskDir
from holdfast.foundation.ports import Clock
from holdfast.model import limits, times
from holdfast.model.task_programs import MAIN_PROGRAM

_FOLLOW_EVERY_S = 0.2
_CHUNK_BYTES = 256 * 1024


class StoredLogLine(msgspec.Struct, frozen=True, gc=False):
    """`stream` is stdout or stderr; `complete` is False for a part of a line that continues."""

    at: str
    stream: str
    text: str
    complete: bool = True


class TaskLogs(msgspec.Struct, frozen=True):
    """The log of one task. The newest attempt of a replica comes first."""

    namespace: str
    replica: str
    attempt: int
    path: Path
    programs: tuple[str, ...] = ()
    """Names of the init tasks and sidecars."""

    def of_program(self, name: str) -> Path | None:
        """The log of an init task or sidecar; of the main task without a name. None if there is no such program."""
        if name in ("", MAIN_PROGRAM):
            return self.path
        return self.path.with_name(f"program-{name}.log") if name in self.programs else None


def find_task_logs(tasks_dir: Path, namespace: str, replica: str) -> list[TaskLogs]:
    """All attempts of a replica that have logs on this node."""
    found = []
    for path in tasks_dir.glob(f"{namespace}_*"):
        record = TaskDir(path).read()
        if record is not None and (record.task.namespace, record.task.replica) == (namespace, replica):
            changed_at = (path / "task.json").stat().st_mtime
            template = record.task.template
            names = (*(one.name for one in template.init_tasks), *(one.name for one in template.sidecars))
            found.append((changed_at, TaskLogs(namespace, replica, record.task.attempt, path / "output.log", names)))
    return [logs for _, logs in sorted(found, key=lambda pair: -pair[0])]


def select_log(found: list[TaskLogs], *, attempt: int, previous: bool) -> tuple[TaskLogs, str] | None:
    """The log of an attempt (0: the newest) and the time at which its lines end; empty: all lines.

    All runs of an attempt write one log. `previous` selects the runs before the newest one; if there are none, the log
    of the attempt before.
    """
    wanted = [one for one in found if attempt in (0, one.attempt)]
    if not wanted or not previous:
        return (wanted[0], "") if wanted else None
    newest = TaskDir(wanted[0].path.parent)
    record = newest.read()
    started = newest.started(record.task.run) if record is not None and record.task.run > 1 else None
    if started is not None:
        return wanted[0], times.micro_text(started.at_s)
    older = [one for one in found if one.attempt < wanted[0].attempt]
    return (older[0], "") if older else None


def log_files(path: Path) -> list[Path]:
    """The log file and its rotated parts, oldest first."""
    numbered = [path.with_name(f"{path.name}.{index}") for index in range(LOG_FILES_MAX, 0, -1)]
    return [part for part in (*numbered, path) if part.exists()]


def parse_line(raw: bytes) -> StoredLogLine:
    at, _, rest = raw.decode(errors="replace").partition(" ")
    tag, _, text = rest.partition(" ")
    if tag not in ("O", "E", "o", "e"):
        return StoredLogLine(at="", stream="stdout", text=raw.decode(errors="replace"))
    return StoredLogLine(at=at, stream="stderr" if tag in "Ee" else "stdout", text=text, complete=tag.isupper())


def tail(path: Path, lines: int) -> Iterator[StoredLogLine]:
    """The last lines across all rotated parts, oldest first."""
    kept: deque[bytes] = deque(maxlen=min(lines, limits.LOG_TAIL_LINES_MAX))
    for part in log_files(path):
        try:
            with part.open("rb") as f:
                kept.extend(line.rstrip(b"\n") for line in f)
        except FileNotFoundError:
            continue  # rotated in the meantime
    return map(parse_line, kept)


async def follow(
    path: Path, clock: Clock, *, lines: int = 0, is_growing: Callable[[], bool] = lambda: True
) -> AsyncIterator[StoredLogLine]:
    """The last lines, then every new line, until the caller stops iterating or the log grows no more."""
    reader = _Reader(path)
    for line in reader.begin(lines):
        yield line
    while True:
        growing = is_growing()  # asked before the log is read, so that the last lines are not lost
        for raw in reader.more():
            yield parse_line(raw)
        if not growing:
            return
        await clock.sleep(_FOLLOW_EVERY_S)


class _Reader:
    """Follows one file by inode: after a rotation it finishes the old file before it opens the new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb") if path.exists() else None
        self._rest = b""

    def begin(self, lines: int) -> list[StoredLogLine]:
        """The last lines. Reading continues exactly after them."""
        if self._file is None:
            return []
        older = [raw for part in log_files(self._path)[:-1] for raw in part.read_bytes().splitlines()]
        data = self._file.read()
        whole, _, self._rest = data.rpartition(b"\n")
        newest = whole.split(b"\n") if whole else []
        wanted = min(lines, limits.LOG_TAIL_LINES_MAX)
        return [parse_line(raw) for raw in (older + newest)[-wanted:]] if wanted else []

    def more(self) -> Iterator[bytes]:
        if self._file is None:
            if not self._path.exists():
                return
            self._file = self._path.open("rb")
        while True:
            data = self._file.read(_CHUNK_BYTES)
            if data:
                *whole, self._rest = (self._rest + data).split(b"\n")
                yield from whole
            elif not self._has_more():
                return

    def _has_more(self) -> bool:
        """Whether there is more to read: appended since, or in the next file after a rotation."""
        if self._file is None:
            return False
        opened = os.fstat(self._file.fileno())
        if opened.st_size > self._file.tell():
            return True
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        if (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino):
            return False
        self._file.close()
        self._file = self._path.open("rb")
        return True
