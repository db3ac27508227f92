"""Kills or pauses processes of a running platform until they are restored.

- Only identified processes of this platform are signalled.
- A process is kept down by a file that the supervisor checks, so that `restore` works from any process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.layout import Layout, Platform, RegionPlan
from holdfast.platform.processes import TASK_ENV, ProcessIdentity, identify, send_signal, task_folders, wait_exited
from holdfast.platform.supervisor import load_records

EXIT_TIMEOUT_S = 5.0


def region_plan(platform: Platform, name: str) -> RegionPlan:
    for region in platform.regions:
        if region.name == name:
            return region
    known = ", ".join(r.name for r in platform.regions)
    raise CommandError(f"region {name}: not found (expected one of {known})", code=ExitCode.USAGE)


def process_names(region: RegionPlan, *, zone: str = "", cell: bool = True) -> list[str]:
    """Names of the processes of a region, or of one of its zones."""
    agents = [f"agent-{a.name}" for a in region.agents if not zone or a.zone == zone]
    return ([f"cell-{region.name}"] if cell and not zone else []) + agents


def hold_down(layout: Layout, names: Iterable[str]) -> None:
    """Keeps the supervisor from restarting these processes."""
    for name in names:
        mark = layout.held_down(name)
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.touch()


def allow_restart(layout: Layout, names: Iterable[str] | None = None) -> list[str]:
    """Lets the supervisor restart the named processes, or all that are held down. Returns their names."""
    folder = layout.held_down("any").parent
    targets = list(names) if names is not None else sorted(p.name for p in folder.glob("*"))
    for name in targets:
        layout.held_down(name).unlink(missing_ok=True)
    return targets


def kill_processes(layout: Layout, names: Iterable[str]) -> int:
    """Sends SIGKILL to the processes and to all tasks of killed agents. Returns the number of killed processes."""
    chosen = set(names)
    doomed: list[ProcessIdentity] = []
    for record in load_records(layout):
        if record.program.name in chosen and record.identity is not None:
            doomed.append(record.identity)
    for name in sorted(chosen):
        if name.startswith("agent-"):
            doomed += list(task_processes(layout, name.removeprefix("agent-")))
    for identity in doomed:
        send_signal(identity, signal.SIGKILL)
    for identity in doomed:
        wait_exited(identity, EXIT_TIMEOUT_S)
    return len(doomed)


def pause_processes(layout: Layout, names: Iterable[str], *, with_tasks: bool = True) -> int:
    """Sends SIGSTOP to the processes, and to the tasks of paused agents: they keep their connections and answer
    nothing. Returns the number of paused processes."""
    return _signal_all(layout, names, signal.SIGSTOP, with_tasks=with_tasks)


def resume_processes(layout: Layout, names: Iterable[str]) -> int:
    """Sends SIGCONT to the processes that `pause_processes` paused."""
    return _signal_all(layout, names, signal.SIGCONT)


def resume_all(layout: Layout) -> None:
    """Continues every process of the platform, paused or not."""
    resume_processes(layout, [record.program.name for record in load_records(layout)])


def _signal_all(layout: Layout, names: Iterable[str], what: signal.Signals, *, with_tasks: bool = True) -> int:
    chosen = set(names)
    found = [r.identity for r in load_records(layout) if r.program.name in chosen and r.identity is not None]
    for name in sorted(chosen):
        if with_tasks and name.startswith("agent-"):
            found += list(task_processes(layout, name.removeprefix("agent-")))
    return sum(send_signal(identity, what) for identity in found)


def task_processes(layout: Layout, agent: str, *, without: Container[str] = ()) -> Iterator[ProcessIdentity]:
    """The processes of an agent's tasks: their shims, the tasks themselves, and those in containers. `without` are ids
    of tasks that do not count."""
    folder = layout.agent(agent)
    inside = os.fsencode(folder) + b"/"
    known = task_folders(folder)
    omitted = tuple(os.fsencode(path) for path in known if path.name in without)
    tasks = {os.fsencode(f"{TASK_ENV}={path.name}") for path in known if path.name not in without}
    own = os.fsencode(f"{folder}")
    for entry in os.listdir("/proc"):
        identity = identify(int(entry)) if entry.isdigit() else None
        if identity is None or identity.pid == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        paths = [argument for argument in command if argument.startswith(inside)]
        keeper = own not in command and any(not path.startswith(omitted) for path in paths)
        if keeper or not tasks.isdisjoint(environment):
            yield identity
