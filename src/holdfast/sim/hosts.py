"""The simulated processes: cells on their disks, agents on their machines. Each can die and come back."""

from __future__ import annotations

from typing import Any

from holdfast.agent.config import AgentConfig
from holdfast.agent.supervisor import Supervisor
from holdfast.cell import Cell
from holdfast.client.contract import Client
from holdfast.gate.principal import NODES, OPERATORS, REGIONS, Principal, from_identity
from holdfast.model.node import Device
from holdfast.sim.chaos import Chaos
from holdfast.sim.disk import Disk, Mounted
from holdfast.sim.loop import Process, VirtualLoop
from holdfast.sim.machine import Machine, SimDriver, SimMemory, SimProber
from holdfast.sim.network import Flaky, Network, RemoteClient
from holdfast.sim.ports import SimPorts, stream
from holdfast.store.memory import MemoryStore


def principal_of(caller: str) -> Principal:
    """`region/NAME`, `node/REGION/NAME`, or a person."""
    parts = caller.split("/")
    if parts[0] == "region":
        return from_identity(f"holdfast:region:{parts[1]}", (REGIONS,), credential="certificate")
    if parts[0] == "node":
        return from_identity(f"holdfast:node:{parts[1]}:{parts[2]}", (NODES,), credential="certificate")
    return from_identity(caller, (OPERATORS,), credential="token")


class CellHost:
    """A cell's process, life after life, on one disk."""

    def __init__(self, name: str, disk: Disk, *, loop: VirtualLoop, chaos: Chaos, network: Network, seed: int) -> None:
        self.name = name
        self.disk = disk
        self.lives = 0
        self.process: Process | None = None
        self.cell: Cell | None = None
        self.above: CellHost | None = None
        self._loop = loop
        self._chaos = chaos
        self._network = network
        self._seed = seed
        self._mounted: list[Mounted] = []

    def answering(self) -> Process | None:
        alive = self.process is not None and self.process.alive and not self.process.paused
        return self.process if alive else None

    def client_for(self, caller: str) -> Client:
        assert self.cell is not None
        return self.cell.client(principal_of(caller))

    def boot(self) -> None:
        self.lives += 1
        name = f"{self.name}.{self.lives}"
        self.process = Process(self.name, self.lives)
        ports = SimPorts(self._loop, self._seed, name)
        mounted = Mounted(self.disk, self._chaos, self._loop, stream(self._seed, f"{name}/disk"))
        self._mounted.append(mounted)
        there = None
        if self.above is not None:
            there = RemoteClient(self._network, f"region/{self.name}", self.above, ports)

        async def main() -> None:
            self.cell = Cell(
                self.name,
                mounted,
                MemoryStore(),
                ports,
                identity=self.name,
                there=there,
                outlet=lambda client: Flaky(client, self._chaos),
            )
            await self.cell.start()

        self._loop.spawn(self.process, main(), name=f"cell {name}")

    def crash(self) -> None:
        if self.process is not None and self.process.alive:
            self._loop.kill(self.process)
            for mounted in self._mounted:
                mounted.unmount()
            self._mounted.clear()


class AgentHost:
    """An agent's process, life after life, on one machine."""

    def __init__(
        self, region: CellHost, name: str, zone: str, *, seed: int, gpus: int, loop: VirtualLoop, chaos: Chaos,
        network: Network, capacity: dict[str, Any],
    ) -> None:  # fmt: skip
        self.name = name
        self.lives = 0
        self.process: Process | None = None
        self.machine = Machine(name, loop, chaos, stream(seed, f"{name}/machine"))
        self.region = region
        self.caller = f"node/{region.name}/{name}"
        self._config = AgentConfig(
            name=name, region=region.name, zone=zone, state_dir="", capacity=capacity,
            devices=tuple(Device(id=f"gpu-{n}", model="T4") for n in range(gpus)), port_range=(20000, 20200),
        )  # fmt: skip
        self._loop = loop
        self._chaos = chaos
        self._network = network
        self._seed = seed

    def boot(self) -> None:
        self.lives += 1
        self.machine.powered = True
        name = f"{self.name}.{self.lives}"
        self.process = Process(self.name, self.lives)
        ports = SimPorts(self._loop, self._seed, name)
        client = RemoteClient(self._network, self.caller, self.region, ports)
        driver = SimDriver(self.machine, self._chaos, stream(self._seed, f"{name}/driver"))

        async def main() -> None:
            supervisor = Supervisor(
                self._config, client, drivers={"process": driver}, prober=SimProber(self.machine),
                memory=SimMemory(self.machine), ports=ports,
            )  # fmt: skip
            await supervisor.run()

        self._loop.spawn(self.process, main(), name=f"agent {name}")

    def crash(self) -> None:
        if self.process is not None and self.process.alive:
            self._loop.kill(self.process)

    def lose_power(self) -> None:
        self.crash()
        self.machine.lose_power()
