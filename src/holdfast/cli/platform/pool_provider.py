"""Makes node pools true on this machine: starts an agent for every node that should exist, stops those that should not.

A provider is a port of three verbs; this one's machines are agent processes. What always holds: a node is stopped only
after the region's API says that nothing is bound on it; every process is recorded before it can be forgotten, so that
another provider, or `holdfast down`, finds it. It looks at what is, never at what happened: it may die at any moment.
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

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.http import Api, Refusal
from holdfast.cli.platform.enrol import PATH as TOKENS
from holdfast.cli.platform.enrol import make_token
from holdfast.cli.platform.layout import (
    AGENT_PORTS_FROM,
    MAX_AGENTS_PER_REGION,
    PORTS_PER_AGENT,
    AgentPlan,
    Layout,
    Platform,
    RegionPlan,
    write_whole,
)
from holdfast.cli.platform.processes import MARK, alive, identify
from holdfast.cli.platform.programs import agent_program
from holdfast.cli.platform.supervisor import Record, stop_one

PATH = "/apis/holdfast.dev/v1"
LOOK_EVERY_S = 1.0
TOKEN_TTL_S = 600.0


class PoolNode(msgspec.Struct, frozen=True):
    """One node that should exist, as the region's NodePool says."""

    region: str
    pool: str
    name: str
    zone: str
    capacity: dict[str, str]


class Provider(Protocol):
    """Whoever has machines. Each verb may be repeated: doing again what is done changes nothing."""

    def running(self) -> set[str]:
        """The nodes this provider has started and not stopped, by name."""

    def start(self, node: PoolNode) -> None: ...

    def stop(self, name: str) -> None:
        """Returns when nothing of the node runs any more."""


class LocalProvider:
    """Nodes are agent processes of a platform on this machine."""

    def __init__(self, layout: Layout, platform: Platform, api_of: Callable[[str], Api]) -> None:
        self._layout = layout
        self._platform = platform
        self._api_of = api_of
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def running(self) -> set[str]:
        return {name for name, record in self._records() if record.identity is not None and alive(record.identity)}

    def _records(self) -> Iterable[tuple[str, Record]]:
        planned = {agent.name for region in self._platform.regions for agent in region.agents}
        for path in sorted((self._layout.run / "processes").glob("agent-*.json")):
            name = path.stem.removeprefix("agent-")
            if name in planned:
                continue
            try:
                yield name, msgspec.json.decode(path.read_bytes(), type=Record)
            except (OSError, msgspec.MsgspecError):
                continue

    def start(self, node: PoolNode) -> None:
        region = next(r for r in self._platform.regions if r.name == node.region)
        plan = AgentPlan(name=node.name, zone=node.zone, ports=self._ports(region), capacity=node.capacity)
        if not self._layout.identity(node.name).exists():
            self._token(region, node.name)
        program = agent_program(plan, region, self._layout, pool=node.pool)
        with self._layout.log(program.name).open("ab") as log:
            popen = subprocess.Popen(
                program.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **program.env, MARK: str(self._layout.root)},
                cwd=self._layout.root,
                start_new_session=True,
            )
        self._started[node.name] = popen
        record = Record(program=program, identity=identify(popen.pid), started_at=time.time())
        write_whole(self._layout.record(program.name), msgspec.json.encode(record))

    def _token(self, region: RegionPlan, name: str) -> None:
        api = self._api_of(region.name)
        token = f"pool-{name}"
        try:
            api.request("DELETE", f"{TOKENS}/{token}")  # of an earlier start that ended before the agent joined
        except Refusal as refusal:
            if refusal.status != 404:
                raise
        text = make_token(api, region.name, token, node=name, ttl_s=TOKEN_TTL_S)
        self._layout.join_token(name).parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(self._layout.join_token(name), text.encode() + b"\n")

    def _ports(self, region: RegionPlan) -> tuple[int, int]:
        """A range of its own: behind those of the platform's agents, one that no running node of a pool has."""
        first = len(self._platform.regions) * MAX_AGENTS_PER_REGION
        planned = sum(len(r.agents) for r in self._platform.regions)
        taken = {word for _, record in self._records() for word in record.program.argv if "-" in word}
        for number in range(planned, planned + first):
            start = self._platform.port_base + AGENT_PORTS_FROM + number * PORTS_PER_AGENT
            if f"{start}-{start + PORTS_PER_AGENT - 1}" not in taken and start + PORTS_PER_AGENT <= 65536:
                return start, start + PORTS_PER_AGENT - 1
        raise Stop(f"there are no ports left for another node in {region.name}", next_step="choose a lower maxNodes")

    def stop(self, name: str) -> None:
        for known, record in self._records():
            if known == name and record.identity is not None:
                stop_one(record.program, record.identity)
                self._layout.record(record.program.name).unlink(missing_ok=True)
        popen = self._started.pop(name, None)
        if popen is not None:
            popen.wait()


def alone(layout: Layout) -> None:
    """Takes the right to provide for this platform, held until the process ends: two would start a node twice."""
    handle = os.open(layout.run / "provider.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise Stop(
            "another process provides nodes to the pools of this platform already",
            why="holdfast up starts one, unless it was told not to",
            next_step="holdfast pool list shows what it does; up --no-provider leaves it to you",
            code=Exit.CONFLICT,
        ) from None


def wanted(pools: Iterable[dict[str, Any]], region: str) -> dict[str, PoolNode]:
    """Every node that the region's pools say should exist."""
    found: dict[str, PoolNode] = {}
    for pool in pools:
        capacity = {name: str(amount) for name, amount in pool["spec"].get("capacity", {}).items()}
        for node in pool.get("status", {}).get("nodes", []):
            name, pool_name = node["name"], pool["metadata"]["name"]
            found[name] = PoolNode(region, pool_name, name, node.get("zone", ""), capacity)
    return found


def converge(api: Api, region: str, provider: Provider, say: Callable[[str], None]) -> None:
    """One step: starts what is missing, ends what should not be and holds nothing, and removes its Node."""
    declared = api.list("nodepools")
    pools = {pool["metadata"]["name"] for pool in declared}
    meant, running = wanted(declared, region), provider.running()
    if not pools and not running:
        return
    for name in sorted(meant.keys() - running):
        provider.start(meant[name])
        say(f"{name}: started, for pool {meant[name].pool} in {region}")
    there = {n["metadata"]["name"]: n for n in api.list("nodes") if n["spec"].get("pool") in pools}
    for name in sorted(there.keys() - meant.keys()):
        if _bound(api, name):
            continue  # the API's own word, and the node is closed: nothing new can come
        provider.stop(name)
        api.request("DELETE", f"{PATH}/nodes/{quote(name)}")
        say(f"{name}: stopped and removed, as it held nothing")


def _bound(api: Api, node: str) -> bool:
    bindings: list[dict[str, Any]] = api.list("bindings")
    return any(binding["spec"].get("node") == node for binding in bindings)
