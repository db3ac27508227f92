"""Safe identification of local processes. A pid alone is not safe, because the kernel reuses pids.

An identity is the pid and the start time in clock ticks since boot. Signals are sent through a pidfd that was checked
against the identity, so that no other process is ever signalled.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

# Time for the supervisor to stop every process of the platform. After that, `holdfast down` kills it.
SUPERVISOR_STOP_TIMEOUT_S = 90.0

PLATFORM_ENV = "HOLDFAST_PLATFORM"
"""Environment variable of all cells and agents of a platform; its value is the platform's directory."""

TASK_ENV = "HOLDFAST_TASK"
"""Environment variable that agents set for their tasks."""

SHIM_SUFFIX = b"/holdfast/agent/shim.py"

TASK_PARTS = ("tasks", "oci/tasks")
"""Folders below an agent's own with a folder per task: of programs, and of containers."""


class ProcessIdentity(msgspec.Struct, frozen=True, rename="camel"):
    pid: int
    start_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a live process; None if it has exited or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name in parentheses may contain any character, so fields are counted after the last parenthesis.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return ProcessIdentity(pid=pid, start_ticks=int(fields[19]))


def is_alive(identity: ProcessIdentity) -> bool:
    return identify(identity.pid) == identity


def open_pidfd(identity: ProcessIdentity) -> int | None:
    """A pidfd of this process, or None if it has exited. The caller closes it."""
    try:
        handle = os.pidfd_open(identity.pid)
    except OSError:
        return None
    if is_alive(identity):
        return handle
    os.close(handle)
    return None


def send_signal(identity: ProcessIdentity, what: signal.Signals) -> bool:
    """Signals this process. Returns whether it existed."""
    handle = open_pidfd(identity)
    if handle is None:
        return False
    try:
        signal.pidfd_send_signal(handle, what)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def wait_exited(identity: ProcessIdentity, timeout_s: float) -> bool:
    """Waits for the process to exit. Returns False on timeout."""
    handle = open_pidfd(identity)
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


def task_folders(agent: Path) -> list[Path]:
    """The folder of each task of the agent with this folder."""
    return [path for part in TASK_PARTS for path in (agent / part).glob("*")]


def running_platforms() -> list[Path]:
    """Directories of the platforms whose supervisors run on this machine."""
    found = set()
    for entry in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0") if entry.isdigit() else []
        except OSError:
            continue  # the process has exited, or belongs to another user
        if words[1:5] == [b"-m", b"holdfast.cli", b"supervise", b"--state"] and len(words) > 5:
            found.add(Path(os.fsdecode(words[5])))
    return sorted(found)


def platform_processes(folder: Path, *, skip: frozenset[int] = frozenset()) -> Iterator[tuple[ProcessIdentity, str]]:
    """Live processes of a platform with their command lines: cells, agents, shims and tasks.

    They are recognised by an environment variable or by a shim's command line. A shell or editor that runs in the
    platform's directory does not match.
    """
    mark = os.fsencode(f"{PLATFORM_ENV}={folder}")
    tasks = os.fsencode(folder / "agents") + b"/"
    agents = folder.glob("agents/*")
    task_marks = {os.fsencode(f"{TASK_ENV}={path.name}") for agent in agents for path in task_folders(agent)}
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
            continue  # the process has exited, or belongs to another user
        shim = any(argument.endswith(SHIM_SUFFIX) for argument in command) and any(
            argument.startswith(tasks) for argument in command
        )
        if shim or mark in environment or not task_marks.isdisjoint(environment):
            yield identity, b" ".join(command).decode(errors="replace").strip()
