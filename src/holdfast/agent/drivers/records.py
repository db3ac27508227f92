"""Records of the process driver on disk, and checks of the processes they name.

A record becomes visible only when complete (written aside, synced, renamed). Whether a shim lives is read from the lock
that it holds, never from a pid alone. A pid is verified by start time and boot id.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.removal import remove_tree
from holdfast.agent.shim import boot_id, read_record, reserve_record, start_ticks, write_record
from holdfast.agent.shim_guard import encode_deadline
from holdfast.agent.shim_termination import TERMINATION_FILE_BYTES_MAX, TERMINATION_RECORD, termination_text
from holdfast.model import times
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus

# Size at which a task's log file is rotated.
LOG_FILE_BYTES_MAX = 4 * 1024 * 1024
# Rotated log files kept per task. The oldest is deleted.
LOG_FILES_MAX = 3

_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux
TASK_MARK_ENV = "HOLDFAST_TASK"
TERMINATION_ENV = "HOLDFAST_TERMINATION_FILE"
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
STOP_RECORD_BYTES = 64
SHIM_LOOKUPS = 8
"""Attempts to open the shim's pidfd. An attempt fails if the process id changes during it. After the last one the shim
counts as not found."""


class TaskRecord(msgspec.Struct, frozen=True):
    """`task.json`: the decided start. Written before the run can begin."""

    task: Task
    forgotten: bool = False


class StartedRecord(msgspec.Struct, frozen=True):
    pid: int
    ticks: int
    boot: str
    at_s: float

    def is_alive(self) -> bool:
        """Whether the recorded process still runs, as opposed to a later process with the same pid."""
        return self.ticks > 0 and start_ticks(self.pid) == self.ticks and self.boot == boot_id()


class TaskDir:
    """One task's directory: `task.json`, `lock`, `output.log*`, `work/`, and `run-N/` for the newest run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    def read(self) -> TaskRecord | None:
        try:
            return msgspec.json.decode((self.path / "task.json").read_bytes(), type=TaskRecord)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, record: TaskRecord) -> None:
        write_atomically(self.path / "task.json", msgspec.json.encode(record))

    def prepare(self, task: Task, env: dict[str, str], settings: Sequence[tuple[str, object]] = ()) -> None:
        """Writes everything a shim needs, durably, before the shim exists. Deletes the records of earlier runs.

        `settings` are the driver's additions to the launch file: control groups, limits, the lease file.
        """
        work = self.path / "work"
        work.mkdir(parents=True, exist_ok=True)
        for old in self.path.glob("run-*"):
            if old != self.run_dir(task.run):
                self._delete_run(old)
        self.run_dir(task.run).mkdir(exist_ok=True)
        # A task that fills the disk must be stoppable, so the space of the stop request is reserved in advance.
        reserve_record(str(self.run_dir(task.run) / "stop"), STOP_RECORD_BYTES)
        argv = [*task.template.command, *task.template.args]
        pairs = [f"{key}={value}" for key, value in env.items()]
        every: tuple[tuple[str, object], ...] = (
            ("cwd", self.working_dir(task)),
            ("work", work),
            ("mark", f"{TASK_MARK_ENV}={self.id}"),
            ("log_bytes", LOG_FILE_BYTES_MAX),
            ("log_files", LOG_FILES_MAX),
            *settings,
            *((("checkpoint", int(signal.Signals[first])),) if (first := task.template.checkpoint_signal) else ()),
        )
        parts = [*(f"{key}={value}" for key, value in every), "", str(len(argv)), *argv, *pairs]
        if any("\0" in part for part in parts):
            # The launch file is separated by NUL: the rest of the text would be read as another setting.
            raise StartFailed(Reason.COMMAND_NOT_FOUND, f"task {task.id}: a text of its template contains NUL")
        write_atomically(self.run_dir(task.run) / "launch", "\0".join(parts).encode(errors="surrogateescape"))
        self.write(TaskRecord(task))

    def working_dir(self, task: Task) -> Path:
        """Where the task starts. A relative directory is below the task's own."""
        return self.path / "work" / task.template.working_dir

    def _delete_run(self, run_dir: Path) -> None:
        """Deletes the records of an earlier run, in an order that never lets a late shim of a dead agent start it.

        A shim starts nothing if it finds `stop` or finds no `launch`, so `launch` goes while `stop` is still there. The
        late shim may be writing that it starts nothing: what it leaves does not affect the new run, and is deleted with
        the next run or with the task.
        """
        (run_dir / "launch").unlink(missing_ok=True)
        shutil.rmtree(run_dir, ignore_errors=True)

    def empty_tmp(self) -> None:
        """Deletes the temporary files of the earlier run. Nothing of the task runs meanwhile."""
        for name in ("tmp", "var-tmp"):
            remove_tree(self.path / name)

    def run_dir(self, run: int) -> Path:
        return self.path / f"run-{run}"

    def started(self, run: int) -> StartedRecord | None:
        record = read_record(str(self.run_dir(run) / "started"))
        if record is None:
            return None
        return StartedRecord(
            pid=int(record["pid"]), ticks=int(record["ticks"]), boot=record["boot"], at_s=float(record["at"])
        )

    def exit(self, run: int) -> ExitStatus | None:
        record = read_record(str(self.run_dir(run) / "exit"))
        if record is None:
            return None
        code = int(record["code"]) if record["code"] else None
        return ExitStatus(
            code=code,
            signal=record["signal"],
            reason=record["reason"],
            message=record["message"],
            at=times.micro_text(float(record["at"])),
            termination_message=self._termination_message(run),
        )

    def lost_output_bytes(self, run: int) -> int:
        """How many bytes of the run's output its shim could not write. Known when the run has ended."""
        return int((read_record(str(self.run_dir(run) / "exit")) or {}).get("lost", "0"))

    def _termination_message(self, run: int) -> str:
        try:
            with (self.run_dir(run) / TERMINATION_RECORD).open("rb") as file:
                return termination_text(file.read(TERMINATION_FILE_BYTES_MAX))
        except OSError:
            return ""

    def request_stop(self, run: int, grace_s: float) -> None:
        """From here on no shim can start this run, and a running shim knows the grace period."""
        path = self.run_dir(run) / "stop"
        path.parent.mkdir(exist_ok=True)
        try:
            write_record(str(path), {"grace": repr(grace_s)})
        except OSError as error:
            # Space was reserved for one request: the earlier request stands, with its own grace period.
            if error.errno not in DISK_FULL_ERRNOS or not path.exists():
                raise

    def set_run_until(self, run: int, until_mono_s: float | None) -> None:
        """Sets the deadline of the run on CLOCK_BOOTTIME; None removes it."""
        path = self.run_dir(run) / "until"
        if until_mono_s is None:
            path.unlink(missing_ok=True)
        elif path.exists():
            write_in_place(path, encode_deadline(0, until_mono_s))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, encode_deadline(0, until_mono_s))

    def is_confirmed_ended(self, run: int) -> bool:
        """Whether an operator has confirmed that nothing of the run is left, where the agent cannot be sure."""
        return (self.run_dir(run) / "confirmed").exists()

    def withdraw_stop(self, run: int) -> None:
        (self.run_dir(run) / "stop").unlink(missing_ok=True)

    def shim_pid(self) -> int:
        """The pid of the process that holds the lock, queried without taking the lock; 0 if there is none."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, query))
        finally:
            os.close(fd)
        return 0 if kind == fcntl.F_UNLCK else int(pid)

    def open_shim_pidfd(self) -> int | None:
        """A pidfd of the running shim. The lock is queried twice, so that the pid cannot have been reused in
        between.
        """
        for _ in range(SHIM_LOOKUPS):
            pid = self.shim_pid()
            if pid <= 0:
                return None
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            if self.shim_pid() == pid:
                return fd
            os.close(fd)
        return None


def write_in_place(path: Path, data: bytes) -> None:
    """For fixed-length text that reveals a torn read. Needs no free space after the first write; not synced, because
    the content need not survive a power loss.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes) -> None:
    """Durable and atomic: synced, renamed, and the directory synced. A crash leaves the old content or the new."""
    part = path.with_name(path.name + ".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(part, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
