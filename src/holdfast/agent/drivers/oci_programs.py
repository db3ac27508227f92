"""Init tasks and sidecars of the OCI driver: each in a container of its own, from the bundle of the main task.

The containers share the root file system, the user and the volumes of the main task. The shim runs and orders them like
plain programs (`agent.shim_sequence`), so a container that is left from an earlier start is deleted first.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.agent.drivers.contract import Task
from holdfast.model.probe import ExecProbe, Hook, Probe
from holdfast.model.task_programs import InitTask, Lifecycle, Sidecar
from holdfast.model.template import Template

_FOLDER = "programs"
ProgramT = TypeVar("ProgramT", InitTask, Sidecar)
CheckT = TypeVar("CheckT", Probe, Hook)


def program_containers(bundle: Path, container: str) -> list[str]:
    """Ids of the containers around the main task."""
    folder = bundle / _FOLDER
    return [f"{container}-{path.name}" for path in sorted(folder.iterdir())] if folder.is_dir() else []


class ProgramContainers:
    """`bundle` is that of the main task, `base` the command of the runtime."""

    def __init__(self, base: tuple[str, ...], bundle: Path, container: str) -> None:
        self._base, self._bundle, self._container = base, bundle, container

    def contain(self, template: Template, task: Task) -> Template:
        """The template whose programs and hooks are commands of the runtime."""
        sidecars = tuple(self._contained(one, task) for one in template.sidecars)
        probed = tuple(
            msgspec.structs.replace(one, readiness=self._inside(one.readiness, f"{self._container}-{one.name}"))
            if one.readiness is not None
            else one
            for one in sidecars
        )
        hooks = template.lifecycle or Lifecycle()
        return msgspec.structs.replace(
            template,
            init_tasks=tuple(self._contained(one, task) for one in template.init_tasks),
            sidecars=probed,
            lifecycle=template.lifecycle
            and Lifecycle(
                post_start=hooks.post_start and self._inside(hooks.post_start, self._container),
                pre_stop=hooks.pre_stop and self._inside(hooks.pre_stop, self._container),
            ),
        )

    def _contained(self, program: ProgramT, task: Task) -> ProgramT:
        folder, container = self._bundle / _FOLDER / program.name, f"{self._container}-{program.name}"
        config: dict[str, Any] = json.loads((self._bundle / "config.json").read_text())
        process: dict[str, Any] = config["process"]
        process["args"] = [*program.command, *program.args]
        own: list[str] = [f"{key}={value}" for key, value in program.env.items() if not key.startswith("HOLDFAST_")]
        process["env"] = [*process.get("env", []), *own]
        if program.working_dir:
            process["cwd"] = program.working_dir
        config["linux"]["cgroupsPath"] = f"holdfast-oci/{container}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        delete = shlex.join((*self._base, "delete", "--force", container))
        run = shlex.join((*self._base, "run", "--bundle", str(folder), container))
        command = ("/bin/sh", "-c", f"{delete} >/dev/null 2>&1; exec {run}")
        made = msgspec.structs.replace(program, command=command, args=(), env={}, working_dir="")
        assert isinstance(made, type(program))
        return made

    def _inside(self, check: CheckT, container: str) -> CheckT:
        if check.exec is None:
            return check
        inside = (*self._base, "exec", container)
        made = msgspec.structs.replace(check, exec=_prefixed(check.exec, inside))
        assert isinstance(made, type(check))
        return made


def _prefixed(probe: ExecProbe | None, words: tuple[str, ...]) -> ExecProbe | None:
    return probe and ExecProbe((*words, *probe.command))
