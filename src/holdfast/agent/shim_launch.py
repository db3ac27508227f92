"""How one run is launched: the `launch` file, and how a process becomes the task or a command beside it."""

from __future__ import annotations

import os
import resource

from holdfast.agent.shim_confine import Confinement, VolumeNotMounted, become_user, enter_view, join_view
from holdfast.agent.shim_guard import TaskProcesses


class ProgramLaunch:
    """How one program of a run is executed. `kind` is main, init, sidecar or hook."""

    def __init__(self, kind: str, name: str, argv: list[bytes], env: dict[bytes, bytes], cwd: str) -> None:
        self.kind, self.name, self.argv, self.env, self.cwd = kind, name, argv, env, cwd
        self.timeout_s = 0.0
        """An init task that runs longer has failed. 0: no limit."""
        self.check: dict[str, object] = {}
        """Readiness check of a sidecar; empty: it is ready as soon as it runs."""


class Launch:
    """The `launch` file: NUL-separated strings, because neither commands nor environments can contain NUL.

    First `key=value` settings up to an empty string, then the length of the command, the command, and the environment.
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as f:
            parts = f.read().split(b"\0")
        end = parts.index(b"")
        self.groups: list[str] = []
        visible: list[str] = []
        settings: dict[str, str] = {}
        programs: list[str] = []
        volumes: list[str] = []
        self.forwards: list[str] = []
        hooks: dict[str, str] = {}
        for part in parts[:end]:
            key, _, value = os.fsdecode(part).partition("=")
            if key == "group":
                self.groups.append(value)
            elif key == "visible":
                visible.append(value)
            elif key == "program":
                programs.append(value)
            elif key == "volume":
                volumes.append(value)
            elif key == "forward":
                self.forwards.append(value)
            elif key in ("pre_stop", "post_start"):
                hooks[key] = value
            settings[key] = value
        self.network = settings.get("network", "")
        """The program that connects the run's own network; empty: the run uses the network of the node."""
        self.cwd = settings["cwd"]
        self.work = settings.get("work", self.cwd)
        self.volumes = [_decode(text) for text in volumes]
        self.confinement = Confinement(settings, visible)
        own_uid = self.confinement.uid if self.confinement.own_uid else 0
        self.task_processes = TaskProcesses(self.groups, own_uid, settings["mark"].encode())
        self.log_bytes, self.log_files = int(settings["log_bytes"]), int(settings["log_files"])
        self.lease, self.epoch = settings.get("lease", ""), int(settings.get("epoch", "0"))
        self.lead_s, self.force_s = float(settings.get("lead", "0")), float(settings.get("force", "0"))
        self.checkpoint = int(settings.get("checkpoint", "0"))
        self.processes_max, self.memory_bytes = int(settings.get("processes", "0")), int(settings.get("memory", "0"))
        count = int(parts[end + 1])
        self.argv = parts[end + 2 : end + 2 + count]
        pairs = (part.partition(b"=") for part in parts[end + 2 + count :])
        self.env = {key: value for key, _, value in pairs}
        if "values" in settings:
            self.env |= read_values(settings["values"])

        self.termination_file = settings.get("termination", "")
        self.termination_owner = int(settings.get("termination_uid", "-1")), int(settings.get("termination_gid", "-1"))
        """Owner of a file that the shim makes; -1 if the task makes it."""
        self.output_is_message = "termination_output" in settings
        self.grace_s = float(settings.get("grace", "0"))
        """Time for the sidecars to end after the main task has ended by itself."""
        self.main = ProgramLaunch("main", "work", self.argv, self.env, self.cwd)
        self.around = [self._program(_decode(text)) for text in programs]
        self.hooks = {key: _decode(text) for key, text in hooks.items()}

    def _program(self, given: dict[str, object]) -> ProgramLaunch:
        """A program around the main task: it has the environment of the task, and its own variables."""
        own = given["env"]
        assert isinstance(own, dict)
        env = {**self.env, **{os.fsencode(key): os.fsencode(value) for key, value in own.items()}}
        argv = given["argv"]
        assert isinstance(argv, list)
        made = ProgramLaunch(str(given["kind"]), str(given["name"]), [os.fsencode(w) for w in argv], env, self.cwd)
        made.cwd = str(given["cwd"]) or self.cwd
        made.timeout_s = float(str(given["timeout"]))
        check = given["check"]
        assert isinstance(check, dict)
        made.check = check
        return made

    def hook(self, key: str) -> tuple[dict[str, object], ProgramLaunch] | None:
        """A hook of the main task, and how its command is executed if it has one."""
        given = self.hooks.get(key)
        if given is None:
            return None
        argv = given.get("argv", [])
        assert isinstance(argv, list)
        return given, ProgramLaunch("hook", key, [os.fsencode(word) for word in argv], self.env, self.cwd)


def _decode(text: str) -> dict[str, object]:
    import json  # only few runs have programs around them or volumes, and every import costs a start milliseconds

    made = json.loads(text)
    assert isinstance(made, dict)
    return made


def read_values(path: str) -> dict[bytes, bytes]:
    """Environment from Secrets and ConfigMaps: a file in memory, because the launch file is on disk. If it is gone,
    the run is over, and only what is left of it is swept.
    """
    try:
        with open(path, "rb") as f:
            pairs = (part.partition(b"=") for part in f.read().split(b"\0") if part)
            return {key: value for key, _, value in pairs}
    except FileNotFoundError:
        return {}


class NotConfined(Exception):
    """A step of the confinement failed, so nothing was executed."""


def describe_failure(stage: str, error: Exception) -> str:
    why = getattr(error, "strerror", None) or str(error)
    return f"{getattr(error, 'errno', 0) or 0} cannot {stage}: {why}"


def confine(launch: Launch, *, view_of: int = -1, cwd: str = "") -> None:
    """Enters the task's limits, its view and its user, in this order: each needs rights that the next one drops.

    `view_of` is a pidfd of the running task, whose view a command beside it shares. `cwd` is the working directory of
    a program around the main task. Raises NotConfined.
    """
    stage = "start"
    cwd = cwd or launch.cwd
    try:
        for group in launch.groups:
            stage = f"enter the control group {group}"
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as f:
                f.write("0")
        stage = "set its limits"
        set_rlimits(launch)
        stage = "separate its view of the file system"
        if (launch.confinement.view or launch.confinement.layer) and view_of >= 0:
            join_view(view_of)
        else:
            enter_view(launch.confinement, launch.volumes)
        stage = f"enter the working directory {cwd}"
        if cwd == launch.work:
            os.chdir(cwd)  # before the user changes: a parent of the state directory may be closed to others
        stage = f"become user {launch.confinement.uid}"
        become_user(launch.confinement)
        stage = f"enter the working directory {cwd}"
        if cwd != launch.work:
            os.chdir(cwd)
    except VolumeNotMounted as error:
        raise NotConfined(describe_failure("mount its volumes", error)) from error
    except (OSError, ValueError) as error:
        raise NotConfined(describe_failure(stage, error)) from error


def set_rlimits(launch: Launch) -> None:
    """Resource limits, used where there are no control groups. Core files are disabled because they fill disks."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if launch.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (launch.memory_bytes, launch.memory_bytes))
    if launch.processes_max:
        resource.setrlimit(resource.RLIMIT_NPROC, (launch.processes_max, launch.processes_max))
