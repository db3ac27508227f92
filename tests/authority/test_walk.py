"""A random walk over the authority, with unanswered commits, cordons, fences, resizes and takeovers.

After every step the invariants are checked on the stored objects, not on the authority's memory.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from tests.authority.cell import WHO, Cell

from holdfast.model.binding import Binding, DesiredRunState, Reservation, ReservationPhase
from holdfast.model.errors import Ambiguous, Unavailable
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.node import Node, node_capacity
from holdfast.model.placement_api import BindItem, BindRequest, PlacementOutcome, ReleaseAction
from holdfast.model.quantity import add, amounts
from holdfast.model.replica import Phase, Replica
from holdfast.model.template import Port

STEPS = 150
SHAPES: list[dict[str, Any]] = [
    {"resources": {"cpu": "2"}},
    {"resources": {"cpu": "1", "gpu": "1"}},
    {"resources": {"gpu": "400m"}, "ports": (Port("http"), Port("x", 9000))},
    {"resources": {"cpu": "500m", "memory": "4Gi"}, "ports": (Port("http"),)},
]


def _claimed(replica: Replica) -> bool:
    placed = replica.status.placement
    return bool(placed.reservation or placed.binding)


class Walk:
    def __init__(self, cell: Cell, rng: random.Random) -> None:
        self.cell = cell
        self.rng = rng
        self.shrunk: set[str] = set()

    async def begin(self) -> None:
        for name in ("n1", "n2"):
            await self.cell.node(name, gpus=2, capacity={"cpu": "6", "memory": "16Gi"}, port_range=(20000, 20003))
        await self.cell.grant(limit={"cpu": "9", "memory": "20Gi", "gpu": "3"})
        await self.cell.lead(run=True)
        for index in range(14):
            shape = SHAPES[index % len(SHAPES)]
            await self.cell.replica(f"r-{index}", template=shape, reclaimable=index % 5 == 0)

    async def step(self) -> None:
        acts = (
            [self.place] * 8
            + [self.reserve_only] * 2
            + [self.bind] * 2
            + [self.stop, self.acknowledge, self.free_claim] * 3
        )
        acts += [self.cordon, self.wait, self.wait, self.resize, self.take_over, self.heartbeat, self.heartbeat]
        act = self.rng.choice(acts)
        if self.rng.random() < 0.2:
            self.cell.store.faults = [self.rng.choice(["before", "after", "late", "before"])]
        task = asyncio.create_task(act())
        for _ in range(200):
            await self.cell.clock.advance(0.05)
            if task.done():
                break
        try:
            await task
        except (Unavailable, Ambiguous):
            await self.take_over()
        for txn in self.cell.store.late:
            with pytest.raises(Exception, match=r"expected|exists"):
                await self.cell.store.inner.commit(txn)
        self.cell.store.late, self.cell.store.faults = [], []
        self.check()

    def pick(self, *, claimed: bool) -> Replica | None:
        found = [r for r in self.cell.every(Replica) if _claimed(r) == claimed]
        return self.rng.choice(found) if found else None

    async def place(self) -> None:
        picked = [r for r in (self.pick(claimed=False), self.pick(claimed=False), self.pick(claimed=True)) if r]
        await self.cell.reserve(*(self.cell.item(r, self.rng.choice(["n1", "n2"])) for r in picked))

    async def reserve_only(self) -> None:
        replica = self.pick(claimed=False)
        if replica is not None:
            await self.cell.reserve(self.cell.item(replica, self.rng.choice(["n1", "n2"])), bind=False)

    async def bind(self) -> None:
        for replica in self.cell.every(Replica):
            placed = replica.status.placement
            if placed.reservation and not placed.binding:
                item = BindItem(replica.metadata.namespace, replica.metadata.name, self.cell.item(replica).intent)
                await self.cell.authority.bind(WHO, BindRequest((item,)))
                return

    async def stop(self) -> None:
        replica = self.pick(claimed=True)
        if replica is not None:
            await self.cell.release(replica, ReleaseAction.STOP)

    async def free_claim(self) -> None:
        replica = self.pick(claimed=True)
        if replica is None:
            return
        placed = replica.status.placement
        binding = self.cell.binding(placed.binding) if placed.binding else None
        node = self.cell.get_node(placed.node)
        answer = await self.cell.release(replica, ReleaseAction.FREE)
        if answer.result is PlacementOutcome.ACCEPTED and binding is not None:
            assert binding.status.phase is Phase.STOPPED or node.status.fence.fenced_epoch >= binding.spec.node_epoch

    async def acknowledge(self) -> None:
        stopping = [b for b in self.cell.every(Binding) if b.spec.desired is DesiredRunState.STOP]
        if stopping:
            await self.cell.acknowledge(self.rng.choice(stopping).metadata.name)

    async def cordon(self) -> None:
        name = self.rng.choice(["n1", "n2"])
        await self.cell.change_node(name, unschedulable=not self.cell.get_node(name).spec.unschedulable)

    async def resize(self) -> None:
        name, cpu = self.rng.choice(["n1", "n2"]), self.rng.choice(["3", "6"])
        await self.cell.change_node(name, capacity={"cpu": cpu, "memory": "16Gi"})
        self.shrunk.add(name)

    async def wait(self) -> None:
        await self.cell.clock.advance(self.rng.choice([1.0, 5.0, 25.0]))

    async def take_over(self) -> None:
        self.cell.store.faults = []
        self.cell.authority.stop()
        await self.cell.lead(run=True)

    async def heartbeat(self) -> None:
        """The agents renew; a fenced one registers again and reports its new epoch."""
        for name in ("n1", "n2"):
            node = self.cell.get_node(name)
            answer = await self.cell.renew(name, node.status.execution.epoch)
            if answer.result is PlacementOutcome.REJECTED:
                answer = await self.cell.renew(name, 0)
            assert answer.epoch > node.status.fence.fenced_epoch
            node = self.cell.get_node(name)
            running = msgspec.structs.replace(node.status.execution, epoch=answer.epoch)
            await self.cell.put(
                msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, execution=running))
            )

    def check(self) -> None:
        self.cell.check_ledger()
        bindings: list[Binding] = self.cell.every(Binding)
        bound = {(b.metadata.namespace, b.metadata.name) for b in bindings}
        waiting = [r for r in self.cell.every(Reservation) if (r.metadata.namespace, r.metadata.name) not in bound]
        live = [b for b in bindings if not b.spec.quota_released]
        uids = [c.spec.intent.replica_uid for c in [*live, *waiting]]
        assert len(uids) == len(set(uids)), "two live claims of one replica"
        used: dict[str, int] = {}
        for claim in [*live, *waiting]:
            add(used, amounts(claim.spec.resources))
        (copy,) = self.cell.every(GrantCopy)
        assert all(amount <= amounts(copy.spec.limit)[name] for name, amount in used.items())
        for node in self.cell.every(Node):
            self.check_node(node, [c for c in [*bindings, *waiting] if c.spec.node == node.metadata.name])
        for replica in self.cell.every(Replica):
            placed = replica.status.placement
            assert bool(placed.binding) == ((replica.metadata.namespace, placed.binding) in bound)
        for reservation in waiting:
            assert reservation.status.phase is ReservationPhase.FIRM

    def check_node(self, node: Node, claims: list[Any]) -> None:
        total: dict[str, int] = {}
        owners: dict[str, int] = {}
        ports: list[int] = []
        for claim in claims:
            add(total, amounts(claim.spec.resources))
            ports += claim.spec.ports.values()
            for device in claim.spec.devices:
                owners[device.id] = owners.get(device.id, 0) + device.milli
        assert len(ports) == len(set(ports))
        assert all(milli <= 1000 for milli in owners.values())
        if node.metadata.name not in self.shrunk:
            assert all(amount <= node_capacity(node)[name] for name, amount in total.items())


async def _walk(seed: int) -> None:
    cell = await Cell.open()
    try:
        walk = Walk(cell, random.Random(seed))
        await walk.begin()
        for _ in range(STEPS):
            await walk.step()
    finally:
        await cell.close()


@pytest.mark.parametrize("seed", range(3))
async def test_invariants_hold_on_random_walk(seed: int) -> None:
    await _walk(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
async def test_invariants_hold_on_more_random_walks(seed: int) -> None:
    await _walk(seed)
