"""Simulations in which cells are restored from old backups, under all other faults: the safety invariants hold.

A cell is backed up at a random time and later restored as `holdfast restore` does, while agents and other cells keep
running. User changes since the backup may be lost. Nothing may run twice and no quota may be exceeded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from tests.fleet.staged_simulation import REPLICAS, Staged, template

from holdfast.model.assignment import Assignment
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.workload import Exclusivity, Workload, WorkloadSpec
from holdfast.sim import actors, parallel_runs, restores
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.lost_stores import entries_of
from holdfast.sim.ports import random_stream
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.simulation import Simulation

SEEDS = range(1, 41 if os.environ.get("HOLDFAST_PROVE") else 5)
ATTEMPTS_MAX = 40


class RestoredSimulation(Simulation):
    """The seed draws each restore: cell, time of the backup, time of the restore."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, SimulationSize(nodes_per_region=6, faults_s=200.0))
        self.attempts = 0

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        restoring = [self.loop.create_task(self._restore_later(number)) for number in range(3)]
        try:
            return await super()._run_phases()
        finally:
            await asyncio.gather(*restoring)

    async def _converge(self) -> tuple[float, ConvergenceCheck | None]:
        """Desired state and backup may differ, so only safety is checked, for two more minutes."""
        await asyncio.sleep(120.0)
        bound = [e.key for host in self.cells() for e in (await host.disk.store.range("/bindings/")).entries]
        self.attempts = max((int(key.rpartition(".")[2]) for key in bound), default=0)
        return 0.0, None

    async def _restore_later(self, number: int) -> None:
        rng = random_stream(self.seed, f"restore/{number}")
        host = rng.choice(self.cells())
        await asyncio.sleep(rng.uniform(20.0, 120.0))
        saved = await entries_of(host)
        await asyncio.sleep(rng.uniform(10.0, 80.0))
        await restores.restore(self, host, saved)


class MovedWhileRestored(Staged):
    """All exclusive work moves away from a region that is down, and then the region is restored from an old backup.
    Its agents still run the work under leases of before the restore."""

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        await self.bring_up()
        west = self.cell("west")
        saved = await entries_of(west)
        west.crash()
        west.held_down = True
        await actors.edit_spec(self.operator, Workload, "risk", "pay", placement=PlacementRules(regions=("east",)))
        await self.until(self.withdrawn, 10)
        await restores.restore(self, west, saved)
        await self.until(self.all_in_east, 180)
        return 0.0, None

    async def withdrawn(self) -> bool:
        found = await self.operator.get(Assignment, "risk.west.normal", "pay")
        return found is not None and not found.spec.ordinals

    async def all_in_east(self) -> bool:
        found = await self.operator.get(Assignment, "risk.east.normal", "pay")
        return found is not None and found.status.serving == REPLICAS

    def work(self) -> Iterator[Object]:
        yield from self.tenant()
        spec = WorkloadSpec(replicas=REPLICAS, template=template(), exclusive=Exclusivity())
        yield Workload(metadata=ObjectMeta(name="risk", namespace="pay"), spec=spec)


def test_exclusive_work_of_a_restored_region_moves_only_after_it_has_stopped() -> None:
    world = MovedWhileRestored(1, SimulationSize(nodes_per_region=3), enabled=())
    outcome = world.run()
    assert world.restored_cells == ["west"]
    assert outcome.violations == () and outcome.failures == ()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_cells_restored_from_backups_violate_no_safety_invariant(seed: int) -> None:
    parallel_runs.silence_logs()
    simulation = RestoredSimulation(seed)
    outcome = simulation.run()
    assert len(simulation.restored_cells) == 3
    assert simulation.attempts <= ATTEMPTS_MAX, "replicas are bound again and again"
    violated = [violation for violation in outcome.violations if violation.invariant in restores.SAFETY_INVARIANTS]
    assert not violated, "\n".join(map(str, violated[:5]))
    assert not outcome.failures, outcome.failures
