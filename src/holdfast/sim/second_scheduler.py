"""A second scheduler of a region. It proposes random placements, most of them badly chosen or out of date.

The authority trusts no proposer: whatever is proposed, every invariant must hold.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.model.binding import Binding, DeviceClaim, Intent
from holdfast.model.errors import Fault
from holdfast.model.node import Node
from holdfast.model.placement_api import BindItem, BindRequest, ReserveItem, ReserveRequest
from holdfast.model.recovery_slot import RecoverySlot
from holdfast.model.replica import Replica
from holdfast.model.template import template_hash
from holdfast.sim.clients import RemoteClient
from holdfast.sim.ports import random_stream

if TYPE_CHECKING:
    from holdfast.sim.fault_schedule import ScheduledFault
    from holdfast.sim.simulation import Simulation

PROPOSE_EVERY_S = (0.1, 2.0)
BIND_DELAYS_S = ((0.0, 0.5), (0.0, 10.0), (55.0, 65.0))
"""Delays between reserve and bind. A reservation expires after a minute."""
ERROR_FRACTION = 0.06
"""Share of the proposals with a wrong uid, template, attempt or node; each is drawn on its own."""
VICTIMS_FRACTION = 0.3
RANKED = 1.0
"""Amount of a fault whose proposals are mostly for the pending replicas of the highest priority, which may preempt."""
T = TypeVar("T")


async def propose_randomly(simulation: Simulation, fault: ScheduledFault) -> None:
    """Proposes placements until the fault ends. Each proposal has its own client calls and random stream."""
    rng = random_stream(simulation.seed, f"second scheduler/{fault.name}")
    client = simulation.scheduler_client(fault.target)
    ends_s = simulation.loop.time() + fault.for_s
    async with asyncio.TaskGroup() as group:
        while simulation.loop.time() < ends_s and not simulation.faults.healed:
            await asyncio.sleep(rng.uniform(*PROPOSE_EVERY_S))
            chance = random.Random(rng.getrandbits(64))
            group.create_task(_propose(client, chance, ranked=fault.amount == RANKED))


async def _propose(client: RemoteClient, rng: random.Random, *, ranked: bool) -> None:
    try:
        replicas = [r for r in (await client.list(Replica)).items if not r.metadata.terminating]
        nodes = (await client.list(Node)).items
        if not replicas or not nodes:
            return
        waiting = [r for r in replicas if not r.status.placement.binding] or replicas
        if ranked:
            waiting = sorted(waiting, key=lambda r: -r.spec.priority)[:3]
        replica = rng.choice(waiting if rng.random() < 0.8 else replicas)
        item = await _proposal(client, replica, rng.choice(nodes), rng)
        bind = rng.random() < 0.5
        await client.reserve(ReserveRequest((item,), bind=bind))
        for _ in range(rng.choice((1, 1, 2))):
            await asyncio.sleep(rng.uniform(*rng.choice(BIND_DELAYS_S)))
            await client.bind(BindRequest((BindItem(item.namespace, item.replica, item.intent),)))
    except Fault:
        return


async def _proposal(client: RemoteClient, replica: Replica, node: Node, rng: random.Random) -> ReserveItem:
    namespace, template = replica.metadata.namespace, replica.spec.template
    intent = Intent(replica.uid, template_hash(template), replica.status.placement.attempt)
    if _errs(rng):
        intent = msgspec.structs.replace(intent, replica_uid="another")
    if _errs(rng):
        intent = msgspec.structs.replace(intent, template_hash="another")
    if _errs(rng):
        intent = msgspec.structs.replace(intent, attempt=intent.attempt - 1)
    devices: tuple[DeviceClaim, ...] = ()
    if node.spec.devices and rng.random() < 0.5:
        devices = tuple(
            DeviceClaim(rng.choice((device.id, device.id, "another")), rng.choice((500, 1000)))
            for device in _some(node.spec.devices, rng)
        )
    victims: tuple[str, ...] = ()
    if rng.random() < VICTIMS_FRACTION:
        bound = [b for b in (await client.list(Binding)).items if b.spec.node == node.metadata.name or _errs(rng)]
        victims = tuple(
            b.metadata.name if b.metadata.namespace == namespace else f"{b.metadata.namespace}/{b.metadata.name}"
            for b in _some(bound, rng)
        )
    slots: tuple[str, ...] = ()
    if rng.random() < 0.2:
        slots = tuple(slot.metadata.name for slot in _some((await client.list(RecoverySlot)).items, rng))
    name = "another" if _errs(rng) else node.metadata.name
    return ReserveItem(namespace, replica.metadata.name, intent, name, devices, victims, slots)


def _errs(rng: random.Random) -> bool:
    return rng.random() < ERROR_FRACTION


def _some(items: Sequence[T], rng: random.Random) -> list[T]:
    return rng.sample(items, min(len(items), rng.randint(1, 2)))
