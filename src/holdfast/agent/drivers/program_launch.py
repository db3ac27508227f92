"""Translates init tasks, sidecars and hooks of a template into settings of the launch file, and reads their states.

Pure, apart from reading the state file. The order of the programs is kept by `agent.shim_sequence`.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec

from holdfast.agent.drivers.contract import Task, TaskPrograms
from holdfast.agent.drivers.records import TERMINATION_ENV
from holdfast.model import times
from holdfast.model.probe import ExecProbe, Hook, HttpProbe, Probe, TcpProbe
from holdfast.model.task_programs import InitTask, ProgramKind, ProgramState, ProgramStatus, Sidecar
from holdfast.model.template import TerminationMessagePolicy, udp_ports

# Time of a `postStart` hook without `timeoutSeconds`. After that, it has failed.
POST_START_TIMEOUT_S = 60.0
TERMINATION_FILE = "termination-message"
_READS = 5


def program_settings(task: Task, work: Path) -> list[tuple[str, object]]:
    """The settings for what runs around the main task; none for a template without it."""
    template, found = task.template, list[tuple[str, object]]()
    for kind, programs in (("init", template.init_tasks), ("sidecar", template.sidecars)):
        found += [("program", json.dumps(_program(kind, one, task, work))) for one in programs]
    lifecycle = template.lifecycle
    if lifecycle is not None and lifecycle.post_start is not None:
        found.append(("post_start", json.dumps(_hook(lifecycle.post_start, task, POST_START_TIMEOUT_S))))
    if lifecycle is not None and lifecycle.pre_stop is not None:
        found.append(("pre_stop", json.dumps(_hook(lifecycle.pre_stop, task, 0.0))))
    if found or template.volumes:
        found.append(("grace", template.termination_grace_seconds))
    return found


def _program(kind: str, program: InitTask | Sidecar, task: Task, work: Path) -> dict[str, object]:
    probe = program.readiness if isinstance(program, Sidecar) else None
    return {
        "kind": kind,
        "name": program.name,
        "argv": [*program.command, *program.args],
        "env": {key: value for key, value in program.env.items() if not key.startswith("HOLDFAST_")},
        "cwd": str(work / program.working_dir) if program.working_dir else str(work),
        "timeout": program.timeout_seconds if isinstance(program, InitTask) else 0.0,
        "check": _check(probe, task) if probe is not None else {},
    }


def _check(probe: Probe, task: Task) -> dict[str, object]:
    return {
        **_way(probe.exec or probe.http or probe.tcp, task),
        "period": probe.period_seconds,
        "timeout": probe.timeout_seconds,
        "delay": probe.initial_delay_seconds,
        "passes": probe.success_threshold,
    }


def _hook(hook: Hook, task: Task, timeout_s: float) -> dict[str, object]:
    return {**_way(hook.exec or hook.http, task), "timeout": hook.timeout_seconds or timeout_s}


def _way(way: ExecProbe | HttpProbe | TcpProbe | None, task: Task) -> dict[str, object]:
    if way is None:
        return {}
    if isinstance(way, ExecProbe):
        return {"argv": list(way.command)}
    udp = udp_ports(task.template)
    named = [port.name for port in task.template.ports if port.name in task.ports and port.name not in udp]
    port = task.ports.get(way.port or next(iter(named), ""), 0)
    where: dict[str, object] = {"address": task.env.get("HOLDFAST_ADDRESS", "127.0.0.1"), "port": port}
    return {**where, "path": way.path, "scheme": way.scheme.upper()} if isinstance(way, HttpProbe) else where


def add_termination_file(task: Task, work: Path, settings: list[tuple[str, object]]) -> dict[str, str]:
    """Adds where the task says why it ends, and returns the variable that tells it. The file of an earlier run goes.

    A container has the file in a file system of its own, which its settings name already.
    """
    if task.template.termination_message_policy is TerminationMessagePolicy.FALLBACK_TO_LOGS_ON_ERROR:
        settings.append(("termination_output", 1))
    if any(key == "termination" for key, _ in settings):
        return {}
    path = work / TERMINATION_FILE
    settings.append(("termination", path))
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    return {TERMINATION_ENV: str(path)}


def has_programs(task: Task) -> bool:
    """Whether the shim records the states of programs for this task."""
    return bool(task.template.init_tasks or task.template.sidecars or task.template.lifecycle)


def read_programs(path: Path) -> TaskPrograms | None:
    """The states that the shim wrote; None if there are none, or they are being written."""
    for _ in range(_READS):
        try:
            rows = path.read_text(encoding="utf-8", errors="replace").rstrip().split("\n")
        except OSError:
            return None
        number, _, stage = rows[0].partition(" ")
        if len(rows) > 1 and number and rows[-1].strip() == number:
            statuses = tuple(_status(row.split("\t")) for row in rows[1:-1])
            pid = next((int(row.split("\t")[3]) for row in rows[1:-1] if row.startswith("main\t")), 0)
            return TaskPrograms(stage=stage, programs=statuses, pid=pid)
    return None


def _status(fields: list[str]) -> ProgramStatus:
    kind, name, state, _, restarts, code, killed_by, ready, started, ended, *note = fields
    made = ProgramStatus(
        name=name,
        kind=ProgramKind(kind.capitalize()),
        state=ProgramState(state.capitalize()),
        ready=ready == "1",
        restarts=int(restarts),
        exit_code=int(code) if code else None,
        signal=killed_by,
        started_at=times.micro_text(float(started)) if float(started) else "",
        message=note[0] if note else "",
    )
    return made if state != "ended" else msgspec.structs.replace(made, ended_at=times.micro_text(float(ended)))
