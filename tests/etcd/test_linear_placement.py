"""Reserve and bind are linearizable: several clients, two authorities that replace each other, and etcd under faults.
One order per replica and per device explains every response.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time

import pytest
from tests.authority.cell import WHO, Cell, devices
from tests.etcd.fleet import Proxy
from tests.etcd.linear import NEVER, UNKNOWN, Call, Place, Take, device, linearizable, replica
from tests.etcd_cluster import Cluster

from holdfast.foundation.ports import SystemPorts
from holdfast.model.binding import Intent
from holdfast.model.errors import Ambiguous, Fault
from holdfast.model.placement_api import BindItem, BindRequest, PlacementResult, RenewItem, RenewRequest
from holdfast.model.template import template_hash
from holdfast.store.etcd.store import open_store
from holdfast.store.etcd.target import EtcdTarget

REPLICAS, DEVICES, CLIENTS = 60, 20, 6
NODES = ("n1", "n2", "n3")
FAULTS_ROUNDS = 3 if os.environ.get("HOLDFAST_PROVE") else 1
CALLS_MIN = 300


class Pair:
    """Two servers of one region, each behind its own proxies; one of them is the authority."""

    def __init__(self, cells: list[Cell], wires: list[list[Proxy]]) -> None:
        self.cells = cells
        self.wires = wires
        self.leading = 0

    @classmethod
    async def open(cls, endpoints: tuple[str, ...]) -> Pair:
        cells, wires = [], []
        for _ in range(2):
            members = [await Proxy(int(url.rpartition(":")[2])).start() for url in endpoints]
            through = tuple(f"http://127.0.0.1:{wire.port}" for wire in members)
            ports = SystemPorts()
            cell = Cell(await open_store("placed", EtcdTarget(endpoints=through)), ports.clock)
            cell.ports.ids = ports.ids  # type: ignore[assignment]
            await cell.objects.start()
            cells.append(cell)
            wires.append(members)
        return cls(cells, wires)

    async def take_over(self) -> None:
        """The other server is elected, whatever the first is doing."""
        other = 1 - self.leading
        for _ in range(100):
            try:
                await self.cells[other].lead(run=True)
            except Fault:
                await asyncio.sleep(0.1)
                continue
            self.leading = other
            return
        raise AssertionError("nobody can take over")

    async def keep_alive(self) -> None:
        items = tuple(RenewItem(node, 1) for node in (*NODES, "gpus"))
        while True:
            for cell in self.cells:
                try:
                    async with asyncio.timeout(3):
                        await cell.authority.renew(WHO, RenewRequest(items))
                except (Fault, TimeoutError):
                    pass
            await asyncio.sleep(1)

    async def close(self) -> None:
        for cell, wires in zip(self.cells, self.wires, strict=True):
            for wire in wires:
                wire.let_through()
                wire.heal()
            await cell.close()
            for wire in wires:
                wire.end()


class Clients:
    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.replicas: dict[str, list[Call]] = {}
        self.devices: dict[str, list[Call]] = {}
        self.ended = False

    @property
    def calls(self) -> int:
        return sum(len(calls) for calls in (*self.replicas.values(), *self.devices.values()))

    async def run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self.ended:
            cell = self._pair.cells[chance.randrange(2)]
            if chance.random() < 0.6:
                operation = chance.choice(
                    (Place(chance.choice(NODES)), Place(chance.choice(NODES), bind=False), Place("", reserve=False))
                )
                await self.place(cell, f"r-{chance.randrange(REPLICAS)}", operation)
            else:
                await self.take(cell, f"g-{chance.randrange(DEVICES)}", chance.randrange(3))
            await asyncio.sleep(chance.uniform(0.0, 0.02))

    async def place(self, cell: Cell, name: str, operation: Place) -> None:
        item = cell.get_replica(name)
        intent = Intent(item.uid, template_hash(item.spec.template), 1)

        async def ask() -> PlacementResult:
            if operation.reserve:
                return (await cell.reserve(cell.item(item, operation.node, intent=intent), bind=operation.bind))[0]
            bind = BindItem(item.metadata.namespace, name, intent)
            return (await cell.authority.bind(WHO, BindRequest((bind,)))).results[0]

        await self._record(self.replicas.setdefault(name, []), operation, ask)

    async def take(self, cell: Cell, name: str, contender: int) -> None:
        item = cell.get_replica(f"{name}-{contender}")
        index = int(name.removeprefix("g-"))

        async def ask() -> PlacementResult:
            claim = cell.item(item, "gpus", devices=devices(f"gpu-{index}"))
            return (await cell.reserve(claim))[0]

        calls = self.devices.setdefault(name, [])
        await self._record(calls, Take(item.metadata.name), ask, whole=False)

    async def _record(self, calls: list[Call], operation: object, ask: object, *, whole: bool = True) -> None:
        sent = time.monotonic()
        try:
            answer: PlacementResult = await ask()  # type: ignore[operator]
        except Ambiguous:
            calls.append(Call(operation, UNKNOWN, sent, NEVER))
            return
        except Fault:
            return  # definitely refused: nothing happened
        result = str(answer.result)
        response = (result, answer.node if result != "Rejected" else "") if whole else result
        calls.append(Call(operation, response, sent, time.monotonic()))


async def set_up(cell: Cell) -> None:
    for node in NODES:
        await cell.node(node, capacity={"cpu": "500", "memory": "500Gi"})
    await cell.node("gpus", gpus=DEVICES)
    await cell.grant()
    for number in range(REPLICAS):
        await cell.replica(f"r-{number}")
    for number, contender in itertools.product(range(DEVICES), range(3)):
        await cell.replica(f"g-{number}-{contender}", template={"resources": {"gpu": "1"}})


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_reserve_and_bind_are_linearizable_under_faults(own_cluster: Cluster) -> None:
    pair = await Pair.open(own_cluster.endpoints)
    clients = Clients(pair)
    beating: asyncio.Task[None] | None = None
    try:
        await set_up(pair.cells[0])
        await pair.take_over()
        beating = asyncio.create_task(pair.keep_alive())
        working = [asyncio.create_task(clients.run(seed)) for seed in range(CLIENTS)]
        for _ in range(FAULTS_ROUNDS):
            await faults(pair, own_cluster)
        async with asyncio.timeout(60):  # a loaded machine makes fewer calls in the same time
            while clients.calls <= CALLS_MIN:
                await asyncio.sleep(0.1)
        clients.ended = True
        async with asyncio.timeout(60):
            await asyncio.gather(*working)
        await settle(pair, clients)
    finally:
        clients.ended = True
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        await pair.close()
    for name, calls in clients.replicas.items():
        assert linearizable(calls, ("", ""), replica), (name, calls)
    for name, calls in clients.devices.items():
        assert linearizable(calls, "", device), (name, calls)
    every = [call for calls in (*clients.replicas.values(), *clients.devices.values()) for call in calls]
    unknown = sum(call.result is UNKNOWN for call in every)
    assert len(every) > CALLS_MIN
    print(f"{len(every)} calls on {REPLICAS} replicas and {DEVICES} devices, {unknown} unknown: linearizable")


async def faults(pair: Pair, cluster: object) -> None:
    await asyncio.sleep(0.3)
    # Calls are in flight when another authority takes over, and arrive afterwards.
    for wire in pair.wires[pair.leading]:
        wire.stall()
    await asyncio.sleep(0.2)
    stalled = pair.leading
    await pair.take_over()
    await asyncio.sleep(0.5)
    for wire in pair.wires[stalled]:
        wire.let_through()
    await asyncio.sleep(1)
    # The member that leads etcd dies under load.
    member = await asyncio.to_thread(cluster.leader)  # type: ignore[attr-defined]
    member.kill()
    await asyncio.sleep(2)
    member.start()
    await asyncio.sleep(1)
    # The authority is partitioned from etcd and replaced; then it reconnects.
    cut = pair.leading
    for wire in pair.wires[cut]:
        wire.cut()
    await asyncio.sleep(0.5)
    await pair.take_over()
    for wire in pair.wires[cut]:
        wire.heal()
    await asyncio.sleep(1)


async def settle(pair: Pair, clients: Clients) -> None:
    """A last round without faults: the final state of every replica and device must fit all earlier responses."""
    async with asyncio.timeout(60):
        cell = pair.cells[pair.leading]
        for number in range(REPLICAS):
            calls = clients.replicas.setdefault(f"r-{number}", [])
            while not calls or calls[-1].answered == NEVER or calls[-1].sent < time.monotonic() - 5:
                await clients.place(cell, f"r-{number}", Place("n1"))
        for number in range(DEVICES):
            await clients.take(cell, f"g-{number}", 0)
