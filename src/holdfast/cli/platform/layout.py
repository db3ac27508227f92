"""Where a platform's files are, and the record of what it consists of.

`platform.json` is written once, when the platform is first prepared, and decides what every later command sees: ports,
regions and agents never change under a running platform.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.cli.exits import Exit, Stop

MAX_REGIONS = 20
MAX_AGENTS_PER_REGION = 50
ZONES_PER_REGION = 2
AGENT_PORTS_FROM = 100
PORTS_PER_AGENT = 50
GPUS_PER_GPU_NODE = 2
GPU_MODELS = ("A100", "L4", "H100")
CPUS, MEMORY, DISK = "8", "32Gi", "200Gi"


class AgentPlan(msgspec.Struct, frozen=True, rename="camel"):
    """One node: its declared capacity is pretend, its processes are real."""

    name: str
    zone: str
    ports: tuple[int, int]
    capacity: dict[str, str]
    gpus: tuple[tuple[str, str], ...] = ()


class RegionPlan(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    zones: tuple[str, ...]
    residency: tuple[str, ...]
    port: int
    agents: tuple[AgentPlan, ...]
    cost: int = 100
    endpoint: str = ""
    """Where its cell is, on another machine; empty for one of this machine."""

    @property
    def url(self) -> str:
        return self.endpoint or f"https://127.0.0.1:{self.port}"


class Platform(msgspec.Struct, frozen=True, rename="camel"):
    """Everything `holdfast up` decided, so that a second `up` resumes exactly this."""

    port_base: int
    regions: tuple[RegionPlan, ...]
    agents_per_region: int
    samples: bool = True
    etcd_cells: tuple[str, ...] = ()
    """The cells whose store is the platform's own etcd cluster; the others have a SQLite file each."""
    provider: bool = True
    """Whether a process of the platform measures loads and starts and stops the nodes of pools."""
    endpoint: str = ""
    """Where the global cell is, on another machine; empty for one of this machine."""

    @property
    def global_url(self) -> str:
        return self.endpoint or f"https://127.0.0.1:{self.port_base}"

    @property
    def cells(self) -> tuple[tuple[str, str], ...]:
        """Every cell and its address, the global one first."""
        return (("global", self.global_url), *((r.name, r.url) for r in self.regions))


class Layout:
    """The paths under a platform's directory. Absolute, as processes are started from anywhere."""

    def __init__(self, state: str | Path) -> None:
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

    def cell(self, name: str) -> Path:
        return self.root / "cells" / name

    def agent(self, name: str) -> Path:
        return self.root / "agents" / name

    def identity(self, agent: str) -> Path:
        """An agent's own certificate and key: there once it has joined."""
        return self.agent(agent) / "identity" / "node.pem"

    def join_token(self, agent: str) -> Path:
        """Where an agent that has not joined yet looks for its token."""
        return self.root / "joining" / agent

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def record(self, process: str) -> Path:
        """Where the supervisor writes down the process id, start time and restarts of one of its processes."""
        return self.run / "processes" / f"{process}.json"

    def held_down(self, process: str) -> Path:
        """While this file exists the supervisor does not start the process again: how drills keep something dead."""
        return self.run / "held-down" / process

    def prepare(self) -> None:
        """Directories, readable by their owner only: keys and tokens are below."""
        for folder in (self.root, self.pki, self.logs, self.run, self.run / "processes"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def remote(self) -> bool:
        """Whether this is no directory but a kubeconfig: the platform is elsewhere, and only its API is there."""
        return self.root.is_file()

    def load(self) -> Platform:
        """The recorded platform, or the one a kubeconfig leads to; says how to make one when there is none."""
        if self.remote:
            return remote_platform(self.root)
        try:
            return msgspec.json.decode(self.platform.read_bytes(), type=Platform)
        except FileNotFoundError:
            raise Stop(
                f"there is no platform in {self.root}",
                why="platform.json is missing",
                next_step="holdfast up starts one; --state names another directory, or a kubeconfig",
                code=Exit.UNREACHABLE,
            ) from None
        except msgspec.ValidationError as error:
            raise Stop(
                f"{self.platform} is not a platform of this version",
                why=str(error),
                next_step="remove the directory, or use the version that made it",
            ) from None

    def save(self, platform: Platform) -> None:
        write_whole(self.platform, msgspec.json.format(msgspec.json.encode(platform), indent=2))


def remote_platform(kubeconfig: Path) -> Platform:
    """As far as the global cell knows it: what runs on its machines is not for us to know."""
    from holdfast.cli.platform import remote

    regions = [
        RegionPlan(
            name=item["metadata"]["name"], zones=tuple(item["spec"].get("zones", ())),
            residency=tuple(item["spec"].get("residency", ())), port=0, agents=(), cost=item["spec"].get("cost", 100),
            endpoint=remote.access(kubeconfig, item["metadata"]["name"], item["spec"].get("endpoint", "")).url,
        )
        for item in remote.region_objects(kubeconfig)
    ]  # fmt: skip
    there = remote.access(kubeconfig, remote.GLOBAL).url
    return Platform(port_base=0, regions=tuple(regions), agents_per_region=0, samples=False, endpoint=there)


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """The file has the old content or the new, never a part of it."""
    new = path.with_name(f".{path.name}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(new, path)


def design(
    regions: tuple[str, ...],
    *,
    agents_per_region: int,
    port_base: int,
    samples: bool,
    etcd_cells: tuple[str, ...] = (),
    provider: bool = True,
) -> Platform:
    """What a platform of these regions consists of. Ports: global = base, region i = base + 1 + i, then the agents."""
    planned: list[RegionPlan] = []
    number = 0
    for index, name in enumerate(regions):
        zones = tuple(f"{name}-{'abcdefgh'[z]}" for z in range(ZONES_PER_REGION))
        agents: list[AgentPlan] = []
        for position in range(agents_per_region):
            first_port = port_base + AGENT_PORTS_FROM + number * PORTS_PER_AGENT
            model = GPU_MODELS[index % len(GPU_MODELS)]
            gpus = tuple((f"gpu-{g}", model) for g in range(GPUS_PER_GPU_NODE)) if position == 0 else ()
            agents.append(
                AgentPlan(
                    name=f"{name}-{position + 1}",
                    zone=zones[position % len(zones)],
                    ports=(first_port, first_port + PORTS_PER_AGENT - 1),
                    capacity={"cpu": CPUS, "memory": MEMORY, "disk": DISK},
                    gpus=gpus,
                )
            )
            number += 1
        planned.append(
            RegionPlan(
                name=name,
                zones=zones,
                residency=(name.partition("-")[0],),
                port=port_base + 1 + index,
                agents=tuple(agents),
                cost=100 + 10 * index,
            )
        )
    last_port = port_base + AGENT_PORTS_FROM + number * PORTS_PER_AGENT
    if port_base < 1024 or last_port > 65535:
        raise Stop(
            f"--port-base {port_base} leaves no room for {number} agents",
            why=f"ports {port_base} to {last_port} are needed, and ports are between 1024 and 65535",
            next_step="choose another --port-base, or fewer agents",
            code=Exit.USAGE,
        )
    return Platform(
        port_base=port_base,
        regions=tuple(planned),
        agents_per_region=agents_per_region,
        samples=samples,
        etcd_cells=etcd_cells,
        provider=provider,
    )
