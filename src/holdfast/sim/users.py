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
from holdfast.model.workload import LoadBlock, LoadMetric, Workload
from holdfast.model.writes import Delete, SetStatus, Update
from holdfast.sim import workload_profiles
from holdfast.sim.actors import DesiredObjects, Topology, WorkloadName, create_desired, create_object
from holdfast.sim.fault_injection import FaultInjector
from holdfast.sim.ports import EPOCH_S
from holdfast.sim.workload_profiles import PROFILES, with_spec

SERVICES_MAX = 12
BATCH_PROFILES = frozenset({"batch", "dated", "failing", "quick", "gang", "lone"})
CHANGE_EVERY_S = (2.0, 12.0)
LOADS_PERCENT = (20.0, 70.0, 140.0, 140.0)
CANCEL_AFTER_S = (0.1, 4.0)
ActionLog = Callable[[str], None]
"""Records the description of an action before it is taken."""


async def act_as_users(
    client: Client, desired: DesiredObjects, topology: Topology, rng: random.Random, faults: FaultInjector
) -> None:
    """Takes random actions until the fault phase ends."""
    while True:
        await asyncio.sleep(rng.uniform(*CHANGE_EVERY_S))
        if faults.healed:
            return
        desired.last_number += 1
        name, own = f"user#{desired.last_number}", random.Random(rng.getrandbits(64))
        if not faults.allows(name):
            continue
        try:
            await push_loads(client, desired, own)
            await take_random_action(client, desired, topology, own, partial(faults.record_user_action, name))
        except Fault:
            continue


async def take_random_action(
    client: Client, desired: DesiredObjects, topology: Topology, rng: random.Random, log: ActionLog
) -> None:
    act = rng.choice(ACTIONS)
    living = sorted(name for name, count in desired.services.items() if count is not None)
    if not desired.tenants:
        return
    match act:
        case "cancel":
            await _cancel(client, desired, rng, log)
        case "regret":
            await _create_and_delete(client, desired, topology, rng, log)
        case "batch":
            await _create(client, desired, random_workload(desired, topology, rng, ends=True), log)
        case _ if act == "create" or not living:
            if len(living) < SERVICES_MAX:
                await _create(client, desired, random_workload(desired, topology, rng, ends=False), log)
        case _:
            await _change_service(client, desired, rng.choice(living), act=act, rng=rng, log=log)


async def _create(client: Client, desired: DesiredObjects, workload: Workload, log: ActionLog) -> None:
    log(f"creates {workload.metadata.namespace}/{workload.metadata.name}")
    await create_desired(client, desired, workload)


async def _change_service(
    client: Client, desired: DesiredObjects, name: WorkloadName, *, act: str, rng: random.Random, log: ActionLog
) -> None:
    stored = await client.get(Workload, name[1], name[0])
    if stored is None:
        return
    if act == "delete":
        log(f"deletes {stored.key}")
        desired.services[name] = None
        await client.commit([Delete("Workload", stored.key, stored.uid)])
        return
    changed = _changed(stored, act, rng)
    size = f" from {stored.spec.replicas} to {changed.spec.replicas}" if act == "scale" else ""
    log(f"{act}s {stored.key}{size}")
    desired.services[name] = changed.spec.replicas
    desired.workloads[name] = workload_profiles.with_repaired_template(changed)
    await client.commit([Update(changed)])


ACTIONS = (
    "scale",
    "scale",
    "scale",
    "update",
    "update",
    "break",
    "pause",
    "delete",
    "create",
    "create",
    "batch",
    "batch",
    "batch",
    "cancel",
    "regret",
)


async def _cancel(client: Client, desired: DesiredObjects, rng: random.Random, log: ActionLog) -> None:
    """Deletes a batch workload."""
    if not desired.batches:
        return
    name = rng.choice(sorted(desired.batches))
    stored = await client.get(Workload, name[1], name[0])
    if stored is not None and not stored.metadata.terminating:
        log(f"cancels {stored.key}")
        await client.commit([Delete("Workload", stored.key, stored.uid)])


async def _create_and_delete(
    client: Client, desired: DesiredObjects, topology: Topology, rng: random.Random, log: ActionLog
) -> None:
    """Creates a workload that is slow to schedule, and deletes it before it is placed."""
    known = [profile for profile in ("gang", "urgent") if profile in topology.profiles]
    if not known:
        return
    workload = PROFILES[rng.choice(known)](
        rng.choice(desired.tenants), f"regret{desired.last_number}", topology.regions, rng
    )
    name = (workload.metadata.namespace, workload.metadata.name)
    desired.services[name] = None
    log(f"creates {name[0]}/{name[1]} and deletes it at once")
    await create_object(client, workload)
    await asyncio.sleep(rng.uniform(*CANCEL_AFTER_S))
    stored = await client.get(Workload, name[1], name[0])
    if stored is not None:
        await client.commit([Delete("Workload", stored.key, stored.uid)])


async def push_loads(client: Client, desired: DesiredObjects, rng: random.Random) -> None:
    """Pushes load metrics of autoscaled workloads."""
    for name in sorted(name for name, workload in desired.workloads.items() if workload.spec.autoscale is not None):
        if desired.services.get(name) is None:
            continue
        stored = await client.get(Workload, name[1], name[0])
        if stored is None or stored.metadata.terminating or stored.spec.autoscale is None:
            continue
        now = micro_text(EPOCH_S + asyncio.get_running_loop().time())
        load = LoadBlock(metrics=(LoadMetric(stored.spec.autoscale.metric, rng.choice(LOADS_PERCENT), now),))
        await client.commit([SetStatus("Workload", stored.key, stored.uid, blocks={"load": load})])


def _changed(stored: Workload, act: str, rng: random.Random) -> Workload:
    match act:
        case "scale":
            return with_spec(stored, replicas=rng.randint(0, 2 if stored.spec.exclusive is not None else 4))
        case "break":
            return workload_profiles.with_broken_template(stored, rng)
        case "pause":
            rollout = msgspec.structs.replace(stored.spec.rollout, paused=not stored.spec.rollout.paused)
            return with_spec(stored, rollout=rollout)
        case _:
            template = msgspec.structs.replace(stored.spec.template, env={"VERSION": str(rng.randint(1, 1000))})
            return with_spec(stored, template=template)


async def watch_own_workloads(client: Client, tenant: str) -> None:
    """Keeps a watch of the tenant's workloads open, and reopens it whenever it breaks."""
    while True:
        try:
            listed = await client.list(Workload, tenant)
            async for _ in client.watch(Workload, tenant, after=listed.revision):
                pass
        except Fault:
            await asyncio.sleep(1.0)


def random_workload(desired: DesiredObjects, topology: Topology, rng: random.Random, *, ends: bool) -> Workload:
    """A workload of a random profile of this run."""
    tenant = rng.choice(desired.tenants)
    profile = rng.choice([name for name in topology.profiles if (name in BATCH_PROFILES) == ends])
    return PROFILES[profile](tenant, f"{profile}{desired.last_number}", topology.regions, rng)
