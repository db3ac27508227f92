"""Simulated platform: all nodes of a region are drained, and its pending replicas spill over.

The checkers of the simulation fail if replicas oscillate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from tests.fleet.staged_simulation import REPLICAS, Staged, template

from holdfast.model.assignment import Assignment
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.node import Node
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.workload import Disruption, Workload, WorkloadSpec
from holdfast.sim import actors
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.scenario_files import SimulationSize

REGIONS = ("east", "north", "west")


class Full(Staged):
    """A workload in two of three regions. All nodes of one of them are drained for ten minutes."""

    full = ""
    seconds = 0.0
    before: dict[str, int]
    after: dict[str, int]
    at_last: dict[str, int]

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        await self.bring_up()
        self.before = await self._shares()
        self.full = max(self.before, key=lambda name: (self.before[name], name))
        await self._drain(on=True)
        began = self.loop.time()
        await self.until(self._moved, 300)
        self.seconds = self.loop.time() - began
        self.after = await self._shares()
        await asyncio.sleep(600.0)
        await self._drain(on=False)
        settled = await self._converge()
        self.at_last = await self._shares()
        return settled

    def work(self) -> Iterator[Object]:
        yield from self.tenant()
        yield Workload(
            metadata=ObjectMeta(name="risk", namespace="pay"),
            spec=WorkloadSpec(
                replicas=REPLICAS,
                template=template(),
                placement=PlacementRules(spread_regions=2),
                disruption=Disruption(max_unavailable=REPLICAS),
            ),
        )

    async def _drain(self, *, on: bool) -> None:
        for agent in self.agents:
            if agent.region.name != self.full:
                continue
            client, name = self.operator_client(self.full), agent.name
            await self._persist(partial(actors.edit_spec, client, Node, name, "", drain=on))

    async def _shares(self) -> dict[str, int]:
        held = (await self.operator.list(Assignment)).items
        return {a.spec.region: a.spec.replicas for a in held if a.spec.workload == "risk" and a.spec.replicas}

    async def standing(self) -> object:
        return await self._shares()

    async def _moved(self) -> bool:
        return self.full not in await self._shares() and await self.all_serve()


@pytest.mark.slow
def test_pending_replicas_of_a_drained_region_serve_elsewhere() -> None:
    world = Full(1, SimulationSize(regions=REGIONS, nodes_per_region=3), enabled=())
    outcome = world.run()
    assert outcome.violations == () and outcome.failures == ()
    assert outcome.unconverged == ()
    assert len(world.before) == 2 and sum(world.after.values()) == REPLICAS
    assert world.full not in world.after and len(world.after) <= 2, "spreadRegions is respected"
    assert 60 <= world.seconds < 240
    assert world.at_last == world.after, "placed replicas do not move back"
