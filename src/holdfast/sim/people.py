"""The people of a simulated world set it up, and in the end say clearly what they want; `users.py` is between.

A user whose call failed does not know whether it happened, as in life; `calm` says everything once more, and clearly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.client.contract import Client
from holdfast.model.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, Slot
from holdfast.model.region import Region, RegionSpec
from holdfast.model.scheduler_policy import SchedulerPolicy
from holdfast.model.tenant import Isolation, Tenant, TenantSpec
from holdfast.model.workload import Workload, WorkloadType
from holdfast.model.writes import Create, Delete, Update
from holdfast.sim import sorts
from holdfast.sim.chaos import Chaos
from holdfast.sim.sorts import LEVELS, SCARCE, SOLO, SORTS, respec

SLOTS = 4
"""Places that each region keeps for critical work of others."""
LOST_AFTER_S = 20.0
SOLO_NODES = 12
"""A region must have so many nodes for some of them to be one tenant's own."""
CRITICAL = frozenset({"critical", "vital"})
"""Sorts of work that a lost region's budget is kept for."""
NEIGHBOUR = "neighbour"
"""Work that keeps apart from other work needs other work to keep apart from."""
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
    solo: bool = False
    """Whether one more tenant has machines of its own."""


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
    hard = {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "gpu": str(2 * len(regions)), SCARCE: str(len(regions))}
    return Land(made, tuple(tenants), hard, sorts, "dedicated" in sorts and nodes_per_region >= SOLO_NODES)


def zones_of(region: str) -> tuple[str, ...]:
    return (f"{region}-a", f"{region}-b")


async def set_up(client: Client, land: Land, chance: random.Random, chaos: Chaos | None = None) -> Wanted:
    """Regions, priorities, tenants with quotas, and a first few workloads of every sort; `chaos` may leave some out."""
    wanted = Wanted(tenants=[*land.tenants, *([SOLO] if land.solo else [])])
    allowance: dict[str, Any] = {"cpu": "4", "memory": "4Gi"}
    for name in wanted.tenants:
        # One of the tenants is protected for half of what it may have: nobody else may make that leave.
        protected: dict[str, Any] = {"cpu": str(int(land.hard["cpu"]) // 2)} if name == land.tenants[0] else {}
        spec = QuotaSpec(hard=land.hard, protected=protected, recovery_allowance=allowance)
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
        *([Tenant(metadata=ObjectMeta(name=SOLO), spec=TenantSpec(Isolation.DEDICATED))] if land.solo else []),
        *wanted.quotas.values(),
        *(_budget(region.metadata.name) for region in land.regions if not CRITICAL.isdisjoint(land.sorts)),
    ]
    for item in items:
        await create(client, item)
    for tenant, name, sort in _first_work(land):
        regions = land.regions[-1:] if sort == "resident" else land.regions
        own = random.Random(chance.getrandbits(64))
        for each in (name, NEIGHBOUR) if sort == "sociable" else (name,):
            made = SORTS[sort](tenant, each, regions, own)
            act = f"user brings {tenant}/{each}"
            if chaos is None or chaos.allows(act):
                await want(client, wanted, made)
                if chaos is not None:
                    chaos.act(act, f"{made.spec.replicas} of sort {sort}")
    return wanted


def _first_work(land: Land) -> Iterator[tuple[str, str, str]]:
    """Tenant, name and sort of what is there from the beginning: plain work, and one of every other sort."""
    first = land.tenants[0]
    for tenant in land.tenants:
        yield tenant, "api", "service"
        yield tenant, "ledger", "exclusive"
    yield first, "web", "service"
    yield first, "records", "resident"
    for number, sort in enumerate(sort for sort in land.sorts if sort not in sorts.PLAIN):
        tenant = SOLO if sort == "dedicated" and land.solo else land.tenants[number % len(land.tenants)]
        yield tenant, f"{sort}0", sort


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
        wanted.made[name] = sorts.repaired(workload)  # who has to ask again in the end does not ask for a broken one
    await create(client, workload)


async def calm(client: Client, wanted: Wanted) -> None:
    """Says once more, and clearly, what is wanted: whatever was lost on the way is asked for again."""
    for tenant, quota in sorted(wanted.quotas.items()):
        if tenant in wanted.tenants:
            stored_quota = await client.get(Quota, "quota", tenant)
            if stored_quota is not None and stored_quota.spec != quota.spec:
                try:
                    await client.commit([Update(msgspec.structs.replace(stored_quota, spec=quota.spec))])
                except Invalid:  # it was raised, and more than the former one is in use: it stays
                    wanted.quotas[tenant] = stored_quota
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

    for name in sorted(wanted.batches):
        stored = await client.get(Workload, name[1], name[0])
        if stored is not None and sorts.hopeless(stored) and not stored.metadata.terminating:
            await client.commit([Delete("Workload", stored.key, stored.uid)])


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
