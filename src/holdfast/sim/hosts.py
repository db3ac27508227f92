"""Simulated processes: cells with their disks, agents with their machines. Each can crash and restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from holdfast.agent.config import AgentConfig
from holdfast.agent.supervisor import Supervisor
from holdfast.cell import Cell
from holdfast.client.contract import Client
from holdfast.gate.principal import NODES, OPERATORS, REGIONS, Principal, from_identity
from holdfast.model import limits
from holdfast.model.errors import Fault, StoreFailed
from holdfast.model.node import Device
from holdfast.model.quantity import amounts
from holdfast.sim.chaos import Chaos, Kind
from holdfast.sim.clients import Ears, InsideClient, RemoteClient
from holdfast.sim.disk import Disk, Mounted
from holdfast.sim.interpreter import Foreteller, Interpreter
from holdfast.sim.loop import Process, VirtualLoop
from holdfast.sim.machine import Machine, SimDriver, SimMemory, SimProber, Work
from holdfast.sim.network import Network
from holdfast.sim.ports import SimClock, SimPorts, stream
from holdfast.sim.releases import MARK, UNKNOWN_KIND_KEY, Release
from holdfast.sim.sorts import SCARCE, SOLO
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore

REBOOT_S = (0.5, 20.0)
BOOT_RETRY_S = 1.0
NEVER_S = 1e9
MACHINES = 6
"""Number of full-size machines per region. Further machines hold at most one replica."""
SOLO_MACHINES = (10, 11)
"""Machines dedicated to the tenant `SOLO`."""
FEW_PORTS = (20007, 20008)


class Setting(msgspec.Struct):
    """Shared by all hosts of a simulation."""

    seed: int
    loop: VirtualLoop
    chaos: Chaos
    network: Network
    ears: Ears
    began: Callable[[Machine, Work], None]
    watching: bool = True
    resync_s: float = limits.RESYNC_S
    releases: dict[str, Release] = msgspec.field(default_factory=dict)
    """Releases of callers that run, or ran, another release."""


@cache
def principal_of(caller: str) -> Principal:
    """The principal of a caller: `region/NAME`, `node/REGION/NAME`, or a person's name."""
    parts = caller.split("/")
    if parts[0] == "region":
        return from_identity(f"holdfast:region:{parts[1]}", (REGIONS,), credential="certificate")
    if parts[0] == "node":
        return from_identity(f"holdfast:node:{parts[1]}:{parts[2]}", (NODES,), credential="certificate")
    return from_identity(caller, (OPERATORS,), credential="token")


class SidewaysProbe:
    """Probe of another region over the simulated network."""

    def __init__(self, network: Network, own: str, peers: dict[str, CellHost]) -> None:
        self._network = network
        self._own = own
        self._peers = peers

    async def reachable(self, region: str, endpoint: str) -> bool:
        host = self._peers.get(region)
        return (
            host is not None and host.answering() is not None and self._network.reachable(f"region/{self._own}", region)
        )


