"""Watchdog of exclusive and provisional tasks: the deadline of the lease, and a guard process that outlives the shim.

An exclusive task may run only while the node's lease is live (S7). The agent writes the lease end to a file at every
renewal. The shim reads it and stops the task in time; if the shim is killed or suspended, the guard does.

Time is CLOCK_BOOTTIME: wall-clock steps do not move it, and it advances during suspend. An unreadable deadline counts
as passed. Nothing here contacts the agent, which may be dead or suspended.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import time

TFD_TIMER_ABSTIME = 1
TFD_CLOEXEC = os.O_CLOEXEC
TFD_NONBLOCK = os.O_NONBLOCK
NO_DEADLINE = float("inf")
LEASE_BYTES = 64
# Pause between two rounds of killing the processes of a task.
KILL_EVERY_S = 0.01
# Rounds of killing, one minute in all. After that, only processes that the kernel cannot kill are left, and the guard
# gives up.
KILL_ROUNDS_MAX = 6000
# Attempts to read the lease file while it is being written. After that, the lease counts as expired.
LEASE_READ_ATTEMPTS = 8

libc = ctypes.CDLL(None, use_errno=True)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def encode_deadline(epoch: int, until_s: float) -> bytes:
    """Fixed length, so that it is overwritten in place even on a full disk; written twice, so that a torn read is
    detected.
    """
    copy = f"{epoch} {until_s:.6f}"
    return f"{copy} {copy}".encode().ljust(LEASE_BYTES - 1) + b"\n"


def read_lease(path: str) -> tuple[int, float]:
    """Epoch and end of the node's lease; zeros if it cannot be read."""
    for _ in range(LEASE_READ_ATTEMPTS):
        try:
            with open(path, "rb") as f:
                fields = f.read(LEASE_BYTES).split()
            if len(fields) == 4 and fields[:2] == fields[2:]:
                return int(fields[0]), float(fields[1])
        except (OSError, ValueError):
            pass
        time.sleep(0.001)
    return 0, 0.0


def read_run_until(path: str) -> float:
    """Deadline of a run, from a file of the same format; NO_DEADLINE if there is no file."""
    if not os.path.exists(path):
        return NO_DEADLINE
    _, end = read_lease(path)
    return NO_DEADLINE if not end and not os.path.exists(path) else end  # it may have been removed in between


class Deadline:
    """Deadline of the run: the lease end of its epoch or `runUntil`, whichever is earlier."""

    def __init__(self, lease: str, epoch: int, until: str) -> None:
        self.lease, self.epoch, self.until = lease, epoch, until

    def read(self) -> tuple[float, str]:
        """The time and the reason; infinity if there is no deadline."""
        end, reason = NO_DEADLINE, ""
        if self.lease:
            epoch, end = read_lease(self.lease)
            reason = "LeaseExpired"
            if self.epoch and epoch != self.epoch:
                end = 0.0
        until = read_run_until(self.until)
        return (until, reason or "ProvisionalExpired") if until < end else (end, reason)


class BoottimeTimer:
    """A file descriptor that becomes readable at a CLOCK_BOOTTIME time, or right after a suspend that passed it."""

    def __init__(self) -> None:
        self.fd = libc.timerfd_create(time.CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_s: float) -> None:
        whole = 0 if at_s == NO_DEADLINE else max(1, int(at_s * 1e9))  # zero would disarm the timer
        spec = struct.pack("qqqq", 0, 0, whole // 10**9, whole % 10**9)
        libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, spec, None)

    def clear(self) -> None:
        try:  # noqa: SIM105 - the shim imports as little as it can
            os.read(self.fd, 8)
        except BlockingIOError:
            pass


class TaskProcesses:
    """How the processes of one task are told from all others.

    A control group and a uid of the task's own are certain: a task can leave neither. The mark in the environment is
    not, because a process may clear its environment.
    """

    def __init__(self, groups: list[str], uid: int, mark: bytes) -> None:
        self.groups, self.uid, self.mark = groups, uid, mark

    @property
    def is_certain(self) -> bool:
        return bool(self.groups) or self.uid > 0

    def find(self) -> list[int]:
        """The running processes of the task, without the caller. Zombies hold nothing and are left out."""
        found: dict[int, None] = {}
        for group in self.groups:
            try:
                with open(f"{group}/cgroup.procs", encoding="ascii") as f:
                    found.update(dict.fromkeys(int(line) for line in f))
            except (OSError, ValueError):
                continue
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) not in found and self._is_member(entry):
                found[int(entry)] = None
        return [pid for pid in found if pid != os.getpid() and not is_zombie(pid)]

    def _is_member(self, entry: str) -> bool:
        try:
            if self.uid:
                return str(self.uid).encode() in read_uids(entry)
            with open(f"/proc/{entry}/environ", "rb") as f:
                return self.mark in f.read().split(b"\0")
        except OSError:
            return False

    def kill(self) -> int:
        """Sends SIGKILL once to every process of the task. Returns how many there were."""
        if self.uid:
            kill_user(self.uid)
        pids = self.find()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        return len(pids)


def has_processes(group: str) -> bool:
    try:
        with open(f"{group}/cgroup.procs", "rb") as f:
            return bool(f.read(1))
    except OSError:
        return False


def read_uids(entry: str) -> list[bytes]:
    """Real, effective, saved and file system uid of a process."""
    with open(f"/proc/{entry}/status", "rb") as f:
        for line in f:
            if line.startswith(b"Uid:"):
                return line.split()[1:]
    return []


def is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def kill_user(uid: int) -> bool:
    """Kills every process of a task's own uid in one system call, which a concurrent fork cannot escape. Returns False
    if there was none. The call is made by a child that has become this user: root would kill every process there is.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            if uid > 0 and os.getresuid() == (uid, uid, uid):
                os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return status != 0


def start_guard(deadline: Deadline, *, force_s: float, processes: TaskProcesses) -> tuple[int, int]:
    """Forks the guard. Returns its pid and a descriptor that stays open while the shim lives; `d` on it dismisses
    the guard.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read)
        return pid, write
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        libc.prctl(36, 0, 0, 0, 0)
        os.dup2(read, 0)
        os.closerange(3, 4096)
        _guard(deadline, force_s, processes)
    finally:
        os._exit(0)
    raise AssertionError("unreachable: the guard exits above")


def _guard(deadline: Deadline, force_s: float, processes: TaskProcesses) -> None:
    timer = BoottimeTimer()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(timer.fd, select.POLLIN)
    end_s, _ = deadline.read()
    timer.set(end_s - force_s)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                if os.read(0, 1) == b"d":
                    return
                _kill_until_gone(processes)  # the shim died without dismissing the guard
                return
            timer.clear()
            end_s, _ = deadline.read()
            if boottime() >= end_s - force_s:
                _kill_until_gone(processes)
                end_s = NO_DEADLINE
            timer.set(end_s - force_s)


def _kill_until_gone(processes: TaskProcesses) -> None:
    """Kills until nothing is left: a concurrent fork may escape one round, but not the next."""
    for _ in range(KILL_ROUNDS_MAX):
        if not processes.kill():
            return
        time.sleep(KILL_EVERY_S)
