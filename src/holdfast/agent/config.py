"""Agent configuration: a TOML file, overridden by command-line options.

Capacity and devices that are not configured are detected. Nothing here contacts the region.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.agent.capacity_detection import detect_capacity, detect_devices
from holdfast.agent.drivers.artifact_sources import ArtifactSources
from holdfast.agent.drivers.images import IMAGE_CACHE_BYTES_MAX
from holdfast.agent.drivers.volumes import HostPathRule
from holdfast.foundation.container_runtime import find_runtime, private_network_refusal
from holdfast.model.errors import Invalid
from holdfast.model.host_paths import NodeHostPath
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Device, Node, NodeSpec, validate_node
from holdfast.model.placement_rules import Taint
from holdfast.model.quantity import STORAGE, Amount, BadQuantity
from holdfast.model.template import IMAGE_DRIVER, PRIVATE_NETWORK, DriverName
from holdfast.model.volume import volume_bytes
from holdfast.registry.allowed_registries import AllowedRegistries


class VolumeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Persistent volumes of this node. The sizes of all of them together are at most `size`."""

    path: str = ""
    size: Amount = ""

    def error(self) -> str:
        if bool(self.path) != bool(self.size):
            return "volumes: path and size must both be set"
        if not self.path:
            return ""
        if not os.path.isabs(self.path) or ".." in Path(self.path).parts:
            return f"volumes.path: invalid (expected an absolute path, found {self.path})"
        try:
            volume_bytes(self.size)
        except BadQuantity as error:
            return f"volumes.size: {error}"
        return ""


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Field names are the keys of the TOML file. `url`, `ca`, `cert` and `key` are for the region's API."""

    name: str
    region: str
    zone: str
    state_dir: str
    pool: str = "default"
    address: str = "127.0.0.1"
    dns: str = ""
    """HOST:PORT of the name server that tasks should ask. They get it as HOLDFAST_DNS; empty: they get none."""
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
    task_uids: tuple[int, int] | None = None
    """First and last uid of tasks, where the agent is root. Not set: a block of uids that no other agent of this
    machine uses."""
    allowed_users: dict[str, tuple[str, ...]] = {}
    """Tenant → users of this node that its templates may name, if the Tenant allows them too. Without it, none."""
    host_paths: tuple[str, ...] = ()
    """Directories that tasks see although they are below `/tmp` or a directory that others may not enter."""
    bundle_dirs: tuple[str, ...] = ()
    """Directories of OCI bundles. A bundle decides what is mounted, so only bundles below these are run."""
    volume_paths: tuple[HostPathRule, ...] = ()
    """Directories of this node that the named tenants may mount as hostPath volumes. Without it, none."""
    scratch_limit: Literal["auto", "measured"] = "auto"
    """How sizes of scratch volumes on disk are enforced. `auto`: by a file system in an image where the agent can mount
    one, else by measuring them."""
    volumes: VolumeSettings = msgspec.field(default_factory=VolumeSettings)
    """Where the node keeps persistent volumes, and how much of them. Without it, none."""
    artifacts: ArtifactSources = msgspec.field(default_factory=ArtifactSources)
    """Sources that artifacts may come from. Without it, no source is allowed."""

    images: AllowedRegistries = msgspec.field(default_factory=AllowedRegistries)
    """Registries that images may be pulled from. Without it, the node runs no images."""
    image_cache_bytes: int = IMAGE_CACHE_BYTES_MAX
    """Size of all images of the node. Above it, images that no task uses are removed."""

    otlp_endpoint: str = ""
    """URL of the OTLP receiver (HTTP) for the spans of tasks. Without it OTEL_EXPORTER_OTLP_ENDPOINT, else none."""

    @property
    def runs_images(self) -> bool:
        """Whether the node can run images: it has the driver, a runtime, the rights, and a registry that is allowed."""
        allowed = bool(self.images.registries) and os.geteuid() == 0
        return allowed and DriverName.OCI in self.drivers and bool(find_runtime())

    @property
    def listed_drivers(self) -> tuple[str, ...]:
        """The configured drivers, and what this machine can do with them."""
        found = (*self.drivers, *((IMAGE_DRIVER,) if self.runs_images else ()))
        if DriverName.OCI not in self.drivers or not find_runtime() or self.private_network_refusal():
            return found
        containers = [name for name in found if name in (DriverName.OCI, IMAGE_DRIVER)]
        return (*found, *(name + PRIVATE_NETWORK for name in containers))

    def private_network_refusal(self) -> str:
        """Why containers of this node cannot have a network of their own; empty if they can."""
        if ":" in self.address:
            return "the node's address is IPv6, and ports are forwarded from IPv4 addresses alone"
        return private_network_refusal()

    @property
    def images_dir(self) -> Path:
        return Path(self.state_dir) / "images"

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
        capacity={**detect_capacity(), **config.capacity, **_storage(config)},
        devices=config.devices if "devices" in settings else detect_devices(),
        state_dir=str(Path(config.state_dir).expanduser().resolve()),
    )
    first, last = config.task_uids or (1, 1)
    if not 1 <= first <= last < 2**31:
        raise Invalid("agent configuration: task_uids: invalid (expected [FIRST, LAST] with 1 ≤ FIRST ≤ LAST < 2^31)")
    if (
        wrong := config.volumes.error()
        or _storage_error(settings)
        or config.artifacts.error()
        or _images_error(config)
        or _exposed_state(config)
        or _dns_error(config.dns)
    ):
        raise Invalid(f"agent configuration {path or 'from options'}: {wrong}")
    causes = tuple(validate_node(node_from_config(config), None))
    if causes:
        raise Invalid("; ".join(f"{cause.field}: {cause.message}" for cause in causes), causes)
    return config


def _dns_error(text: str) -> str:
    host, _, port = text.rpartition(":")
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    valid = host and not is_bare_ipv6 and port.isdecimal() and 0 < int(port) < 65_536
    return "" if not text or valid else f'dns: invalid (expected HOST:PORT or [IPV6]:PORT, found "{text}")'


def _images_error(config: AgentConfig) -> str:
    if config.images.registries and DriverName.OCI not in config.drivers:
        return 'images.registries: needs the driver oci; next: set drivers = ["process", "oci"]'
    if config.image_cache_bytes <= 0:
        return f"image_cache_bytes: {config.image_cache_bytes} is not above zero"
    return config.images.error()


def _exposed_state(config: AgentConfig) -> str:
    """Why a named directory would mix the agent's own files with those of others; empty if none does."""
    state = Path(config.state_dir)
    named = [("artifacts.directories", name) for name in config.artifacts.directories]
    named += [("volume_paths", rule.path) for rule in config.volume_paths]
    for setting, name in (*named, *(("bundle_dirs", name) for name in config.bundle_dirs)):
        resolved = Path(name).resolve()
        if not name.startswith("/"):
            return f"{setting}: {name} is not an absolute path"
        if state.is_relative_to(resolved) or resolved.is_relative_to(state):
            return f"{setting}: {name} contains the agent's state {state}, or is inside it"
    return ""


def _storage(config: AgentConfig) -> dict[str, Amount]:
    return {STORAGE: config.volumes.size} if config.volumes.path else {}


def _storage_error(settings: dict[str, Any]) -> str:
    return (
        "capacity.storage: set volumes.path and volumes.size instead" if STORAGE in settings.get("capacity", {}) else ""
    )


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
        drivers=config.listed_drivers,
        tenant=config.tenant,
        host_paths=tuple(NodeHostPath(rule.path, rule.read_only, rule.tenants) for rule in config.volume_paths),
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
