"""Services: the systemd unit of a role, and how it is started on this machine.

With systemd the unit is installed, enabled and started, so the service survives a reboot. Without systemd (or with
`--state DIR`) the command of the unit's `ExecStart` is started in the background, and the unit is written beside the
configuration for whoever installs it.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.foundation.exit_codes import CommandError
from holdfast.install.places import InstallRecord, Places, Role
from holdfast.platform.layout import write_atomically
from holdfast.platform.local_etcd import etcd_binary
from holdfast.platform.processes import ProcessIdentity, identify, is_alive, send_signal, wait_exited

SERVICE_USER = "holdfast"
# Time for a service to stop by itself. After that it is killed, as systemd does.
SERVICE_STOP_TIMEOUT_S = 30.0
# Last lines of a log that are searched for the error which ended a service.
LOG_LINES_READ = 20
_COMMANDS: dict[str, str] = {"global": "serve", "region": "serve", "agent": "agent"}

_CELL_HARDENING = """\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome={protect_home}
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
ProcSubset=pid
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
CapabilityBoundingSet=
AmbientCapabilities=
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
ReadWritePaths={state}
"""
# An agent starts tasks of other users in their own namespaces and control groups, so most restrictions would also
# restrict the tasks. Tasks outlive the agent: KillMode=process.
_AGENT_SETTINGS = """\
Delegate=yes
KillMode=process
TasksMax=infinity
OOMScoreAdjust=-900
ProtectClock=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
LockPersonality=yes
SystemCallArchitectures=native
"""


def exec_start(places: Places, role: Role) -> list[str]:
    """The command line of the role's process, independent of PATH."""
    if role.startswith("etcd-"):
        return [str(Path(etcd_binary()).resolve()), "--config-file", str(places.config(role))]
    script = Path(sys.executable).parent / "holdfast"
    program = [str(script)] if script.exists() else [sys.executable, "-m", "holdfast.cli"]
    return [*program, _COMMANDS[role], "--config", str(places.config(role))]


def unit_text(places: Places, role: Role, *, user: str = "", scope: str = "system") -> str:
    """The unit. `user` is empty if the service runs as root or belongs to a user's own service manager."""
    homes = (Path(pwd.getpwuid(0).pw_dir), Path("/home"))
    in_home = any(Path(sys.prefix).is_relative_to(home) for home in homes)
    service = [
        "Type=notify" if role != "agent" else "Type=exec",
        *(["NotifyAccess=main", "TimeoutStartSec=120"] if role != "agent" else []),
        *(["WatchdogSec=60"] if role in ("global", "region") else []),
        *([f"User={user}", f"Group={user}"] if user else []),
        f"ExecStart={' '.join(shlex.quote(part) for part in exec_start(places, role))}",
        "Restart=always",
        "RestartSec=2",
        "TimeoutStopSec=30",
        "UMask=0077",
        "LimitNOFILE=65536",
    ]
    if role == "agent":
        settings = _AGENT_SETTINGS if scope == "system" else "Delegate=yes\nKillMode=process\n"
    elif scope == "system":
        home = "read-only" if in_home else "yes"
        settings = _CELL_HARDENING.format(protect_home=home, state=places.folder(role))
    else:
        settings = "NoNewPrivileges=yes\nLockPersonality=yes\n"
    target = "multi-user.target" if scope == "system" else "default.target"
    return (
        f"[Unit]\nDescription=Holdfast {role}\nAfter=network-online.target\nWants=network-online.target\n"
        f"StartLimitIntervalSec=0\n\n[Service]\n" + "\n".join(service) + f"\n{settings}\n[Install]\nWantedBy={target}\n"
    )


