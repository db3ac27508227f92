"""Simulated operators and tenants: create the initial objects, and restate the desired state at the end of a run.

A failed call leaves the caller uncertain whether it took effect. `restate_desired` writes every object again, so
that the convergence check has an unambiguous target. `users.py` acts in between.
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
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, SlotShape
from holdfast.model.region import Region, RegionSpec
from holdfast.model.scheduler_policy import SchedulerPolicy
from holdfast.model.tenant import Isolation, Tenant, TenantSpec
from holdfast.model.volume import ReclaimPolicy, VolumeClaim, VolumeClaimSpec
from holdfast.model.workload import Workload, WorkloadType
from holdfast.model.writes import Create, Delete, Update
from holdfast.sim import workload_profiles
from holdfast.sim.fault_injection import FaultInjector
from holdfast.sim.workload_profiles import (
    DEDICATED_TENANT,
    PRIORITY_LEVELS,
    PROFILES,
    SCARCE_RESOURCE,
    VOLUME_CLAIM,
    VOLUME_SIZE,
    with_spec,
)

SLOTS_PER_REGION = 4
"""Recovery slots that each region reserves."""
LOST_AFTER_S = 20.0
DEDICATED_NODES_MIN = 12
"""Minimum nodes per region for some of them to be dedicated to a tenant."""
CRITICAL_PROFILES = frozenset({"critical", "vital"})
"""Profiles with a recovery objective. Regions reserve recovery slots if one of them is present."""
NEIGHBOUR = "neighbour"
"""Second workload for affinity and anti-affinity rules."""
WorkloadName = tuple[str, str]


class DesiredObjects(msgspec.Struct):
    """The expected end state: each service with its replica count, None for a deleted service."""

    services: dict[WorkloadName, int | None] = {}
    workloads: dict[WorkloadName, Workload] = {}
    batches: set[WorkloadName] = set()
    tenants: list[str] = []
    quotas: dict[str, Quota] = {}
    last_number: int = 0


class Topology(msgspec.Struct, frozen=True):
    """The regions, tenants, quotas and workload profiles of a run."""

    regions: tuple[Region, ...]
    tenants: tuple[str, ...]
    hard: dict[str, Any]
    profiles: tuple[str, ...]
    has_dedicated_tenant: bool = False
    """Whether a further tenant has dedicated machines."""


def make_topology(
    regions: Sequence[str], tenants: Sequence[str], nodes_per_region: int, profiles: tuple[str, ...]
) -> Topology:
    """Builds the topology. Together the quotas are about as large as the machines, so that quota is scarce."""
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
    hard = {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "gpu": str(2 * len(regions)), SCARCE_RESOURCE: str(len(regions))}
    if "stateful" in profiles:
        hard["storage"] = "16Gi"
    return Topology(
        made, tuple(tenants), hard, profiles, "dedicated" in profiles and nodes_per_region >= DEDICATED_NODES_MIN
    )


def zones_of(region: str) -> tuple[str, ...]:
    return (f"{region}-a", f"{region}-b")


async def create_initial_objects(
    client: Client, topology: Topology, rng: random.Random, faults: FaultInjector | None = None
) -> DesiredObjects:
    """Creates regions, priority classes, tenants, quotas and one workload per profile. `faults` may omit workloads."""
    desired = DesiredObjects(
        tenants=[*topology.tenants, *([DEDICATED_TENANT] if topology.has_dedicated_tenant else [])]
    )
    allowance: dict[str, Any] = {"cpu": "4", "memory": "4Gi"}
    for name in desired.tenants:
        # Half of the first tenant's quota is protected from preemption by other tenants.
        protected: dict[str, Any] = {"cpu": str(int(topology.hard["cpu"]) // 2)} if name == topology.tenants[0] else {}
        spec = QuotaSpec(hard=topology.hard, protected=protected, recovery_allowance=allowance)
        desired.quotas[name] = Quota(metadata=ObjectMeta(name="quota", namespace=name), spec=spec)
    items: list[Object] = [
        *topology.regions,
        *(
            PriorityClass(
                metadata=ObjectMeta(name=n), spec=PriorityClassSpec(rank, reclaimable=spare, may_preempt=takes)
            )
            for n, rank, spare, takes in PRIORITY_LEVELS
        ),
        SchedulerPolicy(metadata=ObjectMeta(name="default")),
        *(Tenant(metadata=ObjectMeta(name=name)) for name in topology.tenants),
        *(
            [Tenant(metadata=ObjectMeta(name=DEDICATED_TENANT), spec=TenantSpec(Isolation.DEDICATED))]
            if topology.has_dedicated_tenant
            else []
        ),
        *desired.quotas.values(),
        *(_claim(name) for name in desired.tenants if "stateful" in topology.profiles),
        *(
            _budget(region.metadata.name)
            for region in topology.regions
            if not CRITICAL_PROFILES.isdisjoint(topology.profiles)
        ),
    ]
    for item in items:
        await create_object(client, item)
    for tenant, name, profile in _initial_workloads(topology):
        regions = topology.regions[-1:] if profile == "resident" else topology.regions
        own = random.Random(rng.getrandbits(64))
        for each in (name, NEIGHBOUR) if profile == "sociable" else (name,):
            made = PROFILES[profile](tenant, each, regions, own)
            act = f"user creates {tenant}/{each}"
            if faults is None or faults.allows(act):
                await create_desired(client, desired, made)
                if faults is not None:
                    faults.record_user_action(act, f"{made.spec.replicas} of profile {profile}")
    return desired


def _initial_workloads(topology: Topology) -> Iterator[tuple[str, str, str]]:
    """Tenant, name and profile of the initial workloads: base profiles, and one workload of each other profile."""
    first = topology.tenants[0]
    for tenant in topology.tenants:
        yield tenant, "api", "service"
        yield tenant, "ledger", "exclusive"
    yield first, "web", "service"
    yield first, "records", "resident"
    for number, profile in enumerate(
        profile for profile in topology.profiles if profile not in workload_profiles.BASE_PROFILES
    ):
        tenant = (
            DEDICATED_TENANT
            if profile == "dedicated" and topology.has_dedicated_tenant
            else topology.tenants[number % len(topology.tenants)]
        )
        yield tenant, f"{profile}0", profile


def _claim(tenant: str) -> VolumeClaim:
    spec = VolumeClaimSpec(size=VOLUME_SIZE, reclaim_policy=ReclaimPolicy.DELETE)
    return VolumeClaim(metadata=ObjectMeta(name=VOLUME_CLAIM, namespace=tenant), spec=spec)


def _budget(region: str) -> RecoveryBudget:
    slot = SlotShape(resources={"cpu": "500m", "memory": "512Mi"}, count=SLOTS_PER_REGION, min_zones=2)
    spec = RecoveryBudgetSpec(region=region, slot_shapes=(slot,), starts_per_second=2.0)
    return RecoveryBudget(metadata=ObjectMeta(name=f"kept-{region}"), spec=spec)


async def create_desired(client: Client, desired: DesiredObjects, workload: Workload) -> None:
    """Adds the workload to the desired state and creates it. It stays desired even if the call fails."""
    name = (workload.metadata.namespace, workload.metadata.name)
    if workload.spec.type is WorkloadType.BATCH:
        desired.batches.add(name)
    else:
        desired.services[name] = workload.spec.replicas
        # `restate_desired` creates the repaired template.
        desired.workloads[name] = workload_profiles.with_repaired_template(workload)
    await create_object(client, workload)


async def restate_desired(client: Client, desired: DesiredObjects) -> None:
    """Writes the desired state again, so that it is unambiguous after lost calls."""
    for tenant, quota in sorted(desired.quotas.items()):
        if tenant in desired.tenants:
            stored_quota = await client.get(Quota, "quota", tenant)
            if stored_quota is not None and stored_quota.spec != quota.spec:
                try:
                    await client.commit([Update(msgspec.structs.replace(stored_quota, spec=quota.spec))])
                except Invalid:  # the stored quota is larger and in use, so it stays
                    desired.quotas[tenant] = stored_quota
            continue
        tenant_object = await client.get(Tenant, tenant)
        if tenant_object is not None and not tenant_object.metadata.terminating:
            await client.commit([Delete("Tenant", tenant_object.key, tenant_object.uid)])
    for name, count in sorted(desired.services.items()):
        stored = await client.get(Workload, name[1], name[0])
        if name[0] not in desired.tenants:
            desired.services[name] = None
        elif count is None:
            if stored is not None and not stored.metadata.terminating:
                await client.commit([Delete("Workload", stored.key, stored.uid)])
        elif stored is None:
            await create_object(client, _new_workload(desired.workloads[name], count))
        elif stored.metadata.terminating:
            desired.services[name] = None
        else:
            final = with_spec(workload_profiles.with_repaired_template(stored), replicas=count)
            if final.spec != stored.spec:
                await client.commit([Update(final)])

    for name in sorted(desired.batches):
        stored = await client.get(Workload, name[1], name[0])
        if stored is not None and workload_profiles.is_hopeless(stored) and not stored.metadata.terminating:
            await client.commit([Delete("Workload", stored.key, stored.uid)])


async def create_object(client: Client, item: Object) -> None:
    try:
        await client.commit([Create(item)])
    except AlreadyExists:
        kind = kind_of(item)
        assert await client.get(kind.type, item.metadata.name, item.metadata.namespace) is not None


async def edit_spec(client: Client, kind: type[Any], name: str, namespace: str, **changes: Any) -> None:
    """Changes fields of an object's spec with read, modify, write; retries after a conflict."""
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


def _new_workload(workload: Workload, replicas: int) -> Workload:
    meta = ObjectMeta(name=workload.metadata.name, namespace=workload.metadata.namespace)
    return Workload(metadata=meta, spec=msgspec.structs.replace(workload.spec, replicas=replicas))
