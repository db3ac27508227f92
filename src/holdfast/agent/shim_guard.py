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
# Rounds of killing, one minute in all. Then the guard gives up; only processes that the kernel cannot kill are left.
KILL_ROUNDS_MAX = 6000
# Attempts to read the lease file while it is being written. Then the lease counts as expired.
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


def pids_in(groups: list[str]) -> list[int]:
    """The processes in the control groups. All of them belong to the task."""
    found: dict[int, None] = {}
    for group in groups:
        try:
            with open(f"{group}/cgroup.procs", encoding="ascii") as f:
                found.update(dict.fromkeys(int(line) for line in f))
        except (OSError, ValueError):
            continue
    return list(found)


def pids_marked(mark: bytes) -> list[int]:
    """The processes whose environment carries the mark: identifies the task where there are no control groups."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as f:
                if mark in f.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            continue
    return found


def kill_all(groups: list[str], mark: bytes) -> bool:
    """Sends SIGKILL once to every process of the task. Returns False if there was none."""
    pids = [pid for pid in (*pids_in(groups), *pids_marked(mark)) if pid != os.getpid()]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    return bool(pids)


def start_guard(deadline: Deadline, *, force_s: float, groups: list[str], mark: bytes) -> tuple[int, int]:
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
        _guard(deadline, force_s, groups, mark)
    finally:
        os._exit(0)
    raise AssertionError("unreachable: the guard exits above")


def _guard(deadline: Deadline, force_s: float, groups: list[str], mark: bytes) -> None:
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
                _kill_until_gone(groups, mark)  # the shim died without dismissing the guard
                return
            timer.clear()
            end_s, _ = deadline.read()
            if boottime() >= end_s - force_s:
                _kill_until_gone(groups, mark)
                end_s = NO_DEADLINE
            timer.set(end_s - force_s)


def _kill_until_gone(groups: list[str], mark: bytes) -> None:
    """Kills until nothing is left: a concurrent fork may escape one round, but not the next."""
    for _ in range(KILL_ROUNDS_MAX):
        if not kill_all(groups, mark):
            return
        time.sleep(KILL_EVERY_S)
