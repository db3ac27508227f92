"""Simulated operators that create overrides of every kind: approved or not, revoked or left to expire."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.fleet.override_kinds import RULES
from holdfast.model.meta import ObjectMeta
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, break_glass_prefix
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.workload import Workload
from holdfast.sim import actors
from holdfast.sim.ports import random_stream

if TYPE_CHECKING:
    from holdfast.sim.fault_schedule import ScheduledFault
    from holdfast.sim.simulation import Simulation


async def avoid_zone(world: Simulation, trouble: ScheduledFault) -> None:
    region = trouble.target.rpartition("-")[0]
    scope = OverrideScope(region=region, zone=trouble.target)
    await _ask(world, trouble, OverrideKind.AVOID_ZONE, scope)


async def create_override(world: Simulation, trouble: ScheduledFault) -> None:
    """Creates an override of a random kind. A second operator approves most of them, and some are revoked early."""
    chance = random_stream(world.seed, f"override/{trouble.name}")
    kinds = [k for k in OverrideKind if k is not OverrideKind.AVOID_ZONE]
    scaling = any(made.spec.autoscale is not None for made in world.desired.workloads.values())
    kind = chance.choice([*kinds, *[OverrideKind.PAUSE_AUTOSCALER] * 3] if scaling else kinds)
    scope = OverrideScope(region=trouble.target)
    more: dict[str, Any] = {}
    if kind in (OverrideKind.EMERGENCY_QUOTA, OverrideKind.RAISE_PRIORITY):
        if not world.desired.tenants:
            return
        tenant = chance.choice(world.desired.tenants)
        scope = OverrideScope(tenant=tenant)
        more = {"quota": {"cpu": "2", "memory": "4Gi"}}
        if kind is OverrideKind.RAISE_PRIORITY:
            known = [w.metadata.name for w in (await world.operator.list(Workload, tenant)).items]
            if not known:
                return
            scope, more = OverrideScope(tenant=tenant, workload=chance.choice(known)), {"priority": 150}
    elif kind is OverrideKind.PIN_POLICY:
        revisions = [r.metadata.name for r in (await world.operator.list(PolicyRevision)).items]
        if not revisions:
            return
        more = {"policy_revision": chance.choice(revisions)}
    name = await _ask(world, trouble, kind, scope, **more)
    await asyncio.sleep(chance.uniform(0.5, 5.0))
    if chance.random() < 0.7:
        await actors.edit_spec(world.operator_client("global", who="second"), Override, name, "", approver="second")
    if chance.random() < 0.3:
        await asyncio.sleep(trouble.for_s / 2)
        await actors.edit_spec(world.operator, Override, name, "", revoked=True)


async def create_break_glass(world: Simulation, trouble: ScheduledFault) -> None:
    """Creates a break-glass override in a region, which accepts it only while partitioned. Some are revoked, in the
    region or in the global cell."""
    chance = random_stream(world.seed, f"override/{trouble.name}")
    region = trouble.target
    kind = chance.choice([k for k in RULES if RULES[k].break_glass and k is not OverrideKind.PIN_POLICY])
    scope = OverrideScope(region=region)
    more: dict[str, Any] = {}
    if kind is OverrideKind.AVOID_ZONE:
        scope = OverrideScope(region=region, zone=chance.choice(actors.zones_of(region)))
    elif kind is OverrideKind.RAISE_PRIORITY:
        scope = OverrideScope(region=region, tenant=chance.choice(world.desired.tenants), workload="any")
        more = {"priority": 150}
    name = f"{break_glass_prefix(region)}{trouble.name.rpartition('#')[2]}"
    spec = OverrideSpec(kind=kind, scope=scope, reason="nobody answers", ttl_seconds=max(1.0, trouble.for_s), **more)
    here = world.operator_client(region)
    await actors.create_object(here, Override(metadata=ObjectMeta(name=name), spec=spec))
    await asyncio.sleep(trouble.for_s / 2)
    if chance.random() < 0.5:
        revoker = here if chance.random() < 0.5 else world.operator
        await actors.edit_spec(revoker, Override, name, "", revoked=True)


async def _ask(world: Simulation, trouble: ScheduledFault, kind: OverrideKind, scope: OverrideScope, **more: Any) -> str:
    name = f"{kind.value.lower()}-{trouble.name.rpartition('#')[2]}"
    spec = OverrideSpec(kind=kind, scope=scope, reason="it looked wrong", ttl_seconds=max(1.0, trouble.for_s), **more)
    await actors.create_object(world.operator, Override(metadata=ObjectMeta(name=name), spec=spec))
    return name
