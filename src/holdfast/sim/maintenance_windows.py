"""Simulated operators that plan maintenance of a region, a zone or some nodes, and some that call it off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from holdfast.model.errors import Fault
from holdfast.model.maintenance_window import MaintenanceWindow, MaintenanceWindowSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.times import seconds_text
from holdfast.model.writes import Delete
from holdfast.sim import actors
from holdfast.sim.ports import random_stream

if TYPE_CHECKING:
    from holdfast.sim.fault_schedule import ScheduledFault
    from holdfast.sim.simulation import Simulation

SHORTEST_S = 60.0
"""Validation accepts no shorter window."""


async def plan_maintenance(simulation: Simulation, fault: ScheduledFault) -> None:
    """Creates a window that starts soon. Some are deleted early; the others last until their end."""
    rng = random_stream(simulation.seed, f"maintenance/{fault.name}")
    region, zone = fault.target, ""
    nodes: tuple[str, ...] = ()
    match rng.randrange(4):
        case 0:
            zone = rng.choice(actors.zones_of(region))
        case 1 | 2:
            known = [agent.name for agent in simulation.agents if agent.region.name == region]
            nodes = tuple(sorted(rng.sample(known, min(len(known), rng.randint(1, 4)))))
    now, notice_s = simulation.global_cell.clock.now(), rng.uniform(0.0, 40.0)
    start_s = now + rng.uniform(0.0, 45.0)
    lasts_s = max(SHORTEST_S, fault.for_s) + 1.0
    spec = MaintenanceWindowSpec(
        region=region,
        zone=zone,
        nodes=nodes,
        start=seconds_text(start_s).rstrip("Z"),
        end=seconds_text(start_s + lasts_s).rstrip("Z"),
        reason="new kernels",
        owner="the operators",
        notice_seconds=notice_s,
        drain=rng.random() < 0.8,
    )
    name = f"window-{fault.name.rpartition('#')[2]}"
    await actors.create_object(simulation.operator, MaintenanceWindow(metadata=ObjectMeta(name=name), spec=spec))
    if rng.random() < 0.3:
        await asyncio.sleep(rng.uniform(5.0, lasts_s))
        with contextlib.suppress(Fault):
            await _delete(simulation, name)


async def delete_windows(simulation: Simulation) -> None:
    for window in (await simulation.operator.list(MaintenanceWindow)).items:
        await _delete(simulation, window.metadata.name)


async def _delete(simulation: Simulation, name: str) -> None:
    window = await simulation.operator.get(MaintenanceWindow, name)
    if window is not None:
        await simulation.operator.commit([Delete("MaintenanceWindow", window.key, window.uid)])
