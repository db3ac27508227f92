"""Process supervisor of a platform: starts processes, restarts crashed ones, and stops all of them in order.

- One supervisor per platform, enforced by a file lock.
- Every started process is recorded with its identity at once, so that a later supervisor or `holdfast down` finds it.
- A new supervisor adopts the processes that an earlier one left running.
- It never signals a process that it has not identified.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.drill_runner import DrillRunner
from holdfast.platform.layout import Layout, write_atomically
from holdfast.platform.processes import (
    PLATFORM_ENV,
    ProcessIdentity,
    identify,
    is_alive,
    open_pidfd,
    platform_processes,
    send_signal,
    wait_exited,
)

# Restart backoff: doubles from RESTART_FIRST_S to RESTART_MAX_S, and starts again after HEALTHY_AFTER_S of running.
RESTART_FIRST_S = 0.5
RESTART_MAX_S = 15.0
HEALTHY_AFTER_S = 30.0
POLL_MAX_S = 1.0
# A larger log is rotated when its process starts. One old log is kept.
LOG_BYTES_MAX = 64 * 1024 * 1024


class Program(msgspec.Struct, frozen=True, rename="camel"):
    """One supervised program. A lower `rank` starts first and stops last. `stop_signals` are sent in order, each with
    the time to wait, before SIGKILL."""

    name: str
    argv: tuple[str, ...]
    start_order: int = 0
    env: dict[str, str] = {}
    stop_signals: tuple[tuple[int, float], ...] = ((int(signal.SIGTERM), 10.0),)


class ProcessRecord(msgspec.Struct, frozen=True, rename="camel"):
    """State file of a process, for `status`, `down` and the next supervisor."""

    program: Program
    identity: ProcessIdentity | None = None
    restarts: int = 0
    last_exit: str = ""
    started_at: float = 0.0


def load_records(layout: Layout) -> list[ProcessRecord]:
    found: list[ProcessRecord] = []
    for path in sorted((layout.run / "processes").glob("*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=ProcessRecord))
        except (OSError, msgspec.MsgspecError):
            continue  # written by another version; the process is still found by its environment variable
    return sorted(found, key=lambda r: (r.program.start_order, r.program.name))


def running_supervisor(layout: Layout) -> ProcessIdentity | None:
    """The running supervisor of a platform, or None."""
    try:
        identity = msgspec.json.decode(layout.supervisor.read_bytes(), type=ProcessIdentity)
    except (OSError, msgspec.MsgspecError):
        return None
    return identity if is_alive(identity) else None


class ManagedProcess:
    """One supervised process, started or adopted."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.identity: ProcessIdentity | None = None
        self.handle: int | None = None
        self.popen: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self.last_exit = ""
        self.started_at = 0.0
        self.started_mono_s = 0.0
        self.restart_at_mono_s: float | None = None
        self.backoff_s = RESTART_FIRST_S / 2


