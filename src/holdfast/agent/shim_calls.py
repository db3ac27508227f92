"""Calls of the agent that need the rights of a shim: commands beside a task, and the end of a task whose shim was
killed. They run in processes of their own, because the agent has threads and must not fork.

`commands` serves one agent as long as that agent lives, on the socket that is its standard input. Each command is a
fork with the limits, the view, the user and the environment of its task, so it costs no interpreter. Messages are
NUL-separated: `run NUMBER TASK_DIR RUN COMMAND…` with a descriptor for the output, `kill NUMBER`, and back
`ended NUMBER CODE`. `open NUMBER TASK_DIR RUN tty|pipes COMMAND…` starts a command of an exec session with three
descriptors, or with one terminal. When a command has ended or is killed, nothing of its session is left.
`sweep TASK_DIR RUN` kills what is left of a run. It exits with 0 if nothing of it runs any more and prints how many
processes it killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from holdfast.agent.shim import read_record, start_ticks
from holdfast.agent.shim_confine import execute
from holdfast.agent.shim_guard import KILL_EVERY_S
from holdfast.agent.shim_launch import Launch, NotConfined, confine, describe_failure
from holdfast.agent.shim_programs import RESET_SIGNALS

# Rounds of killing in one call, two seconds in all. The agent calls again.
SWEEP_ROUNDS = 200
# Rounds of killing the processes of an exec session. A process that forks faster ends with its task.
KILL_SESSION_ROUNDS = 50
COMMAND_FAILED = 127
MESSAGE_BYTES_MAX = 128 * 1024


def main(arguments: list[str]) -> int:
    if arguments[0] == "commands":
        return CommandServer().serve()
    _, task_dir, run = arguments
    return sweep(Launch(f"{task_dir}/run-{run}/launch"))


class CommandServer:
    def __init__(self) -> None:
        import socket

        self._socket = socket.socket(fileno=os.dup(0))
        os.set_inheritable(self._socket.fileno(), False)
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        self._recv_fds = socket.recv_fds
        self._numbers: dict[int, bytes] = {}
        """Process of a running command → its number."""
        self._interactive: set[int] = set()
        """Commands of exec sessions. A shell in one puts its jobs into process groups of their own."""

    def serve(self) -> int:
        """Runs until the agent is gone. Then all commands are killed: nobody reads their output."""
        import select

        wake_r, wake_w = os.pipe()
        os.set_blocking(wake_r, False)
        os.set_blocking(wake_w, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        poll.register(wake_r, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake_r:
                    os.read(wake_r, 4096)
                    self._reap()
                elif not self._handle():
                    for pid in self._numbers:
                        self._kill(pid)
                    return 0

    def _handle(self) -> bool:
        data, descriptors, _, _ = self._recv_fds(self._socket, MESSAGE_BYTES_MAX, 3)
        if not data:
            return False
        verb, number, *rest = data.split(b"\0")
        if verb == b"kill":
            for pid in [pid for pid, known in self._numbers.items() if known == number]:
                self._kill(pid)
            return True
        terminal, command = (rest[2] == b"tty", rest[3:]) if verb == b"open" else (False, rest[2:])
        pid = os.fork()
        if pid == 0:
            become_command(descriptors, os.fsdecode(rest[0]), os.fsdecode(rest[1]), command, terminal=terminal)
        self._numbers[pid] = number
        if verb == b"open":
            self._interactive.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _kill(self, pid: int) -> None:
        kill_session(pid)
        if pid in self._interactive:
            kill_descendants(pid)

    def _reap(self) -> None:
        """A command is reaped after its session was killed: until then its pid denotes that session."""
        while self._numbers:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            self._kill(ended.si_pid)
            self._interactive.discard(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            number = self._numbers.pop(ended.si_pid, b"")
            try:
                self._socket.send(b"\0".join((b"ended", number, str(os.waitstatus_to_exitcode(status)).encode())))
            except OSError:
                return  # the agent is gone


def kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        return


def kill_descendants(pid: int) -> None:
    """Kills every process of the session of `pid` and every descendant, in rounds: one may fork while others die.

    A process that left both, as a daemon does, belongs to the task and ends with it.
    """
    for _ in range(KILL_SESSION_ROUNDS):
        parents = {}
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/stat", "rb") as f:
                    fields = f.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] == b"Z":
                continue
            parents[int(entry)] = int(fields[1])
            if int(fields[3]) == pid:
                found.append(int(entry))
        found += [child for child in parents if child not in found and _descends_from(child, pid, parents)]
        if not found:
            return
        for member in found:
            try:
                os.kill(member, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(KILL_EVERY_S)


def _descends_from(child: int, ancestor: int, parents: dict[int, int]) -> bool:
    for _ in range(len(parents)):
        child = parents.get(child, 0)
        if child == ancestor:
            return True
        if child <= 1:
            return False
    return False


def become_command(
    descriptors: list[int], task_dir: str, run: str, command: list[bytes], *, terminal: bool = False
) -> None:
    """Never returns. What prevents the command is written to its output. One descriptor is the output, or a terminal;
    three are the standard ones.
    """
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        launch = Launch(f"{task_dir}/run-{run}/launch")
        if terminal:
            take_terminal(descriptors[0], launch)
        for place, descriptor in zip((0, 1, 2), descriptors * 3 if terminal else descriptors, strict=False):
            os.dup2(descriptor, place if terminal or len(descriptors) == 3 else 1)
        if len(descriptors) == 1 and not terminal:
            os.dup2(descriptors[0], 2)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        os.chdir(task_dir)
        run_beside(launch, f"run-{run}", command)
    except NotConfined as failure:
        os.write(1, str(failure).partition(" ")[2].encode(errors="replace"))
    except Exception as error:
        os.write(1, describe_failure(f"execute {os.fsdecode(command[0])}", error).partition(" ")[2].encode())
    finally:
        os._exit(COMMAND_FAILED)


def take_terminal(terminal: int, launch: Launch) -> None:
    """Makes the terminal the controlling one of this session, and gives it to the user of the task."""
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    if launch.confinement.uid:
        os.fchown(terminal, launch.confinement.uid, launch.confinement.gid)
    launch.env.setdefault(b"TERM", b"xterm")


def run_beside(launch: Launch, run_dir: str, command: list[bytes]) -> None:
    """Returns only by an exception. The task is identified by pid and start time, and held by a pidfd meanwhile."""
    started = read_record(f"{run_dir}/started")
    if started is None:
        raise ValueError("the task is not running")
    task = os.pidfd_open(int(started["pid"]))
    if start_ticks(int(started["pid"])) != int(started["ticks"]):
        raise ValueError("the task has ended")
    confine(launch, view_of=task)
    execute(command, launch.env)


def sweep(launch: Launch) -> int:
    killed: dict[int, None] = {}
    processes = launch.task_processes
    for _ in range(SWEEP_ROUNDS):
        killed.update(dict.fromkeys(processes.find()))
        if not processes.kill():
            break
        time.sleep(KILL_EVERY_S)
    sys.stdout.write(f"{len(killed)}\n")
    return 1 if processes.find() else 0
