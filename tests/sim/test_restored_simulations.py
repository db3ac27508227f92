"""Simulations in which cells are restored from old backups, under all other faults: the safety invariants hold.

A cell is backed up at a random time and later restored as `holdfast restore` does, while agents and other cells keep
running. User changes since the backup may be lost. Nothing may run twice and no quota may be exceeded.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from holdfast.authority import restore_records
from holdfast.sim import parallel_runs
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.hosts import CellHost
from holdfast.sim.ports import EPOCH_S, random_stream
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.simulation import Simulation
from holdfast.store.contract import Put, Remove, Txn

SEEDS = range(1, 41 if os.environ.get("HOLDFAST_PROVE") else 5)
ATTEMPTS_MAX = 40
SAFETY_INVARIANTS = {"S1", "S2", "S3", "S4", "S5", "S7"}


class RestoredSimulation(Simulation):
    """The seed draws each restore: cell, time of the backup, time of the restore."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, SimulationSize(nodes_per_region=6, faults_s=200.0))
        self.restored: list[str] = []
        self.attempts = 0

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        restores = [self.loop.create_task(self._restore_later(number)) for number in range(3)]
        try:
            return await super()._run_phases()
        finally:
            await asyncio.gather(*restores)

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
        saved = [Put(e.key, e.value) for e in (await host.disk.store.range("")).entries]
        await asyncio.sleep(rng.uniform(10.0, 80.0))
        host.crash()
        known = restore_records.incarnation_of(await self._value(host, restore_records.incarnation_key()))
        now_s = EPOCH_S + self.loop.time()
        entries, _ = restore_records.restored_entries(host.name, saved, now_s, f"restore-{self.seed}-{number}", known)
        await self._replace(host, entries)
        self.restored.append(host.name)
        host.boot()

    async def _value(self, host: CellHost, key: str) -> bytes | None:
        entry = await host.disk.store.get(key)
        return entry.value if entry is not None else None

    async def _replace(self, host: CellHost, entries: list[Put]) -> None:
        """Replaces the whole state in one commit. No watch continues across it."""
        restored_keys = {put.key for put in entries}
        removals = [Remove(e.key) for e in (await host.disk.store.range("")).entries if e.key not in restored_keys]
        before = len(self.checkers.violations)
        await host.disk.commit(Txn(writes=(*removals, *entries)))
        del self.checkers.violations[before:]  # a restore is not checked as a commit
        await host.disk.store.compact(host.disk.store.head)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_cells_restored_from_backups_violate_no_safety_invariant(seed: int) -> None:
    parallel_runs.silence_logs()
    simulation = RestoredSimulation(seed)
    outcome = simulation.run()
    assert len(simulation.restored) == 3
    assert simulation.attempts <= ATTEMPTS_MAX, "replicas are bound again and again"
    violated = [violation for violation in outcome.violations if violation.invariant in SAFETY_INVARIANTS]
    assert not violated, "\n".join(map(str, violated[:5]))
    assert not outcome.failures, outcome.failures