class CellHost:
    """The process of a cell across restarts, on one disk."""

    def __init__(self, name: str, disk: Disk, setting: Setting) -> None:
        self.name = name
        self.disk = disk
        self.clock = SimClock(setting.loop)
        self.lives = 0
        self.process: Process | None = None
        self.cell: Cell | None = None
        self.above: CellHost | None = None
        self.peers: dict[str, CellHost] = {}
        self.kept_down = False
        self.release = Release.PRESENT
        self.overloaded = False
        """Whether it rejects calls, except those of the exempt priority level."""
        self._setting = setting
        self._mounted: Mounted | None = None
        self._serving = False
        self._clients: dict[str, Client] = {}
        """Clients of the running cell by caller."""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def answering(self) -> Process | None:
        return self.process if self.alive and self._serving else None

    def client_for(self, caller: str) -> Client:
        assert self.cell is not None
        known = self._clients.get(caller)
        if known is None:
            known = self._clients[caller] = self.cell.client(principal_of(caller))
        here = self._setting.releases.get(caller, Release.PRESENT)
        if here is self.release and here is not Release.FORMER:
            # Equal releases need no proxy, except the previous one: this code sends fields that it does not know.
            return Foreteller(known) if here is Release.NEXT else known
        ears = self._setting.ears
        return Interpreter(known, here, self.release, lambda what: ears.misunderstood(self.name, f"{caller}: {what}"))

    def install(self, release: Release) -> None:
        """Restarts the cell as another release, on the same disk."""
        self.crash()
        self.release = release
        self._setting.releases[f"region/{self.name}"] = release
        self.boot()

    def boot(self) -> None:
        if self.alive or self.kept_down:
            return
        self.lives += 1
        self._serving = False
        shared, name = self._setting, f"{self.name}.{self.lives}"
        self.process = Process(self.name, self.lives)
        ports = SimPorts(self.clock, shared.seed, name)
        mounted = self._mounted = Mounted(
            self.disk,
            shared.chaos,
            shared.loop,
            stream(shared.seed, f"{name}/disk"),
            crash=self.stumble,
            pause=self.pause,
            release=self.release,
        )
        there = None
        if self.above is not None:
            there = RemoteClient(
                shared.network, f"region/{self.name}", self.above, ports, shared.ears, watching=shared.watching
            )

        foretells = self.release is Release.NEXT

        def outlet(client: Client) -> Client:
            inner = Foreteller(client) if foretells else client
            return InsideClient(inner, shared.chaos, shared.ears, watching=shared.watching)

        async def main() -> None:
            while True:
                self._clients.clear()
                cell = self.cell = Cell(
                    self.name,
                    mounted,
                    MemoryStore(),
                    ports,
                    identity=self.name,
                    there=there,
                    probe=SidewaysProbe(shared.network, self.name, self.peers),
                    outlet=outlet,
                    resync_s=shared.resync_s,
                )
                try:
                    if foretells:
                        await mounted.commit(Txn(writes=(Put(UNKNOWN_KIND_KEY + name, b'{"metadata":{"name":"x"}}'),)))
                    await cell.start()
                except Fault as fault:  # the store is unavailable; a supervisor would restart the process
                    if isinstance(fault, StoreFailed) and not self.store_failed:
                        shared.ears.misunderstood(self.name, f"the {self.release} cannot read its disk: {fault}")
                    await ports.clock.sleep(BOOT_RETRY_S)
                    continue
                self._serving = True
                return

        shared.loop.spawn(self.process, main(), name=f"cell {name}")

    def crash(self) -> None:
        if self.process is None or not self.process.alive:
            return
        self._serving = False
        self._setting.loop.kill(self.process)
        self._setting.network.reset(self.process)
        if self._mounted is not None:
            self._mounted.unmount()
            self._mounted = None

    def stumble(self) -> None:
        """Crashes and restarts after a random delay."""
        self.crash()
        chance = stream(self._setting.seed, f"{self.name}.{self.lives}/reboot")
        self._setting.loop.arrive_later(chance.uniform(*REBOOT_S), self.boot)

    def stumble_after(self, steps: int) -> None:
        """Crashes after this many event loop steps, at whatever await is reached then."""
        if self.process is not None and self.process.alive:
            self.process.fuse, self.process.blow = max(1, steps), self._stumble_here

    def _stumble_here(self) -> None:
        self._setting.chaos.felt[Kind.CRASH_AT_AWAIT] += 1
        self.stumble()

    def pause(self, for_s: float) -> None:
        """SIGSTOP, then SIGCONT after `for_s`."""
        process = self.process
        if process is None or not process.alive or process.paused:
            return
        self._setting.loop.pause(process)
        self._setting.loop.arrive_later(for_s, self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.alive and process.paused:
            self._setting.loop.resume(process)

    @property
    def store_failed(self) -> bool:
        return self._mounted is not None and self._mounted.failed

    def heal(self) -> None:
        """Ends all faults of this cell and starts it."""
        self.kept_down = self.overloaded = False
        self.disk.down = self.disk.full = False
        self.disk.trap = 0
        if self.process is not None:
            self.process.fuse = 0
        if self.store_failed:
            self.crash()
        self.boot()
        if self.process is not None:
            self._resume(self.process)


class AgentHost:
    """The process of an agent across restarts, on one machine."""

    def __init__(self, region: CellHost, config: AgentConfig, setting: Setting) -> None:
        self.name = config.name
        self.zone = config.zone
        self.lives = 0
        self.process: Process | None = None
        self.machine = Machine(
            self.name, setting.loop, setting.chaos, stream(setting.seed, f"{self.name}/machine"), setting.began
        )
        self.region = region
        self.caller = f"node/{region.name}/{self.name}"
        self.kept_down = False
        self.release = Release.PRESENT
        self.taken_away = False
        """Whether the node provider has removed the machine. It then never boots again."""
        self._config = config
        self._setting = setting

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def boot(self) -> None:
        if self.alive or self.kept_down or self.taken_away:
            return
        self.lives += 1
        self.machine.powered = True
        shared, name = self._setting, f"{self.name}.{self.lives}"
        self.process = Process(self.name, self.lives)
        ports = SimPorts(self.machine.clock, shared.seed, name)
        client = RemoteClient(shared.network, self.caller, self.region, ports, shared.ears, watching=shared.watching)
        release = self.release
        driver = SimDriver(self.machine, shared.chaos, stream(shared.seed, f"{name}/driver"), release)

        async def main() -> None:
            supervisor = Supervisor(
                self._config if release is not Release.NEXT else _foretold(self._config),
                client,
                drivers={"process": driver},
                prober=SimProber(self.machine, shared.chaos),
                memory=SimMemory(self.machine, release),
                ports=ports,
            )
            await supervisor.run()

        shared.loop.spawn(self.process, main(), name=f"agent {name}")

    def crash(self) -> None:
        if self.process is not None and self.process.alive:
            self._setting.loop.kill(self.process)

    def pause(self, for_s: float) -> None:
        process = self.process
        if process is None or not process.alive or process.paused:
            return
        self._setting.loop.pause(process)
        self._setting.loop.arrive_later(for_s, self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.alive and process.paused:
            self._setting.loop.resume(process)

    def lose_power(self) -> None:
        self.crash()
        self.machine.lose_power()

    async def shrink(self, for_s: float) -> None:
        """Halves the CPU capacity for `for_s`. Tasks keep running."""
        whole = self._config
        half: dict[str, Any] = {**whole.capacity, "cpu": f"{amounts(whole.capacity)['cpu'] // 2}m"}
        for config in (msgspec.structs.replace(whole, capacity=half), whole):
            self._config = config
            self.crash()
            self.boot()
            await asyncio.sleep(for_s if config is not whole else 0.0)

    @property
    def among_former(self) -> bool:
        """Whether the agent or its cell runs the previous release."""
        return Release.FORMER in (self.release, self.region.release)

    def install(self, release: Release) -> None:
        """Restarts the agent as another release. Tasks keep running."""
        self.crash()
        self.release = release
        self._setting.releases[self.caller] = release
        if self.machine.powered:
            self.boot()

    def heal(self) -> None:
        self.kept_down = self.machine.broken = False
        self.boot()
        if self.process is not None:
            self._resume(self.process)


def _foretold(config: AgentConfig) -> AgentConfig:
    """The configuration of a next-release agent: with unknown resources, drivers and labels."""
    return msgspec.structs.replace(
        config,
        capacity={**config.capacity, "tomorrow.dev/npu": "4"},
        drivers=(*config.drivers, "tomorrow"),
        labels={**config.labels, MARK: "label"},
    )


def agent_config(region: str, number: int, zones: tuple[str, ...], chance: random.Random) -> AgentConfig:
    """Configuration of one machine. Machines differ in GPUs, ports, scarce resources, pool, tenant and size."""
    gpus = number < MACHINES and number % 3 == 1
    capacity: dict[str, Any] = {"cpu": chance.choice(("1", "2", "2")), "memory": chance.choice(("4Gi", "8Gi"))}
    if number >= MACHINES:
        capacity = {"cpu": "500m", "memory": "1Gi"}
    elif gpus:
        capacity = {"cpu": "2", "memory": "8Gi"}
    elif number == 0:
        capacity[SCARCE] = "1"
    return AgentConfig(
        name=f"{region}-n{number}",
        region=region,
        zone=zones[number % len(zones)],
        state_dir="",
        pool="batch" if number % 5 == 4 else "default",
        capacity=capacity,
        labels={"disk": "fast" if number % 2 else "slow"},
        devices=tuple(Device(id=f"gpu-{n}", model=("T4", "A100")[n % 2]) for n in range(2 if gpus else 0)),
        port_range=FEW_PORTS if number == 2 else (20000, 20040),
        tenant=SOLO if number in SOLO_MACHINES else "",
    )
