"""Agent configuration: a TOML file, overridden by command-line options.

Capacity and devices that are not configured are detected. Nothing here contacts the region.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.agent.capacity_detection import detect_capacity, detect_devices
from holdfast.model.errors import Invalid
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Device, Node, NodeSpec, validate_node
from holdfast.model.placement_rules import Taint
from holdfast.model.quantity import Amount


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Field names are the keys of the TOML file. `url`, `ca`, `cert` and `key` are for the region's API."""

    name: str
    region: str
    zone: str
    state_dir: str
    pool: str = "default"
    address: str = "127.0.0.1"
    capacity: dict[str, Amount] = {}
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    port_range: tuple[int, int] = (20000, 20999)
    tenant: str = ""
    drivers: tuple[str, ...] = ("process",)
    url: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    join_token_file: str = ""
    """Used when `cert` is not set: file that holds the join token. It may appear after the agent has started."""
    stop_work_on_exit: bool = False
    isolation: Literal["auto", "rlimits", "none"] = "auto"

    @property
    def tasks_dir(self) -> Path:
        return Path(self.state_dir) / "tasks"

    @property
    def identity_dir(self) -> Path:
        return Path(self.state_dir) / "identity"

    @property
    def oci_dir(self) -> Path:
        return Path(self.state_dir) / "oci"


def load(path: str | None = None, **options: Any) -> AgentConfig:
    """The settings of the file, overridden by every option that is not None. Raises Invalid with all causes."""
    settings: dict[str, Any] = {}
    if path is not None:
        try:
            settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise Invalid(f"agent configuration {path}: cannot read it ({why})") from error
    settings.update({name: value for name, value in options.items() if value is not None})
    try:
        config = msgspec.convert(settings, AgentConfig)
    except msgspec.ValidationError as error:
        raise Invalid(f"agent configuration {path or 'from options'}: {error}") from error
    config = msgspec.structs.replace(
        config,
        capacity={**detect_capacity(), **config.capacity},
        devices=config.devices if "devices" in settings else detect_devices(),
        state_dir=str(Path(config.state_dir).expanduser().resolve()),
    )
    causes = tuple(validate_node(node_from_config(config), None))
    if causes:
        raise Invalid("; ".join(f"{cause.field}: {cause.message}" for cause in causes), causes)
    return config


def node_from_config(config: AgentConfig) -> Node:
    """The Node object that this agent registers."""
    spec = NodeSpec(
        zone=config.zone,
        pool=config.pool,
        address=config.address,
        capacity=config.capacity,
        devices=config.devices,
        port_range=config.port_range,
        taints=config.taints,
        drivers=config.drivers,
        tenant=config.tenant,
    )
    return Node(metadata=ObjectMeta(name=config.name, labels=config.labels), spec=spec)


def merged_node(config: AgentConfig, stored: Node) -> Node | None:
    """The stored Node updated to the configuration; None if it is already up to date.

    Cordon and drain, and labels and taints added by others, belong to the operator and stay.
    """
    wanted = node_from_config(config)
    taints = (*stored.spec.taints, *(taint for taint in config.taints if taint not in stored.spec.taints))
    spec = msgspec.structs.replace(
        wanted.spec,
        taints=taints,
        unschedulable=stored.spec.unschedulable,
        drain=stored.spec.drain,
        drain_seconds=stored.spec.drain_seconds,
    )
    labels = {**stored.metadata.labels, **config.labels}
    if spec == stored.spec and labels == stored.metadata.labels:
        return None
    return msgspec.structs.replace(stored, metadata=msgspec.structs.replace(stored.metadata, labels=labels), spec=spec)
