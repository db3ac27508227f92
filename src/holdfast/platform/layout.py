"""The files of a platform and its recorded design.

`platform.json` is written when the platform is created. Ports, regions and agents never change afterwards; `example`
may be set later.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from holdfast.foundation.exit_codes import CommandError, ExitCode

REGIONS_MAX = 20
AGENTS_PER_REGION_MAX = 50
ZONES_PER_REGION = 2
PROXY_PORT_OFFSET, PROXY_STATUS_OFFSET = 50, 70
DNS_PORT_OFFSET = 99
AGENT_PORT_OFFSET = 100
PORTS_PER_AGENT = 50
# Between the port bases of two platforms, so that their ranges do not overlap: sufficient for 18 agents.
PORT_SPACING = 1000
GPUS_PER_GPU_NODE = 2
GPU_MODELS = ("A100", "L4", "H100")
CPUS, MEMORY, DISK, VOLUMES = "8", "32Gi", "200Gi", "10Gi"
DEDICATED_SAMPLE_TENANT, DEDICATED_RESIDENCY = "billing", "eu"
"""The sample tenant with nodes of its own: one in each region with this residency."""


class AgentPlan(msgspec.Struct, frozen=True, rename="camel"):
    """One agent process. Its declared capacity is not checked against the machine."""

    name: str
    zone: str
    ports: tuple[int, int]
    capacity: dict[str, str]
    gpus: tuple[tuple[str, str], ...] = ()
    tenant: str = ""
    """The tenant to which the node is dedicated."""
    volumes: str = ""
    """Size of its persistent volumes; empty: it keeps none."""


class RegionPlan(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    zones: tuple[str, ...]
    residency: tuple[str, ...]
    port: int
    agents: tuple[AgentPlan, ...]
    cost: int = 100
    endpoint: str = ""
    """URL of the region's cell on another machine; empty for a local platform."""

    @property
    def url(self) -> str:
        return self.endpoint or f"https://127.0.0.1:{self.port}"


class Platform(msgspec.Struct, frozen=True, rename="camel"):
    """The design of a platform, as recorded by the first `holdfast up`."""

    port_base: int
    regions: tuple[RegionPlan, ...]
    agents_per_region: int
    samples: bool = True
    etcd_cells: tuple[str, ...] = ()
    """Cells stored in the platform's etcd cluster. The others use SQLite."""
    provider: bool = True
    """Whether the platform runs the node provider, which also pushes CPU metrics."""
    endpoint: str = ""
    """URL of the global cell on another machine; empty for a local platform."""
    example: str = ""
    """Example application that `holdfast up` applies; empty: none."""
    proxies: tuple[str, ...] = ()
    """Regions with an entry proxy."""

    @property
    def port_range(self) -> tuple[int, int]:
        """First and last port of the platform's cells and agents. Nodes of pools take blocks behind it."""
        last = max((agent.ports[1] for plan in self.regions for agent in plan.agents), default=0)
        return self.port_base, max(last, self.port_base + AGENT_PORT_OFFSET - 1)

    def proxy_port(self, region: str) -> int:
        """HTTP port of the region's entry proxy."""
        return self.port_base + PROXY_PORT_OFFSET + self._place(region)

    def proxy_status_port(self, region: str) -> int:
        """Port of the proxy's health and metrics."""
        return self.port_base + PROXY_STATUS_OFFSET + self._place(region)

    def _place(self, region: str) -> int:
        return [plan.name for plan in self.regions].index(region)

    @property
    def global_url(self) -> str:
        return self.endpoint or f"https://127.0.0.1:{self.port_base}"

    @property
    def dns_port(self) -> int:
        """Port of the local name server."""
        return self.port_base + DNS_PORT_OFFSET

    @property
    def dns(self) -> str:
        """HOST:PORT of the local name server."""
        return f"127.0.0.1:{self.dns_port}"

    @property
    def cells(self) -> tuple[tuple[str, str], ...]:
        """Name and URL of every cell, the global cell first."""
        return (("global", self.global_url), *((r.name, r.url) for r in self.regions))


