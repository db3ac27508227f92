"""Simulated platform: a service without recovery objective loses a region for longer than `reassign.afterSeconds`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fleet.staged_simulation import REPLICAS, template
from tests.fleet.test_recovery_simulated import Loss

from holdfast.model.assignment import Assignment
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.workload import ReassignAfterLoss, Workload, WorkloadSpec
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.scenario_files import SimulationSize

AFTER_S = 40.0
REGIONS = ("east", "west", "north")


class LongLoss(Loss):
    """East is lost until all replicas serve in the other regions, then returns."""

    failback = False
    seconds = 0.0
    at_last: dict[str, int]

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        await self.bring_up()
        self._kill("east")
        began = self.loop.time()
        await self.until(self._serves_elsewhere, 300)
        self.seconds = self.loop.time() - began
        self._revive("east")
        await self.until(self.all_healthy, 120)
        settled = await self._converge()
        held = (await self.operator.list(Assignment)).items
        self.at_last = {a.spec.region: a.spec.replicas for a in held if a.spec.workload == "risk" and a.spec.replicas}
        return settled

    def work(self) -> Iterator[Object]:
        yield from self.tenant()
        reassign = ReassignAfterLoss(after_seconds=AFTER_S, failback=self.failback)
        spec = WorkloadSpec(replicas=REPLICAS, template=template(), reassign=reassign)
        yield Workload(metadata=ObjectMeta(name="risk", namespace="pay"), spec=spec)

    async def _serves_elsewhere(self) -> bool:
        held = (await self.operator.list(Assignment)).items
        there = [a for a in held if a.spec.workload == "risk" and a.spec.region != "east"]
        return sum(a.status.serving for a in there) >= REPLICAS

    async def standing(self) -> object:
        held = (await self.operator.list(Assignment)).items
        return [(a.spec.region, a.spec.replicas, a.status.serving) for a in held if a.spec.workload == "risk"]


@pytest.mark.slow
@pytest.mark.parametrize("failback", [False, True])
def test_simulated_service_is_reassigned_after_a_long_loss(failback: bool) -> None:
    world = LongLoss(1, SimulationSize(regions=REGIONS, nodes_per_region=3), enabled=())
    world.failback = failback
    outcome = world.run()
    assert outcome.violations == () and outcome.failures == ()
    assert outcome.unconverged == ()
    assert AFTER_S <= world.seconds < AFTER_S + 60, world.seconds
    expected = {"east": 2, "north": 2, "west": 2} if failback else {"north": 3, "west": 3}
    assert world.at_last == expected
