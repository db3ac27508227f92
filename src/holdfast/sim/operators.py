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
    PolicyRules,
    PreemptionRules,
    PromotionStage,
    QueueKey,
    SchedulerPolicy,
    SchedulerPolicySpec,
    ScoreName,
    WeightedScore,
)
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Delete
from holdfast.sim import actors, override_faults, workload_profiles
from holdfast.sim.fault_injection import FaultKind
from holdfast.sim.ports import random_stream

if TYPE_CHECKING:
    from holdfast.sim.fault_schedule import ScheduledFault
    from holdfast.sim.simulation import Simulation

BURST_WORKLOADS = 6
BURST_PROFILES = ("batch", "batch", "dated", "failing", "quick")
"""Profiles of a burst, if the run has them."""


async def apply_operator_fault(world: Simulation, trouble: ScheduledFault) -> None:
    match trouble.kind:
        case FaultKind.CORDON | FaultKind.DRAIN:
            await _close_node(world, trouble)
        case FaultKind.NODE_DELETED:
            client = world.operator_client(world.agent(trouble.target).region.name)
            await _delete_node(client, trouble.target)
        case FaultKind.REPLICA_DELETED:
            await _delete_replica(world.operator_client(trouble.target), trouble)
        case FaultKind.QUOTA_CHANGED:
            await _change_quota(world, trouble)
        case FaultKind.TENANT_DELETED:
            await _delete_tenant(world, trouble.target)
        case FaultKind.ZONE_AVOIDED:
            await override_faults.avoid_zone(world, trouble)
        case FaultKind.POLICY_CHANGED:
            await _change_policy(world.operator, trouble)
        case FaultKind.OVERRIDE_GIVEN:
            await override_faults.create_override(world, trouble)
        case FaultKind.BREAK_GLASS:
            await override_faults.create_break_glass(world, trouble)
        case FaultKind.NODE_TAINTED:
            await _taint(world, trouble)
        case FaultKind.BURST:
            await _burst(world, trouble)


async def undo_operator_changes(world: Simulation) -> None:
    """Uncordons nodes, deletes overrides and restores the default policy."""
    for region in world.regions:
        client = world.operator_client(region.name)
        for node in (await client.list(Node)).items:
            if node.spec.unschedulable or node.spec.drain or node.spec.taints:
                await actors.edit_spec(client, Node, node.metadata.name, "", unschedulable=False, drain=False, taints=())
        for given in (await client.list(Override)).items:
            if given.metadata.name.startswith(break_glass_prefix(region.name)):
                await client.commit([Delete("Override", given.key, given.uid)])
    for override in (await world.operator.list(Override)).items:
        if not override.metadata.terminating:
            await world.operator.commit([Delete("Override", override.key, override.uid)])
    policy = await world.operator.get(SchedulerPolicy, "default")
    if policy is not None and policy.spec != SchedulerPolicySpec():
        plain = SchedulerPolicySpec()
        await actors.edit_spec(world.operator, SchedulerPolicy, "default", "", rules=plain.rules, stage=plain.stage)


async def _close_node(world: Simulation, trouble: ScheduledFault) -> None:
    client = world.operator_client(world.agent(trouble.target).region.name)
    field = "drain" if trouble.kind is FaultKind.DRAIN else "unschedulable"
    limit_s = trouble.for_s / 2 if trouble.kind is FaultKind.DRAIN else 0.0
    await actors.edit_spec(client, Node, trouble.target, "", **{field: True}, drain_seconds=limit_s)
    await asyncio.sleep(trouble.for_s)
    await actors.edit_spec(client, Node, trouble.target, "", **{field: False})


async def _delete_node(client: Client, name: str) -> None:
    node = await client.get(Node, name)
    if node is not None and not node.metadata.terminating:
        await client.commit([Delete("Node", node.key, node.uid)])


async def _delete_replica(client: Client, trouble: ScheduledFault) -> None:
    replicas = (await client.list(Replica)).items
    if replicas:
        chosen = replicas[int(trouble.amount * len(replicas))]
        await client.commit([Delete("Replica", chosen.key, chosen.uid)])


async def _change_quota(world: Simulation, trouble: ScheduledFault) -> None:
    quota = world.desired.quotas.get(trouble.target)
    if quota is None or trouble.target not in world.desired.tenants:
        return
    hard = {name: int(amount * trouble.amount) for name, amount in amounts(quota.spec.hard).items()}
    await actors.edit_spec(world.operator, Quota, "quota", trouble.target, hard=dict(amounts_text(hard)))


async def _delete_tenant(world: Simulation, name: str) -> None:
    """Deletes the tenant and removes it from the desired state."""
    if len(world.desired.tenants) < 2:
        return
    tenant = await world.operator.get(Tenant, name)
    if tenant is None:
        return
    world.desired.tenants = [other for other in world.desired.tenants if other != name]
    for key in world.desired.services:
        if key[0] == name:
            world.desired.services[key] = None
    for _ in range(5):
        try:
            await world.operator.commit([Delete("Tenant", tenant.key, tenant.uid)])
            return
        except Conflict:
            await asyncio.sleep(0.5)
        except NotFound:
            return


async def _taint(world: Simulation, trouble: ScheduledFault) -> None:
    client = world.operator_client(world.agent(trouble.target).region.name)
    await actors.edit_spec(client, Node, trouble.target, "", taints=(Taint(key="odd"),))
    await asyncio.sleep(trouble.for_s)
    await actors.edit_spec(client, Node, trouble.target, "", taints=())


async def _change_policy(client: Client, trouble: ScheduledFault) -> None:
    """Publishes other policy rules: scores, a filter, preemption limits, partition mode, queue order or a shadow."""
    plain, stage = PolicyRules(), PromotionStage.ACTIVE
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
            rules = msgspec.structs.replace(plain, preemption=PreemptionRules(per_tenant_per_minute=0))
        case 7:
            rules = msgspec.structs.replace(plain, partition_mode=PartitionMode.PROVISIONAL)
        case 8:
            rules = msgspec.structs.replace(plain, queue=(QueueKey.FAIRNESS, QueueKey.AGE))
        case _:
            rules, stage = plain, PromotionStage.SHADOW
    await actors.edit_spec(client, SchedulerPolicy, "default", "", rules=rules, stage=stage)


def describe_policy_change(amount: float) -> str:
    """Describes the rules that `_change_policy` publishes for this amount."""
    words = (
        "packing score", "packing score", "packing score", "balance score", "no preemption", "filter: slow disks only",
        "no preemption", "provisional while partitioned", "queue by fairness", "shadow only",
    )  # fmt: skip
    return "rolled back to the default rules" if amount < 0 else words[int(amount * 10)]


async def _burst(world: Simulation, trouble: ScheduledFault) -> None:
    """Creates several batch workloads at once."""
    if trouble.target not in world.desired.tenants:
        return
    chance = random_stream(world.seed, f"burst/{trouble.name}")
    number = trouble.name.rpartition("#")[2]
    known = [sort for sort in BURST_PROFILES if sort in world.profiles]
    for index in range(BURST_WORKLOADS):
        make = workload_profiles.PROFILES[chance.choice(known)] if known else workload_profiles.batch
        workload = make(trouble.target, f"burst{number}-{index}", (), chance)
        await actors.create_desired(world.operator, world.desired, workload)
