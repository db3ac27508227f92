"""Simulated operators: faults caused by operators, and their undo at the end of the fault phase."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast.client.contract import Client
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.node import Node
from holdfast.model.override import Override, break_glass_prefix
from holdfast.model.placement_rules import Taint
from holdfast.model.quantity import amounts, amounts_text
from holdfast.model.quota import Quota
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import (
    FilterExpression,
    PartitionMode,
    Preemption,
    PromotionStage,
    QueueKey,
    Rules,
    SchedulerPolicy,
    SchedulerPolicySpec,
    ScoreName,
    WeightedScore,
)
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Delete
from holdfast.sim import overriding, people, sorts
from holdfast.sim.chaos import Kind
from holdfast.sim.ports import stream

if TYPE_CHECKING:
    from holdfast.sim.troubles import Trouble
    from holdfast.sim.world import World

BURST_WORKLOADS = 6
BURST_SORTS = ("batch", "batch", "dated", "failing", "quick")
"""Profiles of a burst, if the run has them."""


async def interfere(world: World, trouble: Trouble) -> None:
    match trouble.kind:
        case Kind.CORDON | Kind.DRAIN:
            await _close_node(world, trouble)
        case Kind.NODE_DELETED:
            client = world.operator_of(world.agent(trouble.target).region.name)
            await _delete_node(client, trouble.target)
        case Kind.REPLICA_DELETED:
            await _delete_replica(world.operator_of(trouble.target), trouble)
        case Kind.QUOTA_CHANGED:
            await _change_quota(world, trouble)
        case Kind.TENANT_DELETED:
            await _delete_tenant(world, trouble.target)
        case Kind.ZONE_AVOIDED:
            await overriding.avoid(world, trouble)
        case Kind.POLICY_CHANGED:
            await _change_policy(world.operator, trouble)
        case Kind.OVERRIDE_GIVEN:
            await overriding.give(world, trouble)
        case Kind.BREAK_GLASS:
            await overriding.break_glass(world, trouble)
        case Kind.NODE_TAINTED:
            await _taint(world, trouble)
        case Kind.BURST:
            await _burst(world, trouble)


async def put_right(world: World) -> None:
    """Uncordons nodes, deletes overrides and restores the default policy."""
    for region in world.regions:
        client = world.operator_of(region.name)
        for node in (await client.list(Node)).items:
            if node.spec.unschedulable or node.spec.drain or node.spec.taints:
                await people.edit(client, Node, node.metadata.name, "", unschedulable=False, drain=False, taints=())
        for given in (await client.list(Override)).items:
            if given.metadata.name.startswith(break_glass_prefix(region.name)):
                await client.commit([Delete("Override", given.key, given.uid)])
    for override in (await world.operator.list(Override)).items:
        if not override.metadata.terminating:
            await world.operator.commit([Delete("Override", override.key, override.uid)])
    policy = await world.operator.get(SchedulerPolicy, "default")
    if policy is not None and policy.spec != SchedulerPolicySpec():
        plain = SchedulerPolicySpec()
        await people.edit(world.operator, SchedulerPolicy, "default", "", rules=plain.rules, stage=plain.stage)


async def _close_node(world: World, trouble: Trouble) -> None:
    client = world.operator_of(world.agent(trouble.target).region.name)
    field = "drain" if trouble.kind is Kind.DRAIN else "unschedulable"
    limit_s = trouble.for_s / 2 if trouble.kind is Kind.DRAIN else 0.0
    await people.edit(client, Node, trouble.target, "", **{field: True}, drain_seconds=limit_s)
    await asyncio.sleep(trouble.for_s)
    await people.edit(client, Node, trouble.target, "", **{field: False})


async def _delete_node(client: Client, name: str) -> None:
    node = await client.get(Node, name)
    if node is not None and not node.metadata.terminating:
        await client.commit([Delete("Node", node.key, node.uid)])


async def _delete_replica(client: Client, trouble: Trouble) -> None:
    replicas = (await client.list(Replica)).items
    if replicas:
        chosen = replicas[int(trouble.amount * len(replicas))]
        await client.commit([Delete("Replica", chosen.key, chosen.uid)])


async def _change_quota(world: World, trouble: Trouble) -> None:
    quota = world.wanted.quotas.get(trouble.target)
    if quota is None or trouble.target not in world.wanted.tenants:
        return
    hard = {name: int(amount * trouble.amount) for name, amount in amounts(quota.spec.hard).items()}
    await people.edit(world.operator, Quota, "quota", trouble.target, hard=dict(amounts_text(hard)))


async def _delete_tenant(world: World, name: str) -> None:
    """Deletes the tenant and removes it from the desired state."""
    if len(world.wanted.tenants) < 2:
        return
    tenant = await world.operator.get(Tenant, name)
    if tenant is None:
        return
    world.wanted.tenants = [other for other in world.wanted.tenants if other != name]
    for key in world.wanted.services:
        if key[0] == name:
            world.wanted.services[key] = None
    for _ in range(5):
        try:
            await world.operator.commit([Delete("Tenant", tenant.key, tenant.uid)])
            return
        except Conflict:
            await asyncio.sleep(0.5)
        except NotFound:
            return


async def _taint(world: World, trouble: Trouble) -> None:
    client = world.operator_of(world.agent(trouble.target).region.name)
    await people.edit(client, Node, trouble.target, "", taints=(Taint(key="odd"),))
    await asyncio.sleep(trouble.for_s)
    await people.edit(client, Node, trouble.target, "", taints=())


async def _change_policy(client: Client, trouble: Trouble) -> None:
    """Publishes other policy rules: scores, a filter, preemption limits, partition mode, queue order or a shadow."""
    plain, stage = Rules(), PromotionStage.ACTIVE
    match int(trouble.amount * 10):
        case taken_back if taken_back < 0:
            rules = plain
        case 0 | 1 | 2:
            rules = msgspec.structs.replace(plain, scores=(WeightedScore(name=ScoreName.PACKING, weight=5),))
        case 3:
            rules = msgspec.structs.replace(plain, scores=(WeightedScore(name=ScoreName.BALANCE, weight=9),))
        case 5:
            gate = FilterExpression(name="slow-disks-only", expression="node.labels['disk'] == 'slow'")
            rules = msgspec.structs.replace(plain, filter_expressions=(gate,))
        case 4 | 6:
            rules = msgspec.structs.replace(plain, preemption=Preemption(per_tenant_per_minute=0))
        case 7:
            rules = msgspec.structs.replace(plain, partition_mode=PartitionMode.PROVISIONAL)
        case 8:
            rules = msgspec.structs.replace(plain, queue=(QueueKey.FAIRNESS, QueueKey.AGE))
        case _:
            rules, stage = plain, PromotionStage.SHADOW
    await people.edit(client, SchedulerPolicy, "default", "", rules=rules, stage=stage)


def policy_words(amount: float) -> str:
    """Describes the rules that `_change_policy` publishes for this amount."""
    words = (
        "packing score", "packing score", "packing score", "balance score", "no preemption", "filter: slow disks only",
        "no preemption", "provisional while partitioned", "queue by fairness", "shadow only",
    )  # fmt: skip
    return "rolled back to the default rules" if amount < 0 else words[int(amount * 10)]


async def _burst(world: World, trouble: Trouble) -> None:
    """Creates several batch workloads at once."""
    if trouble.target not in world.wanted.tenants:
        return
    chance = stream(world.seed, f"burst/{trouble.name}")
    number = trouble.name.rpartition("#")[2]
    known = [sort for sort in BURST_SORTS if sort in world.sorts]
    for index in range(BURST_WORKLOADS):
        make = sorts.SORTS[chance.choice(known)] if known else sorts.batch
        workload = make(trouble.target, f"burst{number}-{index}", (), chance)
        await people.want(world.operator, world.wanted, workload)
