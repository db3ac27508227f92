"""What runs around the main task of a template: init tasks before it, sidecars beside it, hooks at its ends.

All of it shares the user, the resources, the volumes and the ports of the task: a template is one claim on one node.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from holdfast.model.meta import ApiStruct, visible_default
from holdfast.model.probe import Hook, Probe, validate_hook, validate_probe
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_range,
    check_unique,
    has_control_characters,
    invalid,
    required,
    too_long,
)

# Init tasks of a template, and sidecars of a template. More are refused.
PROGRAMS_PER_REPLICA_MAX = 8
# Length of all arguments and variables of one init task or sidecar.
PROGRAM_BYTES_MAX = 128 * 1024 - 1
# Name of the main task in logs and statuses. No init task and no sidecar may have it.
MAIN_PROGRAM = "work"
_RESERVED_ENV = "HOLDFAST_"


class InitTask(ApiStruct, frozen=True):
    """A program that must succeed before the main task starts. It runs before each start of the main task."""

    name: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    working_dir: str = ""
    timeout_seconds: float = 0.0
    """`timeoutSeconds` 0: no limit."""


class Sidecar(ApiStruct, frozen=True):
    """A program that runs beside the main task. It starts before it, restarts on its own, and stops after it."""

    name: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    working_dir: str = ""
    readiness: Probe | None = None


class Lifecycle(ApiStruct, frozen=True):
    """Hooks of the main task: after it has started, and before it is asked to end."""

    post_start: Hook | None = None
    pre_stop: Hook | None = None


class ProgramKind(enum.StrEnum):
    INIT = "Init"
    SIDECAR = "Sidecar"
    MAIN = "Main"


class ProgramState(enum.StrEnum):
    WAITING = "Waiting"
    RUNNING = "Running"
    ENDED = "Ended"


class ProgramStatus(ApiStruct, frozen=True):
    """State of the main task, an init task or a sidecar, as the agent last read it."""

    name: str
    kind: ProgramKind = visible_default(ProgramKind.MAIN)
    state: ProgramState = visible_default(ProgramState.WAITING)
    ready: bool = False
    restarts: int = 0
    exit_code: int | None = None
    signal: str = ""
    started_at: str = ""
    ended_at: str = ""
    message: str = ""


def validate_programs(
    field: str,
    init: Sequence[InitTask],
    sidecars: Sequence[Sidecar],
    lifecycle: Lifecycle | None,
    tcp_ports: Sequence[str],
) -> Causes:
    lists: tuple[tuple[str, Sequence[InitTask | Sidecar]], ...] = (("initTasks", init), ("sidecars", sidecars))
    for name, programs in lists:
        if len(programs) > PROGRAMS_PER_REPLICA_MAX:
            yield invalid(f"{field}.{name}", len(programs), f"must have at most {PROGRAMS_PER_REPLICA_MAX} items")
        for index, program in enumerate(programs):
            yield from _validate_program(f"{field}.{name}[{index}]", program)
    names = [*(task.name for task in init), *(sidecar.name for sidecar in sidecars)]
    yield from check_unique(f"{field}.initTasks and {field}.sidecars", names)
    for index, task in enumerate(init):
        yield from check_range(f"{field}.initTasks[{index}].timeoutSeconds", task.timeout_seconds, 0, 86400)
    for index, sidecar in enumerate(sidecars):
        if sidecar.readiness is not None:
            yield from validate_probe(f"{field}.sidecars[{index}].readiness", sidecar.readiness, tcp_ports)
    lifecycle = lifecycle or Lifecycle()
    if lifecycle.post_start is not None:
        yield from validate_hook(f"{field}.lifecycle.postStart", lifecycle.post_start, tcp_ports)
    if lifecycle.pre_stop is not None:
        yield from validate_hook(f"{field}.lifecycle.preStop", lifecycle.pre_stop, tcp_ports)


def _validate_program(field: str, program: InitTask | Sidecar) -> Causes:
    yield from check_dns_label(f"{field}.name", program.name)
    if program.name == MAIN_PROGRAM:
        yield invalid(f"{field}.name", program.name, "is the name of the main task")
    if not program.command:
        yield required(f"{field}.command", 'the program to run, as a list: ["sh", "-c", "…"]')
    texts = (*program.command, *program.args, *(f"{key}={value}" for key, value in program.env.items()))
    if any("\0" in text for text in texts):
        yield invalid(f"{field}.command", "\\0", "must not contain NUL bytes")
    if sum(len(text.encode(errors="replace")) for text in texts) > PROGRAM_BYTES_MAX:
        yield too_long(f"{field}.command", PROGRAM_BYTES_MAX)
    for name in program.env:
        if not name or "=" in name or name.startswith(_RESERVED_ENV):
            yield invalid(f"{field}.env", name, f"must not be empty, contain '=' or start with {_RESERVED_ENV}")
    if has_control_characters(program.working_dir) or ".." in program.working_dir.split("/"):
        yield invalid(f"{field}.workingDir", program.working_dir, "must not contain control characters or '..'")
    if len(program.working_dir.encode(errors="replace")) > 4095:
        yield too_long(f"{field}.workingDir", 4095)
