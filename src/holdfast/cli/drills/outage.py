"""Taking parts of a running platform away, and giving them back: processes really die, and stay dead while it lasts.

What always holds: only processes of this platform are touched, each identified first; and `restore` is always possible,
by anyone, as all that keeps a process down is a file the supervisor looks at.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.cli.exits import Stop
from holdfast.cli.platform.layout import Layout, Platform, RegionPlan
from holdfast.cli.platform.processes import TASK_MARK, Identity, identify, send, wait_gone
from holdfast.cli.platform.supervisor import load_records

GONE_WITHIN_S = 5.0


def region_of(platform: Platform, name: str) -> RegionPlan:
    for region in platform.regions:
        if region.name == name:
            return region
    known = ", ".join(r.name for r in platform.regions)
    raise Stop(f"there is no region {name!r} on this platform", next_step=f"choose one of {known}")


def names_of(region: RegionPlan, *, zone: str = "", cell: bool = True) -> list[str]:
    """The processes of a region, or of one of its zones."""
    agents = [f"agent-{a.name}" for a in region.agents if not zone or a.zone == zone]
    return ([f"cell-{region.name}"] if cell and not zone else []) + agents


def hold_down(layout: Layout, names: Iterable[str]) -> None:
    """From now on the supervisor does not start these again."""
    for name in names:
        mark = layout.held_down(name)
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.touch()


def restore(layout: Layout, names: Iterable[str] | None = None) -> list[str]:
    """Lets the supervisor start them again: those named, or everything that is held down."""
    folder = layout.held_down("any").parent
    wanted = list(names) if names is not None else sorted(p.name for p in folder.glob("*"))
    for name in wanted:
        layout.held_down(name).unlink(missing_ok=True)
    return wanted


def kill(layout: Layout, names: Iterable[str]) -> int:
    """SIGKILL to the processes and to all the work their agents run; answers how many there were."""
    chosen = set(names)
    doomed: list[Identity] = []
    for record in load_records(layout):
        if record.program.name in chosen and record.identity is not None:
            doomed.append(record.identity)
    for name in sorted(chosen):
        if name.startswith("agent-"):
            doomed += list(work_of(layout, name.removeprefix("agent-")))
    for identity in doomed:
        send(identity, signal.SIGKILL)
    for identity in doomed:
        wait_gone(identity, GONE_WITHIN_S)
    return len(doomed)


def work_of(layout: Layout, agent: str) -> Iterator[Identity]:
    """What an agent runs: keepers of its tasks, and the tasks themselves."""
    folder = layout.agent(agent)
    inside = os.fsencode(folder) + b"/"
    tasks = {os.fsencode(f"{TASK_MARK}={path.name}") for path in folder.glob("tasks/*")}
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
        keeper = any(word.startswith(inside) for word in command) and own not in command
        if keeper or not tasks.isdisjoint(environment):
            yield identity
