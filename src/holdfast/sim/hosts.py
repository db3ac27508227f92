"""Simulated processes: cells with their disks, agents with their machines. Each can crash and restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from holdfast.agent.config import AgentConfig, VolumeSettings
from holdfast.agent.supervisor import TaskSupervisor
from holdfast.agent.volume_upkeep import VolumeUpkeep
from holdfast.cell.cell import Cell
from holdfast.cell.identity import establish_identity
from holdfast.client.contract import Client
from holdfast.model import limits
from holdfast.model.errors import Fault, StoreFailed
from holdfast.model.node import Device
from holdfast.model.principal import NODES, OPERATORS, REGIONS, Principal, controller, from_identity
from holdfast.model.quantity import STORAGE, amounts
from holdfast.sim.clients import ClientObserver, InCellClient, RemoteClient
from holdfast.sim.disk import Disk, MountedStore
from holdfast.sim.fault_injection import FaultInjector, FaultKind
from holdfast.sim.loop import Process, VirtualLoop
from holdfast.sim.machine import Machine, SimDriver, SimProber, SimStateStore, TaskRun
from holdfast.sim.network import Network
from holdfast.sim.ports import SimClock, SimPorts, random_stream
from holdfast.sim.releases import UNKNOWN_KIND_KEY, UNKNOWN_LABEL, ReleaseVersion
from holdfast.sim.version_skew import NextReleaseClient, VersionSkewProxy
from holdfast.sim.volumes import SimVolumes, call_now
from holdfast.sim.workload_profiles import DEDICATED_TENANT, SCARCE_RESOURCE, VOLUMES_PER_NODE
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore

REBOOT_S = (0.5, 20.0)
BOOT_RETRY_S = 1.0
NEVER_S = 1e9
FULL_SIZE_NODES = 6
"""Number of full-size machines per region. Further machines hold at most one replica."""
DEDICATED_NODES = (10, 11)
"""Machines dedicated to the tenant `DEDICATED_TENANT`."""
SMALL_PORT_RANGE = (20007, 20008)


class HostContext(msgspec.Struct):
    """Shared by all hosts of a simulation."""

    seed: int
    loop: VirtualLoop
    faults: FaultInjector
    network: Network
    observer: ClientObserver
    on_task_start: Callable[[Machine, TaskRun], None]
    on_task_stop: Callable[[str, str, TaskRun], None]
    """Called with region, node and task when an agent stops a task."""
    watches_enabled: bool = True
    resync_s: float = limits.RESYNC_S
    rebalances: bool = False
    maintenance: bool = False
    releases: dict[str, ReleaseVersion] = msgspec.field(default_factory=dict)
    """Releases of callers that run, or ran, another release."""
    before_bind: Callable[[str, str], None] = lambda cell, node: None
    """Called with the cell and node just before the second step of a bind in two steps."""


@cache
def principal_of(caller: str) -> Principal:
    """The principal of a caller: `region/NAME`, `node/REGION/NAME`, `scheduler/REGION`, or a person's name."""
    parts = caller.split("/")
    if parts[0] == "scheduler":
        return controller("scheduler", cell=parts[1])
    if parts[0] == "region":
        return from_identity(f"holdfast:region:{parts[1]}", (REGIONS,), credential="certificate")
    if parts[0] == "node":
        return from_identity(f"holdfast:node:{parts[1]}:{parts[2]}", (NODES,), credential="certificate")
    return from_identity(caller, (OPERATORS,), credential="token")


class SimPeerProbe:
    """Probe of another region over the simulated network."""

    def __init__(self, network: Network, own: str, peers: dict[str, CellHost]) -> None:
        self._network = network
        self._own = own
        self._peers = peers

    async def reachable(self, region: str, endpoint: str) -> bool:
        host = self._peers.get(region)
        return (
            host is not None
            and host.serving_process() is not None
            and self._network.reachable(f"region/{self._own}", region)
        )


