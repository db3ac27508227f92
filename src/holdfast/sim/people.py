"""Users and operators of a simulated world: they set it up, keep changing their minds, and in the end calm down."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec

from holdfast.client.contract import Client
from holdfast.model.errors import AlreadyExists, Fault
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import Region, RegionSpec
from holdfast.model.scheduler_policy import SchedulerPolicy
from holdfast.model.template import Port, Probe, Probes, RestartPolicy, TcpProbe, Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Batch, Workload, WorkloadSpec, WorkloadType
from holdfast.model.writes import Create, Delete, Update
from holdfast.sim.loop import VirtualLoop

TENANTS = ("acme", "globex")
LEVELS = (("standard", 0, False), ("high", 100, False), ("spare", -100, True))


class Wanted(msgspec.Struct):
    """What should be true in the end: replicas per service; None for one that was deleted."""

    services: dict[tuple[str, str], int | None] = {}
    batches: set[tuple[str, str]] = set()
    serial: int = 0


async def set_up(client: Client, regions: tuple[str, ...], chance: random.Random) -> Wanted:
    """Tenants with quotas a little too small for comfort, and a first few workloads."""
    items: list[Object] = [
        *(Region(metadata=ObjectMeta(name=r), spec=RegionSpec(zones=(f"{r}-a", f"{r}-b"))) for r in regions),
        *(
            PriorityClass(metadata=ObjectMeta(name=n), spec=PriorityClassSpec(rank=rank, reclaimable=spare))
            for n, rank, spare in LEVELS
        ),
        SchedulerPolicy(metadata=ObjectMeta(name="default")),
        *(Tenant(metadata=ObjectMeta(name=name)) for name in TENANTS),
        *(
            Quota(
                metadata=ObjectMeta(name="quota", namespace=name),
                spec=QuotaSpec(hard={"cpu": "8", "memory": "32Gi", "gpu": "2"}),
            )
            for name in TENANTS
        ),
    ]
    for item in items:
        await _create(client, item)
    wanted = Wanted()
    for name in TENANTS:
        for service in ("api", "web"):
            await _create(client, _service(name, service, 2, chance))
            wanted.services[(name, service)] = 2
    return wanted


async def keep_changing(client: Client, wanted: Wanted, chance: random.Random, until: float, loop: VirtualLoop) -> None:
    """Scales, updates, deletes and creates, whatever answer came back; a lost one is found out about later."""
    while loop.time() < until:
        await asyncio.sleep(chance.uniform(2.0, 12.0))
        try:
            await _change_something(client, wanted, chance)
        except Fault:
            continue


async def _change_something(client: Client, wanted: Wanted, chance: random.Random) -> None:
    act = chance.choice(("scale", "scale", "update", "delete", "create", "batch"))
    living = sorted(key for key, count in wanted.services.items() if count is not None)
    if act == "create" or not living:
        wanted.serial += 1
        tenant, name = chance.choice(TENANTS), f"svc{wanted.serial}"
        if len(living) < 8:
            wanted.services[(tenant, name)] = 1
            await _create(client, _service(tenant, name, 1, chance))
        return
    if act == "batch":
        wanted.serial += 1
        tenant, name = chance.choice(TENANTS), f"job{wanted.serial}"
        wanted.batches.add((tenant, name))
        await _create(client, _batch(tenant, name, chance))
        return
    key = chance.choice(living)
    stored = await client.get(Workload, key[1], key[0])
    if stored is None:
        return
    if act == "delete":
        wanted.services[key] = None
        await client.commit([Delete("Workload", stored.key, stored.uid)])
    elif act == "scale":
        count = chance.randint(0, 4)
        wanted.services[key] = count
        await client.commit([Update(_respec(stored, replicas=count))])
    else:
        template = msgspec.structs.replace(stored.spec.template, env={"VERSION": str(chance.randint(1, 1000))})
        await client.commit([Update(_respec(stored, template=template))])


async def calm(client: Client, wanted: Wanted) -> None:
    """Says once more, and clearly, what is wanted: whatever was lost on the way is asked for again."""
    for (tenant, name), count in sorted(wanted.services.items()):
        stored = await client.get(Workload, name, tenant)
        if count is None:
            if stored is not None and not stored.metadata.terminating:
                await client.commit([Delete("Workload", stored.key, stored.uid)])
        elif stored is None:
            await _create(client, _service(tenant, name, count, random.Random(0)))
        elif stored.metadata.terminating:
            wanted.services[(tenant, name)] = None
        elif stored.spec.replicas != count:
            await client.commit([Update(_respec(stored, replicas=count))])


async def _create(client: Client, item: Object) -> None:
    try:
        await client.commit([Create(item)])
    except AlreadyExists:
        kind = kind_of(item)
        assert await client.get(kind.type, item.metadata.name, item.metadata.namespace) is not None


def _respec(workload: Workload, **changes: Any) -> Workload:
    return msgspec.structs.replace(workload, spec=msgspec.structs.replace(workload.spec, **changes))


def _service(tenant: str, name: str, replicas: int, chance: random.Random) -> Workload:
    template = Template(
        command=("serve",),
        resources={"cpu": "500m", "memory": "512Mi"},
        ports=(Port(name="http"),),
        probes=Probes(readiness=Probe(tcp=TcpProbe(), period_seconds=1.0)),
    )
    spec = WorkloadSpec(
        replicas=replicas, template=template, priority_class_name=chance.choice(("standard", "high", "spare"))
    )
    return Workload(metadata=ObjectMeta(name=name, namespace=tenant), spec=spec)


def _batch(tenant: str, name: str, chance: random.Random) -> Workload:
    resources: dict[str, Any] = {"cpu": "250m", "memory": "256Mi"}
    if chance.random() < 0.5:
        resources["gpu"] = chance.choice(("1", "500m"))
    template = Template(command=("work",), resources=resources, restart_policy=RestartPolicy.ON_FAILURE)
    spec = WorkloadSpec(
        type=WorkloadType.BATCH, template=template, batch=Batch(completions=chance.randint(1, 3), parallelism=2)
    )
    return Workload(metadata=ObjectMeta(name=name, namespace=tenant), spec=spec)