class Layout:
    """Absolute paths in a platform's directory."""

    def __init__(self, state: str | Path) -> None:
        if not os.fspath(state) or "\0" in os.fspath(state):
            raise CommandError("--state: empty or not a path", next_step="add --state DIR", code=ExitCode.USAGE)
        self.root = Path(os.path.abspath(state))
        self.platform = self.root / "platform.json"
        self.pki = self.root / "pki"
        self.tokens = self.root / "tokens.json"
        self.kubeconfig = self.root / "kubeconfig"
        self.logs = self.root / "logs"
        self.run = self.root / "run"
        self.lock = self.run / "supervisor.lock"
        self.supervisor = self.run / "supervisor.json"
        self.applied = self.root / "samples-applied"
        self.drill_reports = self.root / "drills"
        self.drill_desk = self.run / "drill"
        """Where the console asks the supervisor for a drill."""
        self.drill_schedules = self.root / "drill-schedules.json"
        self.drill_ticks = self.root / "drill-ticks.json"
        """The last tick of each schedule that the supervisor has handled."""
        self.node_settings = self.root / "node.toml"
        """Settings of all local agents, and the registries of the global cell, if the operator creates it."""
        self.shared = self.root / "shared"
        """Visible to the tasks of all local agents, if the operator creates it. Tasks see nothing else here."""

    def proxy_settings(self, region: str) -> Path:
        """Settings of a region's entry proxy. Written once; the operator may change them."""
        return self.root / "proxies" / f"{region}.toml"

    def example_applied(self, name: str) -> Path:
        """Exists once the example has been applied, so that later changes by the user are kept."""
        return self.root / f"example-{name}-applied"

    def cell(self, name: str) -> Path:
        return self.root / "cells" / name

    def agent(self, name: str) -> Path:
        return self.root / "agents" / name

    def identity(self, agent: str) -> Path:
        """Certificate and key of an agent. The file exists after the agent has joined."""
        return self.agent(agent) / "identity" / "node.pem"

    def join_token(self, agent: str) -> Path:
        """File from which an agent reads its join token."""
        return self.root / "joining" / agent

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def record(self, process: str) -> Path:
        """File with the pid, start time and restart count of a supervised process."""
        return self.run / "processes" / f"{process}.json"

    def held_down(self, process: str) -> Path:
        """While this file exists, the supervisor does not restart the process. Drills use it."""
        return self.run / "held-down" / process

    def prepare(self) -> None:
        """Creates the directories with mode 0700, because they contain keys and tokens."""
        for folder in (self.root, self.pki, self.logs, self.run, self.run / "processes"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def remote(self) -> bool:
        """Whether `--state` is a kubeconfig of a remote platform, of which only the API is available."""
        try:
            return self.root.exists() and not self.root.is_dir()
        except OSError:
            return False

    def load(self) -> Platform:
        """The recorded platform, or the remote platform of the kubeconfig. Raises if there is none."""
        if self.remote:
            return remote_platform(self.root)
        try:
            return msgspec.json.decode(self.platform.read_bytes(), type=Platform)
        except FileNotFoundError:
            raise CommandError(
                f"platform {self.root}: not found (platform.json is missing)",
                next_step="holdfast up, or give its directory or a kubeconfig with --state or HOLDFAST_STATE",
                code=ExitCode.UNREACHABLE,
            ) from None
        except OSError as error:
            raise CommandError(
                f"{self.platform}: cannot be read ({(error.strerror or str(error)).lower()})",
                next_step="check the path and its mode, or add --state with the platform's directory or a kubeconfig",
                code=ExitCode.UNREACHABLE,
            ) from None
        except msgspec.ValidationError as error:
            raise CommandError(
                f"{self.platform}: written by another version of holdfast ({error})",
                next_step="use that version, or delete the directory",
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CommandError(
                f"{self.platform}: damaged, not JSON ({error})",
                next_step="restore the file from a copy, or stop the platform's processes and delete the directory",
            ) from None

    def save(self, platform: Platform) -> None:
        write_atomically(self.platform, msgspec.json.format(msgspec.json.encode(platform), indent=2))


def remote_platform(kubeconfig: Path) -> Platform:
    """The platform as the global cell reports it, without agents and processes."""
    from holdfast.client import cell_access

    regions = [
        RegionPlan(
            name=item["metadata"]["name"],
            zones=tuple(item["spec"].get("zones", ())),
            residency=tuple(item["spec"].get("residency", ())),
            port=0,
            agents=(),
            cost=item["spec"].get("cost", 100),
            endpoint=_remote_url(kubeconfig, item),
        )
        for item in cell_access.region_objects(kubeconfig)
        # A region whose cell has not joined yet has neither an endpoint nor a context.
        if cell_access.region_url(item["spec"]) or item["metadata"]["name"] in cell_access.contexts(kubeconfig)
    ]
    url = cell_access.access_of(kubeconfig, cell_access.GLOBAL).url
    return Platform(port_base=0, regions=tuple(regions), agents_per_region=0, samples=False, endpoint=url)


def _remote_url(kubeconfig: Path, item: dict[str, Any]) -> str:
    from holdfast.client import cell_access

    found = cell_access.access_of(kubeconfig, item["metadata"]["name"], cell_access.region_url(item["spec"]))
    return ",".join((found.url, *found.others))


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replaces the file atomically."""
    new = path.with_name(f".{path.name}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(new, path)


def design_platform(
    regions: tuple[str, ...],
    *,
    agents_per_region: int,
    port_base: int,
    samples: bool,
    etcd_cells: tuple[str, ...] = (),
    provider: bool = True,
    example: str = "",
    proxies: tuple[str, ...] = (),
) -> Platform:
    """Designs a platform. Ports: global cell = base, region i = base + 1 + i, agents from base + 100."""
    planned: list[RegionPlan] = []
    number = 0
    for index, name in enumerate(regions):
        zones = tuple(f"{name}-{'abcdefgh'[z]}" for z in range(ZONES_PER_REGION))
        agents: list[AgentPlan] = []
        for position in range(agents_per_region):
            first_port = port_base + AGENT_PORT_OFFSET + number * PORTS_PER_AGENT
            model = GPU_MODELS[index % len(GPU_MODELS)]
            gpus = tuple((f"gpu-{g}", model) for g in range(GPUS_PER_GPU_NODE)) if position == 0 else ()
            agents.append(
                AgentPlan(
                    name=f"{name}-{position + 1}",
                    zone=zones[position % len(zones)],
                    ports=(first_port, first_port + PORTS_PER_AGENT - 1),
                    capacity={"cpu": CPUS, "memory": MEMORY, "disk": DISK},
                    volumes=VOLUMES,
                    gpus=gpus,
                )
            )
            number += 1
        residency = name.partition("-")[0]
        if samples and residency == DEDICATED_RESIDENCY:
            first_port = port_base + AGENT_PORT_OFFSET + number * PORTS_PER_AGENT
            agents.append(
                AgentPlan(
                    name=f"{name}-{DEDICATED_SAMPLE_TENANT}",
                    zone=zones[agents_per_region % len(zones)],
                    ports=(first_port, first_port + PORTS_PER_AGENT - 1),
                    capacity={"cpu": CPUS, "memory": MEMORY, "disk": DISK},
                    volumes=VOLUMES,
                    tenant=DEDICATED_SAMPLE_TENANT,
                )
            )
            number += 1
        planned.append(
            RegionPlan(
                name=name,
                zones=zones,
                residency=(residency,),
                port=port_base + 1 + index,
                agents=tuple(agents),
                cost=100 + 10 * index,
            )
        )
    last_port = port_base + AGENT_PORT_OFFSET + number * PORTS_PER_AGENT
    if port_base < 1024 or last_port > 65535:
        raise CommandError(
            f"--port-base {port_base}: not enough ports for {number} agents (expected ports within 1024-65535, found "
            f"{port_base}-{last_port})",
            next_step="choose another --port-base, or fewer --agents",
            code=ExitCode.USAGE,
        )
    return Platform(
        port_base=port_base,
        regions=tuple(planned),
        agents_per_region=agents_per_region,
        samples=samples,
        etcd_cells=etcd_cells,
        provider=provider,
        example=example,
        proxies=proxies,
    )