class CellHost:
    """The process of a cell across restarts, on one disk."""

    def __init__(self, name: str, disk: Disk, setting: HostContext) -> None:
        self.name = name
        self.disk = disk
        self.clock = SimClock(setting.loop)
        self.incarnation = 0
        self.process: Process | None = None
        self.cell: Cell | None = None
        self.global_host: CellHost | None = None
        self.peers: dict[str, CellHost] = {}
        self.held_down = False
        self.refusal = ""
        """Why the cell refuses to start on its store."""
        self.release = ReleaseVersion.CURRENT
        self.overloaded = False
        """Whether it rejects calls, except those of the exempt priority level."""
        self._setting = setting
        self._mounted: MountedStore | None = None
        self._serving = False
        self._clients: dict[str, Client] = {}
        """Clients of the running cell by caller."""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def serving_process(self) -> Process | None:
        return self.process if self.alive and self._serving else None

    def client_for(self, caller: str) -> Client:
        assert self.cell is not None
        known = self._clients.get(caller)
        if known is None:
            known = self._clients[caller] = self.cell.client(principal_of(caller))
        release = self._setting.releases.get(caller, ReleaseVersion.CURRENT)
        if release is self.release and release is not ReleaseVersion.PREVIOUS:
            # Equal releases need no proxy, except the previous one: this code sends fields that it does not know.
            return NextReleaseClient(known) if release is ReleaseVersion.NEXT else known
        observer = self._setting.observer
        return VersionSkewProxy(
            known, release, self.release, lambda what: observer.skew_detected(self.name, f"{caller}: {what}")
        )

    def switch_release(self, release: ReleaseVersion) -> None:
        """Restarts the cell as another release, on the same disk."""
        self.crash()
        self.release = release
        self._setting.releases[f"region/{self.name}"] = release
        self.boot()

    def boot(self) -> None:
        if self.alive or self.held_down:
            return
        self.incarnation += 1
        self._serving = False
        shared, name = self._setting, f"{self.name}.{self.incarnation}"
        self.process = Process(self.name, self.incarnation)
        ports = SimPorts(self.clock, shared.seed, name)
        mounted = self._mounted = MountedStore(
            self.disk,
            shared.faults,
            shared.loop,
            random_stream(shared.seed, f"{name}/disk"),
            crash=self.crash_and_reboot,
            pause=self.pause,
            release=self.release,
        )
        peer = None
        if self.global_host is not None:
            peer = RemoteClient(
                shared.network,
                f"region/{self.name}",
                self.global_host,
                ports,
                shared.observer,
                watching=shared.watches_enabled,
            )

        is_next_release = self.release is ReleaseVersion.NEXT

        def wrap_client(client: Client) -> Client:
            inner = NextReleaseClient(client) if is_next_release else client
            return InCellClient(
                inner, shared.faults, shared.observer, watching=shared.watches_enabled, before_bind=shared.before_bind
            )

        async def main() -> None:
            while not await self._is_own_store(mounted, ports):
                await ports.clock.sleep(BOOT_RETRY_S)
            while True:
                self._clients.clear()
                cell = self.cell = Cell(
                    self.name,
                    mounted,
                    MemoryStore(),
                    ports,
                    identity=self.name,
                    global_client=peer,
                    probe=SimPeerProbe(shared.network, self.name, self.peers),
                    wrap_client=wrap_client,
                    resync_s=shared.resync_s,
                    rebalances=shared.rebalances,
                    maintenance=shared.maintenance,
                )
                try:
                    if is_next_release:
                        await mounted.commit(Txn(writes=(Put(UNKNOWN_KIND_KEY + name, b'{"metadata":{"name":"x"}}'),)))
                    await cell.start()
                except Fault as fault:  # the store is unavailable; a supervisor would restart the process
                    if isinstance(fault, StoreFailed) and not self.store_failed:
                        shared.observer.skew_detected(self.name, f"the {self.release} cannot read its disk: {fault}")
                    await ports.clock.sleep(BOOT_RETRY_S)
                    continue
                self._serving = True
                return

        shared.loop.spawn(self.process, main(), name=f"cell {name}")

    async def _is_own_store(self, mounted: MountedStore, ports: SimPorts) -> bool:
        """Whether the cell may start: its store is the one that its record names. As a cell's process does."""
        try:
            await establish_identity(mounted, self.name, self.disk.record, ports)
            self.refusal = ""
        except StoreFailed as refusal:
            self.refusal = refusal.message
        except Fault:
            return False  # the store is unavailable
        return not self.refusal

    def crash(self) -> None:
        if self.process is None or not self.process.alive:
            return
        self._serving = False
        self._setting.loop.kill(self.process)
        self._setting.network.reset(self.process)
        if self._mounted is not None:
            self._mounted.unmount()
            self._mounted = None

    def crash_and_reboot(self) -> None:
        """Crashes and restarts after a random delay."""
        self.crash()
        rng = random_stream(self._setting.seed, f"{self.name}.{self.incarnation}/reboot")
        self._setting.loop.call_from_environment(rng.uniform(*REBOOT_S), self.boot)

    def crash_after_steps(self, steps: int) -> None:
        """Crashes after this many event loop steps, at whatever await is reached then."""
        if self.process is not None and self.process.alive:
            self.process.steps_to_crash, self.process.on_crash_step = max(1, steps), self._crash_at_step

    def _crash_at_step(self) -> None:
        self._setting.faults.effective_counts[FaultKind.CRASH_AT_AWAIT] += 1
        self.crash_and_reboot()

    def pause(self, for_s: float) -> None:
        """SIGSTOP, then SIGCONT after `for_s`."""
        process = self.process
        if process is None or not process.alive or process.paused:
            return
        self._setting.loop.pause(process)
        self._setting.loop.call_from_environment(for_s, self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.alive and process.paused:
            self._setting.loop.resume(process)

    @property
    def store_failed(self) -> bool:
        return self._mounted is not None and self._mounted.failed

    def heal(self) -> None:
        """Ends all faults of this cell and starts it."""
        self.held_down = self.overloaded = False
        self.disk.unavailable = self.disk.full = False
        self.disk.timeout_at_commit = 0
        if self.process is not None:
            self.process.steps_to_crash = 0
        if self.store_failed:
            self.crash()
        self.boot()
        if self.process is not None:
            self._resume(self.process)


class AgentHost:
    """The process of an agent across restarts, on one machine."""

    def __init__(self, region: CellHost, config: AgentConfig, setting: HostContext) -> None:
        self.name = config.name
        self.zone = config.zone
        self.incarnation = 0
        self.process: Process | None = None
        self.machine = Machine(
            self.name,
            setting.loop,
            setting.faults,
            random_stream(setting.seed, f"{self.name}/machine"),
            setting.on_task_start,
        )
        self.region = region
        self.caller = f"node/{region.name}/{self.name}"
        self.held_down = False
        self.release = ReleaseVersion.CURRENT
        self.decommissioned = False
        """Whether the node provider has removed the machine. It then never boots again."""
        self._config = config
        self._setting = setting

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def boot(self) -> None:
        if self.alive or self.held_down or self.decommissioned:
            return
        self.incarnation += 1
        self.machine.powered = True
        shared, name = self._setting, f"{self.name}.{self.incarnation}"
        self.process = Process(self.name, self.incarnation)
        ports = SimPorts(self.machine.clock, shared.seed, name)
        client = RemoteClient(
            shared.network, self.caller, self.region, ports, shared.observer, watching=shared.watches_enabled
        )
        release = self.release
        driver = SimDriver(self.machine, shared.faults, random_stream(shared.seed, f"{name}/driver"), release)
        driver.on_stop = lambda work: shared.on_task_stop(self.region.name, self.name, work)

        async def main() -> None:
            supervisor = TaskSupervisor(
                self._config if release is not ReleaseVersion.NEXT else _next_release_config(self._config),
                client,
                drivers={"process": driver},
                prober=SimProber(self.machine, shared.faults),
                memory=SimStateStore(self.machine, release),
                ports=ports,
            )
            async with asyncio.TaskGroup() as group:
                if self._config.volumes.path:
                    store = SimVolumes(self.machine)
                    running = lambda: [task for task, _ in supervisor.running_tasks()]  # noqa: E731 - read at every round
                    upkeep = VolumeUpkeep(self.name, client, ports, store, running=running, call=call_now)
                    group.create_task(upkeep.run())
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
        self._setting.loop.call_from_environment(for_s, self._resume, process)

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
    def has_previous_release(self) -> bool:
        """Whether the agent or its cell runs the previous release."""
        return ReleaseVersion.PREVIOUS in (self.release, self.region.release)

    def switch_release(self, release: ReleaseVersion) -> None:
        """Restarts the agent as another release. Tasks keep running."""
        self.crash()
        self.release = release
        self._setting.releases[self.caller] = release
        if self.machine.powered:
            self.boot()

    def heal(self) -> None:
        self.held_down = self.machine.start_disabled = False
        self.machine.start_delay_s = 0.0
        self.boot()
        if self.process is not None:
            self._resume(self.process)


def _next_release_config(config: AgentConfig) -> AgentConfig:
    """The configuration of a next-release agent: with unknown resources, drivers and labels."""
    return msgspec.structs.replace(
        config,
        capacity={**config.capacity, "tomorrow.dev/npu": "4"},
        drivers=(*config.drivers, "tomorrow"),
        labels={**config.labels, UNKNOWN_LABEL: "label"},
    )


def agent_config(
    region: str, number: int, zones: tuple[str, ...], rng: random.Random, *, volumes: bool = False
) -> AgentConfig:
    """Configuration of one machine. Machines differ in GPUs, ports, scarce resources, pool, tenant and size."""
    gpus = number < FULL_SIZE_NODES and number % 3 == 1
    capacity: dict[str, Any] = {"cpu": rng.choice(("1", "2", "2")), "memory": rng.choice(("4Gi", "8Gi"))}
    if number >= FULL_SIZE_NODES:
        capacity = {"cpu": "500m", "memory": "1Gi"}
    elif gpus:
        capacity = {"cpu": "2", "memory": "8Gi"}
    elif number == 0:
        capacity[SCARCE_RESOURCE] = "1"
    if volumes:
        capacity[STORAGE] = VOLUMES_PER_NODE
    return AgentConfig(
        name=f"{region}-n{number}",
        region=region,
        zone=zones[number % len(zones)],
        state_dir="",
        pool="batch" if number % 5 == 4 else "default",
        capacity=capacity,
        labels={"disk": "fast" if number % 2 else "slow"},
        devices=tuple(Device(id=f"gpu-{n}", model=("T4", "A100")[n % 2]) for n in range(2 if gpus else 0)),
        port_range=SMALL_PORT_RANGE if number == 2 else (20000, 20040),
        tenant=DEDICATED_TENANT if number in DEDICATED_NODES else "",
        volumes=VolumeSettings("/volumes", VOLUMES_PER_NODE) if volumes else VolumeSettings(),
    )
