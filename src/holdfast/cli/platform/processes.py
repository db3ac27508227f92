"""Processes of this machine, named safely: a process id alone may have been given to another process meanwhile.

An identity is (pid, start time in clock ticks since boot). Signals go through a pidfd opened and checked first, so
that nothing here can hit a stranger.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

MARK = "HOLDFAST_PLATFORM"
"""The environment variable every cell and agent of a platform carries."""


TASK_MARK = "HOLDFAST_TASK"
"""What agents put into the environment of the work they run."""

SHIM = b"/holdfast/agent/shim.py"


class Identity(msgspec.Struct, frozen=True, rename="camel"):
    pid: int
    start_ticks: int


def identify(pid: int) -> Identity | None:
    """The identity of a live process; None when it is gone, or a zombie nobody has reaped yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name is in parentheses and may hold anything, so fields are counted after the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return Identity(pid=pid, start_ticks=int(fields[19]))


def alive(identity: Identity) -> bool:
    return identify(identity.pid) == identity


def open_process(identity: Identity) -> int | None:
    """A pidfd of exactly this process, or None when it is gone. The caller closes it."""
    try:
        handle = os.pidfd_open(identity.pid)
    except OSError:
        return None
    if alive(identity):
        return handle
    os.close(handle)
    return None


def send(identity: Identity, what: signal.Signals) -> bool:
    """Signals exactly this process; whether it was there."""
    handle = open_process(identity)
    if handle is None:
        return False
    try:
        signal.pidfd_send_signal(handle, what)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def wait_gone(identity: Identity, timeout_s: float) -> bool:
    """Whether the process ended in time."""
    handle = open_process(identity)
    if handle is None:
        return True
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            if poll.poll(max(0, int(left_s * 1000))):
                return True
            if left_s <= 0:
                return False
    finally:
        os.close(handle)


def marked(folder: Path, *, skip: frozenset[int] = frozenset()) -> Iterator[tuple[Identity, str]]:
    """Live processes that belong to a platform, with their command lines: its own, the shims of its agents, the work.

    A mark in the environment, or a shim's own command line, tells: a person's shell or editor in the platform's folder
    is none of its processes.
    """
    mark = os.fsencode(f"{MARK}={folder}")
    tasks = os.fsencode(folder / "agents") + b"/"
    task_marks = {os.fsencode(f"{TASK_MARK}={path.name}") for path in folder.glob("agents/*/tasks/*")}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in skip:
            continue
        identity = identify(int(entry))
        if identity is None:
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or another user's
        shim = any(word.endswith(SHIM) for word in command) and any(word.startswith(tasks) for word in command)
        if shim or mark in environment or not task_marks.isdisjoint(environment):
            yield identity, b" ".join(command).decode(errors="replace").strip()
