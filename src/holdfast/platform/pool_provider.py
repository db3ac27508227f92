"""Reconciles node pools on this machine: starts an agent process for every desired pool node, and stops the others.

- A node is stopped only after the region's API shows no Binding on it.
- Every started process is recorded, so that another provider or `holdfast down` finds it.
- The provider is level-triggered and keeps no other state. It may be killed at any moment.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.join_tokens import JOIN_TOKENS_PATH as TOKENS
from holdfast.platform.join_tokens import create_join_token
from holdfast.platform.layout import (
    AGENT_PORT_OFFSET,
    AGENTS_PER_REGION_MAX,
    PORTS_PER_AGENT,
    AgentPlan,
    Layout,
    Platform,
    RegionPlan,
    write_atomically,
)
from holdfast.platform.processes import PLATFORM_ENV, identify, is_alive
from holdfast.platform.programs import agent_program
from holdfast.platform.supervisor import ProcessRecord, stop_process

PATH = "/apis/holdfast.dev/v1"
POLL_EVERY_S = 1.0
# Lifetime of the join token of a pool node. An agent that starts later gets a new token.
TOKEN_TTL_S = 600.0


class LocalPoolNode(msgspec.Struct, frozen=True):
    """One desired node of a NodePool."""

    region: str
    pool: str
    name: str
    zone: str
    capacity: dict[str, str]


class NodeProvider(Protocol):
    """Starts and stops machines for pool nodes. All methods are idempotent."""

    def running(self) -> set[str]:
        """Names of the nodes that this provider has started and not stopped."""

    def start(self, node: LocalPoolNode) -> None: ...

    def stop(self, name: str) -> None:
        """Stops the node. Returns when its processes have exited."""


class LocalNodeProvider:
    """Provider whose nodes are agent processes on this machine."""

    def __init__(self, layout: Layout, platform: Platform, api_of: Callable[[str], CellApi]) -> None:
        self._layout = layout
        self._platform = platform
        self._api_of = api_of
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def running(self) -> set[str]:
        return {name for name, record in self._records() if record.identity is not None and is_alive(record.identity)}

    def _records(self) -> Iterable[tuple[str, ProcessRecord]]:
        planned = {agent.name for region in self._platform.regions for agent in region.agents}
        for path in sorted((self._layout.run / "processes").glob("agent-*.json")):
            name = path.stem.removeprefix("agent-")
            if name in planned:
                continue
            try:
                yield name, msgspec.json.decode(path.read_bytes(), type=ProcessRecord)
            except (OSError, msgspec.MsgspecError):
                continue

    def start(self, node: LocalPoolNode) -> None:
        region = next(r for r in self._platform.regions if r.name == node.region)
        plan = AgentPlan(name=node.name, zone=node.zone, ports=self._ports(region), capacity=node.capacity)
        if not self._layout.identity(node.name).exists():
            self._token(region, node.name)
        program = agent_program(plan, region, self._layout, dns=self._platform.dns, pool=node.pool)
        with self._layout.log(program.name).open("ab") as log:
            popen = subprocess.Popen(
                program.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **program.env, PLATFORM_ENV: str(self._layout.root)},
                cwd=self._layout.root,
                start_new_session=True,
            )
        self._started[node.name] = popen
        record = ProcessRecord(program=program, identity=identify(popen.pid), started_at=time.time())
        write_atomically(self._layout.record(program.name), msgspec.json.encode(record))

    def _token(self, region: RegionPlan, name: str) -> None:
        api = self._api_of(region.name)
        token = f"pool-{name}"
        try:
            api.request("DELETE", f"{TOKENS}/{token}")  # left by a start that ended before the agent joined
        except ApiRefusal as refusal:
            if refusal.status != 404:
                raise
        text = create_join_token(api, region.name, token, node=name, ttl_s=TOKEN_TTL_S)
        self._layout.join_token(name).parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._layout.join_token(name), text.encode() + b"\n")

    def _ports(self, region: RegionPlan) -> tuple[int, int]:
        """A free port range after the ranges of the platform's own agents."""
        first = len(self._platform.regions) * AGENTS_PER_REGION_MAX
        planned = sum(len(r.agents) for r in self._platform.regions)
        used_names = {argument for _, record in self._records() for argument in record.program.argv if "-" in argument}
        for number in range(planned, planned + first):
            start = self._platform.port_base + AGENT_PORT_OFFSET + number * PORTS_PER_AGENT
            if f"{start}-{start + PORTS_PER_AGENT - 1}" not in used_names and start + PORTS_PER_AGENT <= 65536:
                return start, start + PORTS_PER_AGENT - 1
        raise CommandError(
            f"region {region.name}: no free ports for another pool node",
            next_step="lower spec.maxNodes of the NodePool",
        )

    def stop(self, name: str) -> None:
        for known, record in self._records():
            if known == name and record.identity is not None:
                stop_process(record.program, record.identity)
                self._layout.record(record.program.name).unlink(missing_ok=True)
        popen = self._started.pop(name, None)
        if popen is not None:
            popen.wait()


def acquire_provider_lock(layout: Layout) -> None:
    """Acquires the provider lock of the platform until the process exits. Two providers would start a node twice."""
    handle = os.open(layout.run / "provider.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise CommandError(
            f"platform {layout.root}: a node provider is already running (holdfast up starts one)",
            next_step="holdfast up --no-provider on a new platform, or use the running provider",
            code=ExitCode.CONFLICT,
        ) from None


def desired_pool_nodes(pools: Iterable[dict[str, Any]], region: str) -> dict[str, LocalPoolNode]:
    """The desired nodes of the region's pools, by name."""
    found: dict[str, LocalPoolNode] = {}
    for pool in pools:
        capacity = {name: str(amount) for name, amount in pool["spec"].get("capacity", {}).items()}
        for node in pool.get("status", {}).get("nodes", []):
            name, pool_name = node["name"], pool["metadata"]["name"]
            found[name] = LocalPoolNode(region, pool_name, name, node.get("zone", ""), capacity)
    return found


def reconcile_pools(api: CellApi, region: str, provider: NodeProvider, say: Callable[[str], None]) -> None:
    """Starts missing nodes. Stops surplus nodes without Bindings and deletes their Node objects."""
    declared = api.list("nodepools")
    pools = {pool["metadata"]["name"] for pool in declared}
    meant, running = desired_pool_nodes(declared, region), provider.running()
    if not pools and not running:
        return
    for name in sorted(meant.keys() - running):
        provider.start(meant[name])
        say(f"{name}: started, for pool {meant[name].pool} in {region}")
    nodes = {n["metadata"]["name"]: n for n in api.list("nodes") if n["spec"].get("pool") in pools}
    for name in sorted(nodes.keys() - meant.keys()):
        if _bound(api, name):
            continue  # the node is cordoned, so it gets no new Binding and is stopped later
        provider.stop(name)
        api.request("DELETE", f"{PATH}/nodes/{quote(name)}")
        say(f"{name}: stopped and deleted, because no replica was bound to it")


def _bound(api: CellApi, node: str) -> bool:
    bindings: list[dict[str, Any]] = api.list("bindings")
    return any(binding["spec"].get("node") == node for binding in bindings)
