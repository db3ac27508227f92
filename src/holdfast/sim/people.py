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
from holdfast.model.placement_rules import Placement, SpreadRule
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import Region, RegionSpec
from holdfast.model.scheduler_policy import SchedulerPolicy
from holdfast.model.template import Port, Probe, Probes, RestartPolicy, TcpProbe, Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Batch, Exclusivity, Workload, WorkloadSpec, WorkloadType
from holdfast.model.writes import Create, Delete, Update
from holdfast.sim.chaos import Chaos

LEVELS = (("standard", 0, False), ("high", 100, False), ("spare", -100, True))
SERVICES_MAX = 9
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
    """What there is to set up: regions with their zones and residency, and tenants with their share."""

    regions: tuple[Region, ...]
    tenants: tuple[str, ...]
    hard: dict[str, Any]


def land(regions: Sequence[str], tenants: Sequence[str], nodes_per_region: int) -> Land:
    """Quotas are a little too small for comfort: together they cover about what the machines have."""
    tags = ("us", "eu", "ap")
    made = tuple(
        Region(
            metadata=ObjectMeta(name=name),
            spec=RegionSpec(
                zones=zones_of(name), residency=(tags[n % len(tags)],), cost=100 + 10 * n, endpoint=f"sim://{name}"
            ),
        )
        for n, name in enumerate(regions)
    )
    cpu = max(4, len(regions) * min(nodes_per_region, 7) * 3 // 2 // len(tenants))
    return Land(made, tuple(tenants), {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "gpu": str(2 * len(regions))})


def zones_of(region: str) -> tuple[str, ...]:
    return (f"{region}-a", f"{region}-b")


async def set_up(client: Client, land: Land, chance: random.Random) -> Wanted:
    """Regions, priorities, tenants with quotas, and a first few workloads of every sort."""
    wanted = Wanted(tenants=list(land.tenants))
    for name in land.tenants:
        wanted.quotas[name] = Quota(metadata=ObjectMeta(name="quota", namespace=name), spec=QuotaSpec(hard=land.hard))
    items: list[Object] = [
        *land.regions,
        *(
            PriorityClass(metadata=ObjectMeta(name=n), spec=PriorityClassSpec(rank=rank, reclaimable=spare))
            for n, rank, spare in LEVELS
        ),
        SchedulerPolicy(metadata=ObjectMeta(name="default")),
        *(Tenant(metadata=ObjectMeta(name=name)) for name in land.tenants),
        *wanted.quotas.values(),
    ]
    for item in items:
        await create(client, item)
    first = land.tenants[0]
    for tenant in land.tenants:
        for name in ("api", "web"):
            await want(client, wanted, service(tenant, name, 2, chance))
        await want(client, wanted, exclusive(tenant, "ledger", 2))
    await want(client, wanted, resident(first, "records", 2, land.regions[-1]))
    return wanted


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
    act = chance.choice(("scale", "scale", "scale", "update", "delete", "create", "create", "batch"))
    living = sorted(name for name, count in wanted.services.items() if count is not None)
    if not wanted.tenants:
        return
    if act == "create" or not living:
        if len(living) < SERVICES_MAX:
            await want(client, wanted, something(wanted, land, chance))
        return
    if act == "batch":
        wanted.serial += 1
        await want(client, wanted, batch(chance.choice(wanted.tenants), f"job{wanted.serial}", chance))
        return
    name = chance.choice(living)
    stored = await client.get(Workload, name[1], name[0])
    if stored is None:
        return
    if act == "delete":
        wanted.services[name] = None
        await client.commit([Delete("Workload", stored.key, stored.uid)])
        return
    if act == "scale":
        top = 2 if stored.spec.exclusive is not None else 4
        changed = respec(stored, replicas=chance.randint(0, top))
    else:
        template = msgspec.structs.replace(stored.spec.template, env={"VERSION": str(chance.randint(1, 1000))})
        changed = respec(stored, template=template)
    wanted.services[name] = changed.spec.replicas
    wanted.made[name] = changed
    await client.commit([Update(changed)])


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
        elif stored.spec.replicas != count:
            await client.commit([Update(respec(stored, replicas=count))])


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


def respec(workload: Workload, **changes: Any) -> Workload:
    return msgspec.structs.replace(workload, spec=msgspec.structs.replace(workload.spec, **changes))


def _fresh(workload: Workload, replicas: int) -> Workload:
    meta = ObjectMeta(name=workload.metadata.name, namespace=workload.metadata.namespace)
    return Workload(metadata=meta, spec=msgspec.structs.replace(workload.spec, replicas=replicas))


def something(wanted: Wanted, land: Land, chance: random.Random) -> Workload:
    wanted.serial += 1
    tenant, serial = chance.choice(wanted.tenants), wanted.serial
    sort = chance.random()
    if sort < 0.4:
        return exclusive(tenant, f"one{serial}", chance.randint(1, 2))
    if sort < 0.6:
        return resident(tenant, f"res{serial}", 1, chance.choice(land.regions))
    return service(tenant, f"svc{serial}", 1, chance)


def service(tenant: str, name: str, replicas: int, chance: random.Random) -> Workload:
    placement = Placement()
    if chance.random() < 0.3:
        placement = Placement(spread=(SpreadRule(topology=chance.choice(("zone", "node")), max_skew=2),))
    spec = WorkloadSpec(
        replicas=replicas,
        template=_serving(),
        placement=placement,
        priority_class_name=chance.choice([level[0] for level in LEVELS]),
    )
    return Workload(metadata=ObjectMeta(name=name, namespace=tenant), spec=spec)


def exclusive(tenant: str, name: str, replicas: int) -> Workload:
    spec = WorkloadSpec(
        replicas=replicas, template=_serving(), priority_class_name="high", exclusive=Exclusivity(),
    )  # fmt: skip
    return Workload(metadata=ObjectMeta(name=name, namespace=tenant), spec=spec)


def resident(tenant: str, name: str, replicas: int, region: Region) -> Workload:
    """Work that may only be where the law says."""
    placement = Placement(residency=region.spec.residency, pools=("default",))
    spec = WorkloadSpec(replicas=replicas, template=_serving(), placement=placement)
    return Workload(metadata=ObjectMeta(name=name, namespace=tenant), spec=spec)


def _serving() -> Template:
    return Template(
        command=("serve",),
        resources={"cpu": "500m", "memory": "512Mi"},
        ports=(Port(name="http"),),
        probes=Probes(readiness=Probe(tcp=TcpProbe(), period_seconds=10.0, failure_threshold=1)),
    )


def batch(tenant: str, name: str, chance: random.Random) -> Workload:
    resources: dict[str, Any] = {"cpu": "250m", "memory": "256Mi"}
    models: tuple[str, ...] = ()
    if chance.random() < 0.5:
        resources["gpu"] = chance.choice(("1", "500m"))
        models = chance.choice(((), ("A100",)))
    template = Template(
        command=("work",), resources=resources, gpu_models=models, restart_policy=RestartPolicy.ON_FAILURE
    )
    spec = WorkloadSpec(
        type=WorkloadType.BATCH,
        template=template,
        priority_class_name=chance.choice(("standard", "spare")),
        batch=Batch(completions=chance.randint(1, 3), parallelism=2),
    )
    return Workload(metadata=ObjectMeta(name=name, namespace=tenant), spec=spec)