class Service:
    """The service of one role on this machine. `manager` is `system`, `user` or `none`."""

    def __init__(self, places: Places, role: Role) -> None:
        self._places = places
        self._role = role
        self.manager = service_manager(places)
        self.name = f"holdfast-{role}.service"

    @property
    def user(self) -> str:
        """The user of the process, if it is not the caller. Agents need root to isolate their tasks."""
        return SERVICE_USER if self.manager == "system" and self._role != "agent" else ""

    @property
    def unit_path(self) -> Path:
        if self.manager == "system":
            return Path("/etc/systemd/system") / self.name
        if self.manager == "user":
            return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user" / self.name
        return self._places.unit(self._role)

    @property
    def log(self) -> Path:
        return self._places.folder(self._role) / "service.log"

    def install(self) -> None:
        """Writes the unit and gives the files to the service's user. Idempotent."""
        scope = "user" if self.manager == "user" else "system"
        text = unit_text(self._places, self._role, user=self.user, scope=scope)
        self.unit_path.parent.mkdir(parents=True, exist_ok=True)
        if not self.unit_path.exists() or self.unit_path.read_text() != text:  # a newer unit restarts the service
            write_atomically(self.unit_path, text.encode(), mode=0o644)
        if self.user:
            _own(self._places, self._role, self.user)

    def start(self) -> str:
        """Starts the service and enables it at boot. Returns how, for the user. A running service is restarted only if
        its unit or configuration is newer."""
        if self.manager == "none":
            return self._start_in_background()
        self._systemctl("daemon-reload")
        self._systemctl("enable", self.name)
        self._systemctl("restart" if self._is_stale() else "start", self.name)
        return f"{self.name} is enabled and runs; journalctl {self._scope_flag()}-u {self.name} shows its log"

    def stop(self) -> None:
        """Stops the service and disables it. A service that does not exist is no error."""
        if self.manager != "none":
            if self.unit_path.exists():
                self._systemctl("disable", "--now", self.name)
            return
        held = self._running()
        if held is not None:
            send_signal(held, signal.SIGTERM)
            if not wait_exited(held, SERVICE_STOP_TIMEOUT_S):
                send_signal(held, signal.SIGKILL)
                wait_exited(held, 5.0)
        self._pid_file.unlink(missing_ok=True)

    def remove(self) -> None:
        self.stop()
        self.unit_path.unlink(missing_ok=True)
        if self.manager != "none":
            self._systemctl("daemon-reload")

    def is_running(self) -> bool:
        if self.manager == "none":
            return self._running() is not None
        return self._systemctl("is-active", "--quiet", self.name, check=False) == 0

    def failure(self) -> str:
        """The last error in the log of a background process, or else its last line, for messages."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()[-LOG_LINES_READ:]
        except OSError:
            return f"journalctl {self._scope_flag()}-u {self.name}"
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or ["no output"])[-1][:300]

    @property
    def _pid_file(self) -> Path:
        return self._places.folder(self._role) / "service.json"

    def _running(self) -> ProcessIdentity | None:
        try:
            held = msgspec.json.decode(self._pid_file.read_bytes(), type=ProcessIdentity)
        except (OSError, msgspec.MsgspecError):
            held = None
        return held if held is not None and is_alive(held) else self._find_unrecorded()

    def _find_unrecorded(self) -> ProcessIdentity | None:
        """The process of a command that was killed after it had started it, before it could record it.

        Another container on this machine may run a service with the same paths, so the mounts must be the same too."""
        ending = [os.fsencode(part) for part in exec_start(self._places, self._role)[-3:]]
        for entry in os.listdir("/proc"):
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")[:-1] if entry.isdigit() else []
                if command[-3:] == ending and os.readlink(f"/proc/{entry}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
                    return identify(int(entry))
            except OSError:
                continue  # the process has exited, or belongs to another user
        return None

    def _start_in_background(self) -> str:
        if (held := self._running()) is not None:
            return f"already runs (pid {held.pid})"
        with self.log.open("ab") as log:
            started = subprocess.Popen(
                exec_start(self._places, self._role),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        found = identify(started.pid)
        if found is not None:
            write_atomically(self._pid_file, msgspec.json.encode(found))
        return f"started (pid {started.pid}); there is no service manager, so it does not survive a reboot"

    def will_start_anew(self) -> bool:
        """Whether `start` would start another process: none runs, or its unit or configuration is newer."""
        return not self.is_running() or (self.manager != "none" and self._is_stale())

    def _is_stale(self) -> bool:
        """Whether the unit or the configuration changed after the service had started."""
        asked = ["systemctl", *self._scope(), "show", "-p", "ActiveEnterTimestampMonotonic", "--value", self.name]
        shown = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        started_s = int(shown) / 1e6 if shown.isdigit() else 0.0
        if not started_s:
            return False
        booted_s = time.time() - time.monotonic()
        newest = max(p.stat().st_mtime for p in (self.unit_path, self._places.config(self._role)) if p.exists())
        return newest > booted_s + started_s

    def _scope(self) -> list[str]:
        return ["--user"] if self.manager == "user" else []

    def _scope_flag(self) -> str:
        return "--user " if self.manager == "user" else ""

    def _systemctl(self, *arguments: str, check: bool = True) -> int:
        done = subprocess.run(["systemctl", *self._scope(), *arguments], capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise CommandError(
                f"systemctl {' '.join(arguments)}: {done.stderr.strip() or f'exit {done.returncode}'}",
                next_step=f"systemctl {self._scope_flag()}status {self.name}",
            )
        return done.returncode


def service_manager(places: Places) -> str:
    if places.chosen or shutil.which("systemctl") is None:
        return "none"
    if os.geteuid() == 0:
        return "system" if Path("/run/systemd/system").is_dir() else "none"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return "user" if runtime and (Path(runtime) / "systemd").is_dir() else "none"


def _own(places: Places, role: Role, user: str) -> None:
    """Creates the service's user if it is missing, and gives it the state of the role."""
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        done = subprocess.run(
            ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", user],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CommandError(
                f"user {user}: cannot create it ({done.stderr.strip()})", next_step=f"useradd --system {user}"
            ) from None
        found = pwd.getpwnam(user)
    for path in (places.folder(role), *places.folder(role).rglob("*")):
        os.chown(path, found.pw_uid, found.pw_gid, follow_symlinks=False)
    os.chown(places.config(role), 0, found.pw_gid)
    places.config(role).chmod(0o640)


def install_service(
    places: Places, role: Role, held: InstallRecord, *, start: bool, say: Callable[[str], None]
) -> Service | None:
    """Installs the unit, records the installation as complete, and starts the service. None: it is not started."""
    service = Service(places, role)
    service.install()
    places.save(role, msgspec.structs.replace(held, complete=True))
    if not start:
        say(f"not started; the unit is {service.unit_path}")
        return None
    say(f"service: {service.start()}")
    return service
