"""Users of a simulated world: they set it up, keep changing their minds, and in the end calm down.

A user whose call failed does not know whether it happened, as in life; `calm` says everything once more, and clearly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.client.contract import Client
from holdfast.model.errors import AlreadyExists, Conflict, Fault, Forbidden, NotFound
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, Slot
from holdfast.model.region import Region, RegionSpec
from holdfast.model.scheduler_policy import SchedulerPolicy
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload, WorkloadType
from holdfast.model.writes import Create, Delete, Update
from holdfast.sim import sorts
from holdfast.sim.chaos import Chaos
from holdfast.sim.sorts import LEVELS, SORTS, respec

SERVICES_MAX = 9
ENDING = frozenset({"batch", "dated", "failing", "gang"})
SLOTS = 4
"""Places that each region keeps for critical work of others."""
LOST_AFTER_S = 20.0
CHANGE_EVERY_S = (2.0, 12.0)
Name = tuple[str, str]


class Wanted(msgspec.Struct):
    """What should be true in the end: each service with its number of replicas, None for one that was deleted."""

    services: dict[Name, int | None] = {}
    made: dict[Name, Workload] = {}
    batches: set[Name] = set()
    tenants: list[str] = []
    quotas: dict[str, Quota] = {}
    serial: int = 0


class Land(msgspec.Struct, frozen=True):
    """What there is to set up: regions with their zones and residency, tenants with their share, and what they run."""

    regions: tuple[Region, ...]
    tenants: tuple[str, ...]
    hard: dict[str, Any]
    sorts: tuple[str, ...]


def land(regions: Sequence[str], tenants: Sequence[str], nodes_per_region: int, sorts: tuple[str, ...]) -> Land:
    """Quotas are a little too small for comfort: together they cover about what the machines have."""
    tags = ("us", "eu", "ap")
    made = tuple(
        Region(
            metadata=ObjectMeta(name=name),
            spec=RegionSpec(
                zones=zones_of(name),
                residency=(tags[n % len(tags)],),
                cost=100 + 10 * n,
                endpoint=f"sim://{name}",
                lost_after_seconds=LOST_AFTER_S,
            ),
        )
        for n, name in enumerate(regions)
    )
    cpu = max(4, len(regions) * min(nodes_per_region, 7) * 3 // 2 // len(tenants))
    hard = {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "gpu": str(2 * len(regions))}
    return Land(made, tuple(tenants), hard, sorts)


def zones_of(region: str) -> tuple[str, ...]:
    return (f"{region}-a", f"{region}-b")


async def set_up(client: Client, land: Land, chance: random.Random) -> Wanted:
    """Regions, priorities, tenants with quotas, and a first few workloads of every sort."""
    wanted = Wanted(tenants=list(land.tenants))
    allowance: dict[str, Any] = {"cpu": "4", "memory": "4Gi"}
    for name in land.tenants:
        spec = QuotaSpec(hard=land.hard, recovery_allowance=allowance)
        wanted.quotas[name] = Quota(metadata=ObjectMeta(name="quota", namespace=name), spec=spec)
    items: list[Object] = [
        *land.regions,
        *(
            PriorityClass(
                metadata=ObjectMeta(name=n), spec=PriorityClassSpec(rank, reclaimable=spare, may_preempt=takes)
            )
            for n, rank, spare, takes in LEVELS
        ),
        SchedulerPolicy(metadata=ObjectMeta(name="default")),
        *(Tenant(metadata=ObjectMeta(name=name)) for name in land.tenants),
        *wanted.quotas.values(),
        *(_budget(region.metadata.name) for region in land.regions if "critical" in land.sorts),
    ]
    for item in items:
        await create(client, item)
    for tenant in land.tenants:
        for name, sort in (("api", "service"), ("web", "service"), ("ledger", "exclusive")):
            await want(client, wanted, SORTS[sort](tenant, name, land.regions, chance))
    first = land.tenants[0]
    await want(client, wanted, sorts.resident(first, "records", land.regions[-1:], chance))
    if "tenured" in land.sorts:
        await want(client, wanted, sorts.tenured(first, "only", land.regions, chance))
    if "critical" in land.sorts:
        await want(client, wanted, sorts.critical(first, "vital", land.regions, chance))
    return wanted


def _budget(region: str) -> RecoveryBudget:
    slot = Slot(resources={"cpu": "500m", "memory": "512Mi"}, count=SLOTS, min_zones=2)
    spec = RecoveryBudgetSpec(region=region, slots=(slot,), starts_per_second=2.0)
    return RecoveryBudget(metadata=ObjectMeta(name=f"kept-{region}"), spec=spec)


async def want(client: Client, wanted: Wanted, workload: Workload) -> None:
    """From now on this is wanted, whatever becomes of the call."""
    name = (workload.metadata.namespace, workload.metadata.name)
    if workload.spec.type is WorkloadType.BATCH:
        wanted.batches.add(name)
    else:
        wanted.services[name] = workload.spec.replicas
        wanted.made[name] = workload
    await create(client, workload)


async def keep_changing(client: Client, wanted: Wanted, land: Land, chance: random.Random, chaos: Chaos) -> None:
    """Scales, updates, deletes and creates until told that it is enough."""
    while True:
        await asyncio.sleep(chance.uniform(*CHANGE_EVERY_S))
        if chaos.healed:
            return
        try:
            await change_something(client, wanted, land, chance)
        except Fault:
            continue


async def change_something(client: Client, wanted: Wanted, land: Land, chance: random.Random) -> None:
    act = chance.choice(ACTS)
    living = sorted(name for name, count in wanted.services.items() if count is not None)
    if not wanted.tenants:
        return
    if act == "create" or not living:
        if len(living) < SERVICES_MAX:
            await want(client, wanted, something(wanted, land, chance, ends=False))
        return
    if act == "batch":
        await want(client, wanted, something(wanted, land, chance, ends=True))
        return
    name = chance.choice(living)
    stored = await client.get(Workload, name[1], name[0])
    if stored is None:
        return
    if act == "delete":
        wanted.services[name] = None
        await client.commit([Delete("Workload", stored.key, stored.uid)])
        return
    changed = _changed(stored, act, chance)
    wanted.services[name] = changed.spec.replicas
    wanted.made[name] = sorts.repaired(changed)
    await client.commit([Update(changed)])


ACTS = ("scale", "scale", "scale", "update", "update", "break", "pause", "delete", "create", "create", "batch", "batch")


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
    """Someone of the tenant keeps a window open: a watch of its own workloads, opened again whenever it breaks."""
    while True:
        try:
            listed = await client.list(Workload, tenant)
            async for _ in client.watch(Workload, tenant, after=listed.revision):
                pass
        except Fault:
            await asyncio.sleep(1.0)


async def calm(client: Client, wanted: Wanted) -> None:
    """Says once more, and clearly, what is wanted: whatever was lost on the way is asked for again."""
    for tenant, quota in sorted(wanted.quotas.items()):
        if tenant in wanted.tenants:
            stored_quota = await client.get(Quota, "quota", tenant)
            if stored_quota is not None and stored_quota.spec != quota.spec:
                await client.commit([Update(msgspec.structs.replace(stored_quota, spec=quota.spec))])
            continue
        gone = await client.get(Tenant, tenant)
        if gone is not None and not gone.metadata.terminating:
            await client.commit([Delete("Tenant", gone.key, gone.uid)])
    for name, count in sorted(wanted.services.items()):
        stored = await client.get(Workload, name[1], name[0])
        if name[0] not in wanted.tenants:
            wanted.services[name] = None
        elif count is None:
            if stored is not None and not stored.metadata.terminating:
                await client.commit([Delete("Workload", stored.key, stored.uid)])
        elif stored is None:
            await create(client, _fresh(wanted.made[name], count))
        elif stored.metadata.terminating:
            wanted.services[name] = None
        else:
            final = respec(sorts.repaired(stored), replicas=count)
            if final.spec != stored.spec:
                await client.commit([Update(final)])


async def create(client: Client, item: Object) -> None:
    try:
        await client.commit([Create(item)])
    except AlreadyExists:
        kind = kind_of(item)
        assert await client.get(kind.type, item.metadata.name, item.metadata.namespace) is not None


async def edit(client: Client, kind: type[Any], name: str, namespace: str, **changes: Any) -> None:
    """Changes fields of an object's spec, as a person with an editor does: read, change, write, and again if late."""
    for _ in range(5):
        stored = await client.get(kind, name, namespace)
        if stored is None:
            return
        spec = msgspec.structs.replace(stored.spec, **changes)
        if spec == stored.spec:
            return
        try:
            await client.commit([Update(msgspec.structs.replace(stored, spec=spec))])
            return
        except (Conflict, NotFound, Forbidden):
            await asyncio.sleep(0.5)


def _fresh(workload: Workload, replicas: int) -> Workload:
    meta = ObjectMeta(name=workload.metadata.name, namespace=workload.metadata.namespace)
    return Workload(metadata=meta, spec=msgspec.structs.replace(workload.spec, replicas=replicas))


def something(wanted: Wanted, land: Land, chance: random.Random, *, ends: bool) -> Workload:
    """One more of the sorts of work that there are in this world."""
    wanted.serial += 1
    tenant = chance.choice(wanted.tenants)
    sort = chance.choice([name for name in land.sorts if (name in ENDING) == ends])
    return SORTS[sort](tenant, f"{sort}{wanted.serial}", land.regions, chance)
