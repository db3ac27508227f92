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

_SEPARATE_KINDS = (OverrideKind.AVOID_ZONE, OverrideKind.CONFIRM_DELETION, OverrideKind.PAUSE_REBALANCE)
"""Kinds that `create_override` does not draw: they have faults or scenarios of their own."""


async def avoid_zone(simulation: Simulation, fault: ScheduledFault) -> None:
    region = fault.target.rpartition("-")[0]
    scope = OverrideScope(region=region, zone=fault.target)
    await _create_override(simulation, fault, OverrideKind.AVOID_ZONE, scope)


async def create_override(simulation: Simulation, fault: ScheduledFault) -> None:
    """Creates an override of a random kind. A second operator approves most of them, and some are revoked early."""
    rng = random_stream(simulation.seed, f"override/{fault.name}")
    kinds = [k for k in OverrideKind if k not in _SEPARATE_KINDS]
    scaling = any(made.spec.autoscale is not None for made in simulation.desired.workloads.values())
    kind = rng.choice([*kinds, *[OverrideKind.PAUSE_AUTOSCALER] * 3] if scaling else kinds)
    scope = OverrideScope(region=fault.target)
    more: dict[str, Any] = {}
    if kind in (OverrideKind.EMERGENCY_QUOTA, OverrideKind.RAISE_PRIORITY):
        if not simulation.desired.tenants:
            return
        tenant = rng.choice(simulation.desired.tenants)
        scope = OverrideScope(tenant=tenant)
        more = {"quota": {"cpu": "2", "memory": "4Gi"}}
        if kind is OverrideKind.RAISE_PRIORITY:
            known = [w.metadata.name for w in (await simulation.operator.list(Workload, tenant)).items]
            if not known:
                return
            scope, more = OverrideScope(tenant=tenant, workload=rng.choice(known)), {"priority": 150}
    elif kind is OverrideKind.PIN_POLICY:
        revisions = [r.metadata.name for r in (await simulation.operator.list(PolicyRevision)).items]
        if not revisions:
            return
        more = {"policy_revision": rng.choice(revisions)}
    name = await _create_override(simulation, fault, kind, scope, **more)
    await asyncio.sleep(rng.uniform(0.5, 5.0))
    if rng.random() < 0.7:
        await actors.edit_spec(
            simulation.operator_client("global", user="second"), Override, name, "", approver="second"
        )
    if rng.random() < 0.3:
        await asyncio.sleep(fault.for_s / 2)
        await actors.edit_spec(simulation.operator, Override, name, "", revoked=True)


async def create_break_glass(simulation: Simulation, fault: ScheduledFault) -> None:
    """Creates a break-glass override in a region, which accepts it only while partitioned. Some are revoked, in the
    region or in the global cell."""
    rng = random_stream(simulation.seed, f"override/{fault.name}")
    region = fault.target
    undrawn = (OverrideKind.PIN_POLICY, OverrideKind.PAUSE_REBALANCE)
    kind = rng.choice([k for k in RULES if RULES[k].break_glass and k not in undrawn])
    scope = OverrideScope(region=region)
    more: dict[str, Any] = {}
    if kind is OverrideKind.AVOID_ZONE:
        scope = OverrideScope(region=region, zone=rng.choice(actors.zones_of(region)))
    elif kind is OverrideKind.RAISE_PRIORITY:
        scope = OverrideScope(region=region, tenant=rng.choice(simulation.desired.tenants), workload="any")
        more = {"priority": 150}
    name = f"{break_glass_prefix(region)}{fault.name.rpartition('#')[2]}"
    spec = OverrideSpec(kind=kind, scope=scope, reason="nobody answers", ttl_seconds=max(1.0, fault.for_s), **more)
    client = simulation.operator_client(region)
    await actors.create_object(client, Override(metadata=ObjectMeta(name=name), spec=spec))
    await asyncio.sleep(fault.for_s / 2)
    if rng.random() < 0.5:
        revoker = client if rng.random() < 0.5 else simulation.operator
        await actors.edit_spec(revoker, Override, name, "", revoked=True)


async def _create_override(
    simulation: Simulation, fault: ScheduledFault, kind: OverrideKind, scope: OverrideScope, **more: Any
) -> str:
    name = f"{kind.value.lower()}-{fault.name.rpartition('#')[2]}"
    spec = OverrideSpec(kind=kind, scope=scope, reason="it looked wrong", ttl_seconds=max(1.0, fault.for_s), **more)
    await actors.create_object(simulation.operator, Override(metadata=ObjectMeta(name=name), spec=spec))
    return name
