"""Simulated operators: faults caused by operators, and their undo at the end of the fault phase."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.contract import Client
from holdfast.model.errors import Conflict, Fault, Forbidden, NotFound
from holdfast.model.kinds import BY_NAME
from holdfast.model.node import Node
from holdfast.model.override import EXPIRED, REVOKED, Override, break_glass_prefix
from holdfast.model.placement_rules import Taint, TaintEffect
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
from holdfast.model.workload import Workload
from holdfast.model.writes import Delete
from holdfast.sim import actors, maintenance_windows, override_faults, restores, second_scheduler, workload_profiles
from holdfast.sim.fault_injection import FaultKind
from holdfast.sim.ports import random_stream

if TYPE_CHECKING:
    from holdfast.sim.fault_schedule import ScheduledFault
    from holdfast.sim.simulation import Simulation

COMPONENT_RECORDS = ("Binding", "Reservation", "GrantCopy", "RecoverySlot", "LeasePage", "Decision", "Term")
"""Kinds of a region that no operator deletes."""
BURST_WORKLOADS = 6
CORDONED_BRIEFLY_S = (1.0, 20.0)
DELETED_EVERY_S = (4.0, 16.0)
RECLAIMABLE_DELETED_FRACTION = 0.7
QUOTA_WIDENED = 3.0
GRANTS_FOLLOW_S = 10.0
"""Factor by which quotas are raised before a region is cut off, and the time until its grants have followed."""
QUOTA_LOWERED_SCALES = 6
"""Scale changes of the tenant while its quota is lowered."""
BURST_PROFILES = ("batch", "batch", "dated", "failing", "quick")
"""Profiles of a burst, if the run has them."""


async def apply_operator_fault(simulation: Simulation, fault: ScheduledFault) -> None:
    match fault.kind:
        case FaultKind.CORDON | FaultKind.DRAIN:
            await _close_node(simulation, fault)
        case FaultKind.NODE_DELETED:
            client = simulation.operator_client(simulation.agent(fault.target).region.name)
            await _delete_node(client, fault.target)
        case FaultKind.REPLICA_DELETED:
            await _delete_replica(simulation.operator_client(fault.target), fault)
        case FaultKind.RECORD_DELETED:
            await _delete_records(simulation.operator_client(fault.target), fault)
        case FaultKind.QUOTA_CHANGED:
            await _change_quota(simulation, fault)
        case FaultKind.TENANT_DELETED:
            await _delete_tenant(simulation, fault.target)
        case FaultKind.ZONE_AVOIDED:
            await override_faults.avoid_zone(simulation, fault)
        case FaultKind.POLICY_CHANGED:
            await _change_policy(simulation.operator, fault)
        case FaultKind.OVERRIDE_GIVEN:
            await override_faults.create_override(simulation, fault)
        case FaultKind.BREAK_GLASS:
            await override_faults.create_break_glass(simulation, fault)
        case FaultKind.NODE_TAINTED:
            await _taint(simulation, fault)
        case FaultKind.BURST:
            await _burst(simulation, fault)
        case FaultKind.QUOTA_LOWERED:
            await _lower_quota(simulation, fault)
        case FaultKind.SECOND_SCHEDULER:
            await second_scheduler.propose_randomly(simulation, fault)
        case FaultKind.MAINTENANCE:
            await maintenance_windows.plan_maintenance(simulation, fault)
        case FaultKind.CELL_RESTORED:
            await restores.back_up_and_restore(simulation, fault)


async def undo_operator_changes(simulation: Simulation) -> None:
    """Uncordons nodes, deletes maintenance windows, revokes overrides and restores the default policy."""
    if simulation.plans_maintenance:
        await maintenance_windows.delete_windows(simulation)
    for region in simulation.regions:
        client = simulation.operator_client(region.name)
        for node in (await client.list(Node)).items:
            if node.spec.unschedulable or node.spec.drain or node.spec.taints:
                await actors.edit_spec(
                    client, Node, node.metadata.name, "", unschedulable=False, drain=False, taints=()
                )
        for break_glass in (await client.list(Override)).items:
            ended = break_glass.status.phase in (EXPIRED, REVOKED)
            if break_glass.metadata.name.startswith(break_glass_prefix(region.name)) and not ended:
                await actors.edit_spec(client, Override, break_glass.metadata.name, "", revoked=True)
    for override in (await simulation.operator.list(Override)).items:
        if override.status.phase not in (EXPIRED, REVOKED):
            await actors.edit_spec(simulation.operator, Override, override.metadata.name, "", revoked=True)
    policy = await simulation.operator.get(SchedulerPolicy, "default")
    if policy is not None and policy.spec != SchedulerPolicySpec():
        plain = SchedulerPolicySpec()
        await actors.edit_spec(
            simulation.operator, SchedulerPolicy, "default", "", rules=plain.rules, stage=plain.stage
        )


async def _close_node(simulation: Simulation, fault: ScheduledFault) -> None:
    client = simulation.operator_client(simulation.agent(fault.target).region.name)
    field = "drain" if fault.kind is FaultKind.DRAIN else "unschedulable"
    limit_s = fault.for_s / 2 if fault.kind is FaultKind.DRAIN else 0.0
    await actors.edit_spec(client, Node, fault.target, "", **{field: True}, drain_seconds=limit_s)
    await asyncio.sleep(fault.for_s)
    await actors.edit_spec(client, Node, fault.target, "", **{field: False})


async def cordon_briefly(simulation: Simulation, cell: str, node: str, rng: random.Random) -> None:
    """Cordons the node at once, and uncordons it some seconds later."""
    client = simulation.operator_client(cell)
    with contextlib.suppress(Fault):
        await actors.edit_spec(client, Node, node, "", unschedulable=True)
        await asyncio.sleep(rng.uniform(*CORDONED_BRIEFLY_S))
        await actors.edit_spec(client, Node, node, "", unschedulable=False)


async def _delete_node(client: Client, name: str) -> None:
    node = await client.get(Node, name)
    if node is not None and not node.metadata.terminating:
        await client.commit([Delete("Node", node.key, node.uid)])


async def _delete_replica(client: Client, fault: ScheduledFault, *, reclaimable: bool = False) -> None:
    """Deletes one replica; with `reclaimable` a reclaimable one, if there is any."""
    replicas = (await client.list(Replica)).items
    if reclaimable:
        replicas = tuple(r for r in replicas if r.spec.reclaimable) or replicas
    if replicas:
        chosen = replicas[int(fault.amount * len(replicas))]
        await client.commit([Delete("Replica", chosen.key, chosen.uid)])


async def delete_replicas_in_turn(simulation: Simulation, fault: ScheduledFault, after_s: float) -> None:
    """Deletes some replicas of the region, one after the other, while the fault lasts. Most are reclaimable: only those
    may be replaced by provisional claims while the region is partitioned."""
    rng = random_stream(simulation.seed, f"deleted in turn/{fault.name}")
    client = simulation.operator_client(fault.target)
    await asyncio.sleep(after_s)
    until_s = simulation.loop.time() + fault.for_s - after_s
    while simulation.loop.time() < until_s and not simulation.faults.healed:
        with contextlib.suppress(Fault):
            chosen = msgspec.structs.replace(fault, amount=rng.random())
            await _delete_replica(client, chosen, reclaimable=rng.random() < RECLAIMABLE_DELETED_FRACTION)
        await asyncio.sleep(rng.uniform(*DELETED_EVERY_S))


async def _delete_records(client: Client, fault: ScheduledFault) -> None:
    """Tries to delete one object of every kind that only its component deletes. All of it must be refused."""
    for kind in COMPONENT_RECORDS:
        found: list[Any] = list((await client.list(BY_NAME[kind].type)).items)
        if found:
            chosen = found[int(fault.amount * len(found))]
            with contextlib.suppress(Forbidden):
                await client.commit([Delete(kind, chosen.key, chosen.uid)])


async def _change_quota(simulation: Simulation, fault: ScheduledFault) -> None:
    quota = simulation.desired.quotas.get(fault.target)
    if quota is None or fault.target not in simulation.desired.tenants:
        return
    hard = {name: int(amount * fault.amount) for name, amount in amounts(quota.spec.hard).items()}
    await actors.edit_spec(simulation.operator, Quota, "quota", fault.target, hard=dict(amounts_text(hard)))


async def widen_quotas(simulation: Simulation, fault: ScheduledFault) -> None:
    """Raises the quota of every tenant and waits for the grants, so that regions keep quota for provisional work."""
    for tenant in simulation.size.tenants:
        with contextlib.suppress(Fault):
            await _change_quota(simulation, msgspec.structs.replace(fault, target=tenant, amount=QUOTA_WIDENED))
    await asyncio.sleep(GRANTS_FOLLOW_S)


async def _lower_quota(simulation: Simulation, fault: ScheduledFault) -> None:
    """Lowers the tenant's quota to its use, so that the regions hold more than exists. Meanwhile the tenant scales a
    workload up, and one region is partitioned at first."""
    desired, tenant = simulation.desired, fault.target
    quota = await simulation.operator.get(Quota, "quota", tenant)
    if quota is None or tenant not in desired.tenants or tenant not in desired.quotas:
        return
    rng = random_stream(simulation.seed, f"lowered/{fault.name}")
    used, hard = amounts(quota.status.used), amounts(quota.spec.hard)
    region = rng.choice(simulation.size.regions)
    paths = [(f"region/{region}", "global"), ("global", f"region/{region}")]
    cut = paths if rng.random() < 0.5 else []
    for path in cut:
        simulation.network.cut(*path)
    try:
        lowered = {name: min(amount, max(used.get(name, 0), 1)) for name, amount in hard.items()}
        await actors.edit_spec(simulation.operator, Quota, "quota", tenant, hard=dict(amounts_text(lowered)))
        for _ in range(QUOTA_LOWERED_SCALES):
            await asyncio.sleep(rng.uniform(0.0, 4.0))
            names = sorted(name for name, count in desired.services.items() if name[0] == tenant and count is not None)
            if names and not simulation.faults.healed:
                name = rng.choice(names)
                desired.services[name] = count = rng.randint(0, 4)
                await actors.edit_spec(simulation.operator, Workload, name[1], name[0], replicas=count)
    finally:
        for path in cut:
            simulation.network.restore(*path)


async def _delete_tenant(simulation: Simulation, name: str) -> None:
    """Deletes the tenant and removes it from the desired state."""
    if len(simulation.desired.tenants) < 2:
        return
    tenant = await simulation.operator.get(Tenant, name)
    if tenant is None:
        return
    simulation.desired.tenants = [other for other in simulation.desired.tenants if other != name]
    for key in simulation.desired.services:
        if key[0] == name:
            simulation.desired.services[key] = None
    for _ in range(5):
        try:
            await simulation.operator.commit([Delete("Tenant", tenant.key, tenant.uid)])
            return
        except Conflict:
            await asyncio.sleep(0.5)
        except NotFound:
            return


async def _taint(simulation: Simulation, fault: ScheduledFault) -> None:
    client = simulation.operator_client(simulation.agent(fault.target).region.name)
    effect = TaintEffect.NO_EXECUTE if int(fault.for_s) % 2 else TaintEffect.NO_SCHEDULE
    await actors.edit_spec(client, Node, fault.target, "", taints=(Taint(key="odd", effect=effect),))
    await asyncio.sleep(fault.for_s)
    await actors.edit_spec(client, Node, fault.target, "", taints=())


async def _change_policy(client: Client, fault: ScheduledFault) -> None:
    """Publishes other policy rules: scores, a filter, preemption limits, partition mode, queue order or a shadow."""
    plain, stage = PolicyRules(), PromotionStage.ACTIVE
    match int(fault.amount * 10):
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
    reasons = (
        "packing score",
        "packing score",
        "packing score",
        "balance score",
        "no preemption",
        "filter: slow disks only",
        "no preemption",
        "provisional while partitioned",
        "queue by fairness",
        "shadow only",
    )
    return "rolled back to the default rules" if amount < 0 else reasons[int(amount * 10)]


async def _burst(simulation: Simulation, fault: ScheduledFault) -> None:
    """Creates several batch workloads at once."""
    if fault.target not in simulation.desired.tenants:
        return
    rng = random_stream(simulation.seed, f"burst/{fault.name}")
    number = fault.name.rpartition("#")[2]
    known = [profile for profile in BURST_PROFILES if profile in simulation.profiles]
    for index in range(BURST_WORKLOADS):
        make = workload_profiles.PROFILES[rng.choice(known)] if known else workload_profiles.batch
        workload = make(fault.target, f"burst{number}-{index}", (), rng)
        await actors.create_desired(simulation.operator, simulation.desired, workload)
