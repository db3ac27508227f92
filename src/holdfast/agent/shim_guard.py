"""What ends work that may not run on: the deadline of its lease, and a guard that outlives its shim.

Exclusive work may run only while the node's lease does (S7). The agent writes the lease's end to a file at every
renewal; the shim and, should the shim be killed or stopped, the guard read it and end the work before that moment.
Always: time is CLOCK_BOOTTIME, which no step of the wall clock moves and which runs through suspend; a deadline that
cannot be read has passed. Never asks the agent anything: it may be dead or stopped.
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
NEVER = float("inf")
LEASE_BYTES = 64
KILL_EVERY_S = 0.01
KILL_ROUNDS = 6000
READ_AGAIN = 8

libc = ctypes.CDLL(None, use_errno=True)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def lease_text(epoch: int, until_s: float) -> bytes:
    """Fixed in length, so that it is written in place even on a full disk; twice, so that a torn read is seen."""
    word = f"{epoch} {until_s:.6f}"
    return f"{word} {word}".encode().ljust(LEASE_BYTES - 1) + b"\n"


def read_lease(path: str) -> tuple[int, float]:
    """The epoch and the end of the node's lease; zeros when it cannot be read."""
    for _ in range(READ_AGAIN):
        try:
            with open(path, "rb") as f:
                words = f.read(LEASE_BYTES).split()
            if len(words) == 4 and words[:2] == words[2:]:
                return int(words[0]), float(words[1])
        except (OSError, ValueError):
            pass
        time.sleep(0.001)
    return 0, 0.0


def read_until(path: str) -> float:
    """When a run must be over, from a file of the same form; NEVER where there is none."""
    if not os.path.exists(path):
        return NEVER
    _, end = read_lease(path)
    return NEVER if not end and not os.path.exists(path) else end  # it may be taken away meanwhile


class Deadline:
    """When the run must be over: the end of the lease of its epoch, and `runUntil`, whichever comes first."""

    def __init__(self, lease: str, epoch: int, until: str) -> None:
        self.lease, self.epoch, self.until = lease, epoch, until

    def read(self) -> tuple[float, str]:
        """The moment, and the reason to give; infinity when there is none."""
        end, reason = NEVER, ""
        if self.lease:
            epoch, end = read_lease(self.lease)
            reason = "LeaseLapsed"
            if self.epoch and epoch != self.epoch:
                end = 0.0
        until = read_until(self.until)
        return (until, reason or "ProvisionalEnded") if until < end else (end, reason)


class Timer:
    """A descriptor that becomes readable at a moment of CLOCK_BOOTTIME, at once after a suspend that passed it."""

    def __init__(self) -> None:
        self.fd = libc.timerfd_create(time.CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_s: float) -> None:
        whole = 0 if at_s == NEVER else max(1, int(at_s * 1e9))  # zero would disarm it
        spec = struct.pack("qqqq", 0, 0, whole // 10**9, whole % 10**9)
        libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, spec, None)

    def clear(self) -> None:
        try:  # noqa: SIM105 - the shim imports as little as it can
            os.read(self.fd, 8)
        except BlockingIOError:
            pass


def pids_in(groups: list[str]) -> list[int]:
    """The processes in control groups; what runs in any of them is the work's."""
    found: dict[int, None] = {}
    for group in groups:
        try:
            with open(f"{group}/cgroup.procs", encoding="ascii") as f:
                found.update(dict.fromkeys(int(line) for line in f))
        except (OSError, ValueError):
            continue
    return list(found)


def pids_marked(mark: bytes) -> list[int]:
    """The processes whose environment carries the mark: how the work is known where there are no control groups."""
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
    """One round of SIGKILL to everything of the work; False when nothing was found."""
    pids = [pid for pid in (*pids_in(groups), *pids_marked(mark)) if pid != os.getpid()]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    return bool(pids)


def start_guard(deadline: Deadline, *, force_s: float, groups: list[str], mark: bytes) -> tuple[int, int]:
    """Forks the guard: its pid, and the descriptor that must stay open while the shim lives; `d` on it means done."""
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
    raise AssertionError("the guard has ended")


def _guard(deadline: Deadline, force_s: float, groups: list[str], mark: bytes) -> None:
    timer = Timer()
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
                _end(groups, mark)  # the shim is gone, and did not say goodbye
                return
            timer.clear()
            end_s, _ = deadline.read()
            if boottime() >= end_s - force_s:
                _end(groups, mark)
                end_s = NEVER
            timer.set(end_s - force_s)


def _end(groups: list[str], mark: bytes) -> None:
    """Until nothing is left: a fork in progress may slip through one round, but not through the next."""
    for _ in range(KILL_ROUNDS):
        if not kill_all(groups, mark):
            return
        time.sleep(KILL_EVERY_S)
