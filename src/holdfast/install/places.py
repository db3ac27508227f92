"""Where an installation keeps its files, and the record of what this machine holds.

Root uses `/etc/holdfast` and `/var/lib/holdfast`, other users their own directories. With `--state DIR` everything,
configuration included, is below DIR. A machine holds at most one cell of each role per directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.join import is_host
from holdfast.platform.layout import write_atomically

Role = Literal["global", "region", "agent", "etcd-global", "etcd-region"]
ROLES: tuple[Role, ...] = ("global", "region", "agent")
"""What a user installs. An etcd belongs to its cell."""
# Port of a cell if `--advertise` names none.
GLOBAL_PORT, REGION_PORT = 7400, 7401
# Ports of tasks on a node, unless it is given others.
TASK_PORTS = (20000, 20999)


class InstallRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What a machine holds: written first, so that a second installation is refused or continued."""

    role: str
    name: str
    advertise: str = ""
    """URL of the cell, or of the region's cell for an agent."""
    ca: str = ""
    """SHA-256 of the CA certificate of the platform that it joined."""
    complete: bool = False
    replicas: int = 0
    """Servers that the cell is meant to have; 0 if nobody has said."""


class Places:
    def __init__(self, state: str | Path | None = None) -> None:
        if state is not None:
            self.state = self.config_dir = Path(os.path.abspath(state))
        elif os.geteuid() == 0:
            self.state, self.config_dir = Path("/var/lib/holdfast"), Path("/etc/holdfast")
        else:
            self.state = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "holdfast"
            self.config_dir = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "holdfast"
        self.chosen = state is not None
        """Whether the user named the directory. Such an installation leaves the system's own directories alone."""

    def folder(self, role: Role) -> Path:
        return self.state / role

    def pki(self, role: Role) -> Path:
        return self.folder(role) / "pki"

    def config(self, role: Role) -> Path:
        return self.config_dir / f"{role}.{'json' if role.startswith('etcd-') else 'toml'}"

    def unit(self, role: Role) -> Path:
        """The unit beside the configuration, where no service manager runs it."""
        return self.config_dir / f"holdfast-{role}.service"

    @property
    def kubeconfig(self) -> Path:
        return self.config_dir / "operator.kubeconfig"

    def record(self, role: Role) -> InstallRecord | None:
        try:
            return msgspec.json.decode(self._record_path(role).read_bytes(), type=InstallRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as wrong:
            raise CommandError(
                f"{self._record_path(role)}: not readable ({wrong})", next_step="correct or delete the file"
            ) from None

    def save(self, role: Role, record: InstallRecord) -> None:
        self.folder(role).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.pki(role).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.config_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomically(self._record_path(role), msgspec.json.encode(record))

    def _record_path(self, role: Role) -> Path:
        return self.folder(role) / "install.json"

    def roles(self) -> tuple[Role, ...]:
        """The roles that this machine holds."""
        return tuple(role for role in ROLES if self._record_path(role).exists())

    def begin(self, role: Role, record: InstallRecord) -> InstallRecord:
        """Records an installation, or continues the same one. Raises if the machine holds another one of this role."""
        held = self.record(role)
        if held is None:
            if self.config(role).exists():
                raise CommandError(
                    f"{self.config(role)}: exists, but {self.folder(role)} has no record of an installation",
                    next_step="move the file away, or choose another --state",
                    code=ExitCode.CONFLICT,
                )
            self.save(role, record)
            return record
        for what, before, now in (
            ("name", held.name, record.name),
            ("address", held.advertise, record.advertise),
            ("platform", held.ca, record.ca),
        ):
            if before and now and before != now:
                raise CommandError(
                    f"{role}: this machine already holds {held.name} (its {what}: expected {before}, found {now})",
                    next_step=f"holdfast leave {role} removes it, or choose another --state",
                    code=ExitCode.CONFLICT,
                )
        if record.replicas and record.replicas != held.replicas:
            held = msgspec.structs.replace(held, replicas=record.replicas)
            self.save(role, held)
        return held


def parse_advertise(text: str, port: int) -> tuple[str, int, str]:
    """Host, port and URL of `HOST[:PORT]`, where an IPv6 address with a port is in brackets."""
    address = text.removeprefix("https://")
    bare_ipv6 = address.count(":") > 1 and "[" not in address
    try:
        parts = urlsplit(f"//[{address}]" if bare_ipv6 else f"//{address}")
        host, port, rest = parts.hostname or "", port if parts.port is None else parts.port, parts.path.strip("/")
    except ValueError:
        host, rest = "", ""
    if not is_host(host) or rest or not 0 < port < 65536:
        raise CommandError(
            f"--advertise {text}: invalid (expected HOST or HOST:PORT)",
            next_step="--advertise with the address that other machines reach, such as 10.0.0.1:7400",
            code=ExitCode.USAGE,
        )
    return host, port, f"https://{f'[{host}]' if ':' in host else host}:{port}"


def toml_text(settings: dict[str, str | int | bool], comment: str) -> str:
    """A flat TOML file. Texts are written as JSON strings, which TOML reads the same way."""
    import json

    lines = [f"# {line}" for line in comment.splitlines()]
    for key, value in settings.items():
        lines.append(
            f"{key} = {json.dumps(value, ensure_ascii=False) if not isinstance(value, int) else str(value).lower()}"
        )
    return "\n".join(lines) + "\n"
