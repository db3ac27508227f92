"""Simulated users during the fault phase: they create, change, measure and delete workloads.

Every action has a number and its own random stream, so that removing one action does not change the others.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.client.contract import Client
from holdfast.model.errors import Fault
from holdfast.model.times import micro_text
from holdfast.model.workload import Load, LoadBlock, Workload
from holdfast.model.writes import Delete, SetStatus, Update
from holdfast.sim import sorts
from holdfast.sim.chaos import Chaos
from holdfast.sim.people import Land, Name, Wanted, create, want
from holdfast.sim.ports import EPOCH_S
from holdfast.sim.sorts import SORTS, respec

SERVICES_MAX = 12
ENDING = frozenset({"batch", "dated", "failing", "quick", "gang", "lone"})
CHANGE_EVERY_S = (2.0, 12.0)
LOADS_PERCENT = (20.0, 70.0, 140.0, 140.0)
REGRET_S = (0.1, 4.0)
Told = Callable[[str], None]
"""Records the description of an action before it is taken."""


async def keep_changing(client: Client, wanted: Wanted, land: Land, chance: random.Random, chaos: Chaos) -> None:
    """Takes random actions until the fault phase ends."""
    while True:
        await asyncio.sleep(chance.uniform(*CHANGE_EVERY_S))
        if chaos.healed:
            return
        wanted.serial += 1
        name, own = f"user#{wanted.serial}", random.Random(chance.getrandbits(64))
        if not chaos.allows(name):
            continue
        try:
            await measure(client, wanted, own)
            await change_something(client, wanted, land, own, partial(chaos.act, name))
        except Fault:
            continue


async def change_something(client: Client, wanted: Wanted, land: Land, chance: random.Random, told: Told) -> None:
    act = chance.choice(ACTS)
    living = sorted(name for name, count in wanted.services.items() if count is not None)
    if not wanted.tenants:
        return
    match act:
        case "cancel":
            await _cancel(client, wanted, chance, told)
        case "regret":
            await _regret(client, wanted, land, chance, told)
        case "batch":
            await _bring(client, wanted, something(wanted, land, chance, ends=True), told)
        case _ if act == "create" or not living:
            if len(living) < SERVICES_MAX:
                await _bring(client, wanted, something(wanted, land, chance, ends=False), told)
        case _:
            await _change_service(client, wanted, chance.choice(living), act=act, chance=chance, told=told)


async def _bring(client: Client, wanted: Wanted, made: Workload, told: Told) -> None:
    told(f"creates {made.metadata.namespace}/{made.metadata.name}")
    await want(client, wanted, made)


async def _change_service(
    client: Client, wanted: Wanted, name: Name, *, act: str, chance: random.Random, told: Told
) -> None:
    stored = await client.get(Workload, name[1], name[0])
    if stored is None:
        return
    if act == "delete":
        told(f"deletes {stored.key}")
        wanted.services[name] = None
        await client.commit([Delete("Workload", stored.key, stored.uid)])
        return
    changed = _changed(stored, act, chance)
    size = f" from {stored.spec.replicas} to {changed.spec.replicas}" if act == "scale" else ""
    told(f"{act}s {stored.key}{size}")
    wanted.services[name] = changed.spec.replicas
    wanted.made[name] = sorts.repaired(changed)
    await client.commit([Update(changed)])


ACTS = (
    "scale", "scale", "scale", "update", "update", "break", "pause", "delete", "create", "create",
    "batch", "batch", "batch", "cancel", "regret",
)  # fmt: skip


async def _cancel(client: Client, wanted: Wanted, chance: random.Random, told: Told) -> None:
    """Deletes a batch workload."""
    if not wanted.batches:
        return
    name = chance.choice(sorted(wanted.batches))
    stored = await client.get(Workload, name[1], name[0])
    if stored is not None and not stored.metadata.terminating:
        told(f"cancels {stored.key}")
        await client.commit([Delete("Workload", stored.key, stored.uid)])


async def _regret(client: Client, wanted: Wanted, land: Land, chance: random.Random, told: Told) -> None:
    """Creates a workload that is slow to schedule, and deletes it before it is placed."""
    known = [sort for sort in ("gang", "urgent") if sort in land.sorts]
    if not known:
        return
    made = SORTS[chance.choice(known)](chance.choice(wanted.tenants), f"regret{wanted.serial}", land.regions, chance)
    name = (made.metadata.namespace, made.metadata.name)
    wanted.services[name] = None
    told(f"creates {name[0]}/{name[1]} and deletes it at once")
    await create(client, made)
    await asyncio.sleep(chance.uniform(*REGRET_S))
    stored = await client.get(Workload, name[1], name[0])
    if stored is not None:
        await client.commit([Delete("Workload", stored.key, stored.uid)])


async def measure(client: Client, wanted: Wanted, chance: random.Random) -> None:
    """Pushes load metrics of autoscaled workloads."""
    for name in sorted(name for name, made in wanted.made.items() if made.spec.autoscale is not None):
        if wanted.services.get(name) is None:
            continue
        stored = await client.get(Workload, name[1], name[0])
        if stored is None or stored.metadata.terminating or stored.spec.autoscale is None:
            continue
        now = micro_text(EPOCH_S + asyncio.get_running_loop().time())
        load = LoadBlock(metrics=(Load(stored.spec.autoscale.metric, chance.choice(LOADS_PERCENT), now),))
        await client.commit([SetStatus("Workload", stored.key, stored.uid, blocks={"load": load})])


def _changed(stored: Workload, act: str, chance: random.Random) -> Workload:
    match act:
        case "scale":
            return respec(stored, replicas=chance.randint(0, 2 if stored.spec.exclusive is not None else 4))
        case "break":
            return sorts.broken(stored, chance)
        case "pause":
            rollout = msgspec.structs.replace(stored.spec.rollout, paused=not stored.spec.rollout.paused)
            return respec(stored, rollout=rollout)
        case _:
            template = msgspec.structs.replace(stored.spec.template, env={"VERSION": str(chance.randint(1, 1000))})
            return respec(stored, template=template)


async def look_on(client: Client, tenant: str) -> None:
    """Keeps a watch of the tenant's workloads open, and reopens it whenever it breaks."""
    while True:
        try:
            listed = await client.list(Workload, tenant)
            async for _ in client.watch(Workload, tenant, after=listed.revision):
                pass
        except Fault:
            await asyncio.sleep(1.0)


def something(wanted: Wanted, land: Land, chance: random.Random, *, ends: bool) -> Workload:
    """A workload of a random profile of this run."""
    tenant = chance.choice(wanted.tenants)
    sort = chance.choice([name for name in land.sorts if (name in ENDING) == ends])
    return SORTS[sort](tenant, f"{sort}{wanted.serial}", land.regions, chance)
