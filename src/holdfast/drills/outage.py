"""Kills processes of a running platform and keeps them down until they are restored.

- Only identified processes of this platform are signalled.
- A process is kept down by a file that the supervisor checks, so that `restore` works from any process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.layout import Layout, Platform, RegionPlan
from holdfast.platform.processes import TASK_ENV, ProcessIdentity, identify, send_signal, wait_exited
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


def task_processes(layout: Layout, agent: str) -> Iterator[ProcessIdentity]:
    """The processes of an agent's tasks: their shims and the tasks themselves."""
    folder = layout.agent(agent)
    inside = os.fsencode(folder) + b"/"
    tasks = {os.fsencode(f"{TASK_ENV}={path.name}") for path in folder.glob("tasks/*")}
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
        keeper = any(argument.startswith(inside) for argument in command) and own not in command
        if keeper or not tasks.isdisjoint(environment):
            yield identity