class ProcessSupervisor:
    """`drills` runs the drills that are started in the console; None if none are taken."""

    def __init__(
        self, layout: Layout, programs: Sequence[Program], say: Callable[[str], None], drills: DrillRunner | None = None
    ) -> None:
        self._layout = layout
        self._managed = [ManagedProcess(p) for p in sorted(programs, key=lambda p: (p.start_order, p.name))]
        self._say = say
        self._stopping = False
        self._lock_handle: int | None = None
        self._drills = drills

    def run(self, *, parent: ProcessIdentity | None = None) -> None:
        """Supervises until SIGTERM or SIGINT, or until `parent` exits. Then stops all processes and returns."""
        self._take_lock()
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked_to_stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        me = identify(os.getpid())
        assert me is not None
        write_atomically(self._layout.supervisor, msgspec.json.encode(me))
        parent_handle = open_pidfd(parent) if parent is not None else None
        if self._drills is not None:
            self._drills.start()
        try:
            for managed in self._managed:
                if self._stopping:
                    break
                if not self._adopt(managed):
                    self._start(managed)
            while not self._stopping:
                if parent is not None and parent_handle is None:
                    self._say("the parent command has exited: stopping")
                    break
                self._wait(wake_read, parent_handle)
                self._notice_exits()
                self._restart_due()
                if self._drills is not None:
                    self._drills.tick()
                if parent is not None and not is_alive(parent):
                    parent_handle = None
        finally:
            if self._drills is not None:
                self._drills.stop()
            stop_programs(self._layout, self._say, popens={k.program.name: k.popen for k in self._managed if k.popen})
            self._layout.supervisor.unlink(missing_ok=True)
            signal.set_wakeup_fd(-1)

    def _asked_to_stop(self, *_: object) -> None:
        self._stopping = True

    def _take_lock(self) -> None:
        handle = os.open(self._layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise CommandError(
                f"platform {self._layout.root}: already running", next_step="holdfast status", code=ExitCode.CONFLICT
            ) from None
        self._lock_handle = handle

    def _adopt(self, managed: ManagedProcess) -> bool:
        """Adopts a process of an earlier supervisor if its command line is unchanged."""
        try:
            record = msgspec.json.decode(self._layout.record(managed.program.name).read_bytes(), type=ProcessRecord)
        except (OSError, msgspec.MsgspecError):
            return False
        if record.identity is None:
            return False
        handle = open_pidfd(record.identity)
        if handle is None:
            return False
        if record.program.argv != managed.program.argv:
            os.close(handle)
            self._say(f"{managed.program.name}: replacing it, because its options have changed")
            stop_process(record.program, record.identity)
            return False
        managed.identity, managed.handle = record.identity, handle
        managed.restarts, managed.last_exit, managed.started_at = record.restarts, record.last_exit, record.started_at
        managed.started_mono_s = time.monotonic()
        self._say(f"{managed.program.name}: adopted (pid {record.identity.pid})")
        return True

    def _start(self, managed: ManagedProcess) -> None:
        program = managed.program
        path = self._layout.log(program.name)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            os.replace(path, path.with_suffix(".log.1"))
        environment = {**os.environ, **program.env, PLATFORM_ENV: str(self._layout.root)}
        with path.open("ab") as log:
            managed.popen = subprocess.Popen(
                program.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._layout.root,
                start_new_session=True,
            )
        managed.identity = identify(managed.popen.pid)
        managed.started_at, managed.started_mono_s = time.time(), time.monotonic()
        managed.restart_at_mono_s = None
        self._record(managed)
        # The identity is None if the process has already exited. The pidfd of a zombie is readable at once.
        managed.handle = os.pidfd_open(managed.popen.pid)
        self._say(f"{program.name}: started (pid {managed.popen.pid})")

    def _record(self, managed: ManagedProcess) -> None:
        record = ProcessRecord(
            program=managed.program,
            identity=managed.identity,
            restarts=managed.restarts,
            last_exit=managed.last_exit,
            started_at=managed.started_at,
        )
        write_atomically(self._layout.record(managed.program.name), msgspec.json.encode(record))

    def _wait(self, wake_read: int, parent_handle: int | None) -> None:
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        if parent_handle is not None:
            poll.register(parent_handle, select.POLLIN)
        due = [POLL_MAX_S]
        for managed in self._managed:
            if managed.handle is not None:
                poll.register(managed.handle, select.POLLIN)
            if managed.restart_at_mono_s is not None and not self._layout.held_down(managed.program.name).exists():
                due.append(managed.restart_at_mono_s - time.monotonic())
        poll.poll(max(0.0, min(due)) * 1000)
        try:
            os.read(wake_read, 4096)
        except BlockingIOError:
            return

    def _notice_exits(self) -> None:
        for managed in self._managed:
            if managed.handle is None or not _ended(managed.handle):
                continue
            os.close(managed.handle)
            managed.last_exit = _exit_text(managed.popen.wait()) if managed.popen is not None else "ended"
            ran_s = time.monotonic() - managed.started_mono_s
            managed.backoff_s = (
                RESTART_FIRST_S if ran_s > HEALTHY_AFTER_S else min(managed.backoff_s * 2, RESTART_MAX_S)
            )
            managed.handle = managed.identity = managed.popen = None
            managed.restarts += 1
            managed.restart_at_mono_s = time.monotonic() + managed.backoff_s
            self._record(managed)
            self._say(
                f"{managed.program.name}: {managed.last_exit} after {ran_s:.0f} s; "
                f"restarting in {managed.backoff_s:.1f} s "
                f"(restart {managed.restarts}; see {self._layout.log(managed.program.name)})"
            )

    def _restart_due(self) -> None:
        for managed in self._managed:
            due = managed.restart_at_mono_s is not None and managed.restart_at_mono_s <= time.monotonic()
            if due and not self._stopping and not self._layout.held_down(managed.program.name).exists():
                self._start(managed)


def _ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def stop_process(program: Program, identity: ProcessIdentity) -> str:
    """Stops one process with its stop signals, then with SIGKILL. Returns the result as text."""
    for number, patience_s in program.stop_signals:
        if not send_signal(identity, signal.Signals(number)):
            return "had already exited"
        if wait_exited(identity, patience_s):
            return "stopped"
    send_signal(identity, signal.SIGKILL)
    wait_exited(identity, 5.0)
    return "did not stop in time and was killed"


def stop_programs(
    layout: Layout, say: Callable[[str], None], *, popens: dict[str, subprocess.Popen[bytes]] | None = None
) -> None:
    """Stops all recorded processes in reverse start order, those of one rank together. Then stops unrecorded ones.

    It needs no running supervisor, only the state files and the environment variable of the processes.
    """
    records = [r for r in load_records(layout) if r.identity is not None]
    ranks = sorted({r.program.start_order for r in records}, reverse=True)
    for rank in ranks:
        group = [r for r in records if r.program.start_order == rank]
        _stop_group(group, say)
        for record in group:
            popen = (popens or {}).get(record.program.name)
            if popen is not None:
                popen.wait()
            layout.record(record.program.name).unlink(missing_ok=True)
    _stop_unrecorded(layout, say)


def _stop_group(group: Sequence[ProcessRecord], say: Callable[[str], None]) -> None:
    """Signals all processes of one rank, then waits for all of them together."""
    waiting = [r for r in group if r.identity is not None]
    longest = max((len(r.program.stop_signals) for r in waiting), default=0)
    for line_number in range(longest):
        patience_s = 0.0
        for record in waiting:
            assert record.identity is not None
            number, own_patience_s = record.program.stop_signals[min(line_number, len(record.program.stop_signals) - 1)]
            send_signal(record.identity, signal.Signals(number))
            patience_s = max(patience_s, own_patience_s)
        deadline = time.monotonic() + patience_s
        still: list[ProcessRecord] = []
        for record in waiting:
            assert record.identity is not None
            if wait_exited(record.identity, max(0.0, deadline - time.monotonic())):
                say(f"{record.program.name}: stopped")
            else:
                still.append(record)
        waiting = still
    for record in waiting:
        assert record.identity is not None
        send_signal(record.identity, signal.SIGKILL)
        wait_exited(record.identity, 5.0)
        say(f"{record.program.name}: did not stop in time and was killed")


def _stop_unrecorded(layout: Layout, say: Callable[[str], None]) -> None:
    """Stops processes without a state file that have the platform's environment variable, such as orphaned tasks.

    The supervisor and `holdfast down` do not have the variable.
    """
    own = frozenset({os.getpid(), os.getppid()})
    for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        left = list(platform_processes(layout.root, skip=own))
        if not left:
            return
        for identity, command in left:
            say(f"orphaned process: {command[:80]} (pid {identity.pid}), sent {number.name}")
            send_signal(identity, number)
        deadline = time.monotonic() + patience_s
        for identity, _ in left:
            wait_exited(identity, max(0.0, deadline - time.monotonic()))


def python_command(*arguments: str) -> tuple[str, ...]:
    """The command line of this installation's `holdfast`, independent of PATH."""
    return (sys.executable, "-m", "holdfast.cli", *arguments)


def path_with_venv(environment_path: str) -> str:
    """PATH with this installation's programs first, so that samples can run `python3`."""
    return f"{Path(sys.executable).parent}{os.pathsep}{environment_path}"
