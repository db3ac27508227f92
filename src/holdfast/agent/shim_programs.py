"""The programs of one run: init tasks, sidecars and the main task. Each is a child of the shim in a session of its own.

- A program is confined like the task: same control groups, view, user and volumes.
- When a program has ended, nothing of its process group is left.
- The file `programs` of the run tells the agent their states. It has a fixed length and is overwritten in place, so
  that a full disk does not hide that the main task started. Two equal sequence numbers show that it is whole.
"""

from __future__ import annotations

import errno
import os
import signal

from holdfast.agent.shim_confine import execute
from holdfast.agent.shim_guard import libc
from holdfast.agent.shim_launch import Launch, NotConfined, ProgramLaunch, confine, describe_failure
from holdfast.agent.shim_output import LogWriter

PR_SET_PDEATHSIG = 1
RESET_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1)
# Size of the file `programs`. 17 programs with the longest names need less.
PROGRAMS_BYTES = 8192

# Errors that any template would meet on this node.
NODE_ERRNOS = (
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
)

WAITING, RUNNING, ENDED = "waiting", "running", "ended"


class RunProgram:
    """State of one program of the run. `status` is the wait status of its last end; None while it has not ended."""

    def __init__(self, launch: ProgramLaunch) -> None:
        self.launch = launch
        self.pid = self.last_pid = 0
        """`pid` is 0 while it does not run."""
        self.status: int | None = None
        self.restarts = 0
        self.failures = 0
        self.started_at = 0.0
        self.started_boot = 0.0
        self.ended_at = 0.0
        self.next_at: float | None = None
        """When it starts again after a failure."""
        self.ready = False
        self.note = ""
        self.output: LogWriter | None = None

    @property
    def name(self) -> str:
        return self.launch.name

    @property
    def runs(self) -> bool:
        return self.pid > 0

    @property
    def state(self) -> str:
        return RUNNING if self.runs else ENDED if self.status is not None else WAITING

    def signal(self, number: int) -> None:
        """Signals the whole process group. The pid is not reaped while it is set, so it denotes this program."""
        if not self.pid:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            os.kill(self.pid, number)

    def describe_end(self) -> str:
        code, killed_by = exit_of(self.status or 0)
        return f"was killed by {killed_by}" if killed_by else f"exited with code {code}"


def exit_of(status: int) -> tuple[int, str]:
    """Exit code and signal name of a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, signal.Signals(number).name if number in set(signal.Signals) else f"SIG{number}"
    return os.WEXITSTATUS(status), ""


def start_failure_reason(number: int, message: str) -> str:
    """Whether the node failed or the template: a tenant must not make a node look broken by its templates."""
    if message.startswith("cannot mount"):
        return "VolumeUnavailable"
    if not message.startswith(("cannot execute", "cannot enter the working directory")) or number in NODE_ERRNOS:
        return "StartError"
    absent = message.startswith("cannot execute") and number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
    return "CommandNotFound" if absent else "TemplateUnusable"


def fork_program(launch: Launch, program: ProgramLaunch) -> tuple[int, int, int, int, int]:
    """Forks a program that waits. Returns its pid, the gate to write `g` to, the pipe of its failure, and its streams.

    Nothing executes before the gate is opened, so the caller can record the start first.
    """
    gate_r, gate_w = os.pipe()
    failed_r, failed_w = os.pipe()
    (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate_w)
        child_main(launch, program, gate_r, (out_w, err_w), failed_w)
    for fd in (gate_r, failed_w, out_w, err_w):
        os.close(fd)
    return pid, gate_w, failed_r, out_r, err_r


def open_gate(gate: int, failed: int) -> str:
    """Lets the program execute. Returns why it could not; empty on success."""
    os.write(gate, b"g")
    os.close(gate)
    failure = os.read(failed, 4096).decode(errors="replace")  # returns when exec closes the pipe or fails
    os.close(failed)
    return failure


def child_main(launch: Launch, program: ProgramLaunch, gate: int, streams: tuple[int, int], failed: int) -> None:
    """Becomes the program. It leads its own session, so that a signal to its process group reaches all of it."""
    stage = "start"
    try:
        os.setsid()
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        if os.read(gate, 1) != b"g":
            os._exit(127)
        confine(launch, cwd=program.cwd)
        stage = "execute"
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after setuid, which would clear it
        execute(program.argv, program.env)
    except NotConfined as refusal:
        os.write(failed, str(refusal).encode(errors="replace")[:4000])
    except Exception as error:
        os.write(failed, describe_failure(stage, error).encode(errors="replace")[:4000])
    finally:
        os._exit(127)


class ProgramsFile:
    """Writes the states of the programs for the agent: one line each, between two equal sequence numbers."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._sequence = 0
        os.pwrite(self._fd, b" " * PROGRAMS_BYTES, 0)

    def write(self, stage: str, programs: list[RunProgram]) -> None:
        self._sequence += 1
        rows = [f"{self._sequence} {stage}"]
        for program in programs:
            code, killed_by = exit_of(program.status) if program.status is not None else ("", "")
            fields = (program.launch.kind, program.name, program.state, program.pid, program.restarts, code, killed_by)
            times = (int(program.ready), f"{program.started_at:.3f}", f"{program.ended_at:.3f}")
            note = " ".join(program.note.split())[:150]
            rows.append("\t".join(str(field) for field in (*fields, *times, note)))
        data = "\n".join((*rows, str(self._sequence))).encode(errors="replace")[: PROGRAMS_BYTES - 1]
        try:
            os.pwrite(self._fd, data.ljust(PROGRAMS_BYTES - 1) + b"\n", 0)
        except OSError:
            return  # the next change is written again; the agent sees a torn or an older state until then
