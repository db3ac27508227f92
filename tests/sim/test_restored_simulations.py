"""Cells restored from old backups in simulated worlds, under all other faults: S1 to S7 hold, on disk and on machines.

A backup of every cell is taken at some moment; later one of them is restored from it, with all that `holdfast restore`
does, while agents, work and the other cells go on. What people wanted since the backup may be gone; what must not
happen is that something runs twice, or that more is spent than there is.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from holdfast.authority import restore_records
from holdfast.sim import parallel_runs
from holdfast.sim.ports import EPOCH_S, random_stream
from holdfast.sim.simulation import Simulation, WorldSize
from holdfast.store.contract import Put, Remove, Txn

SEEDS = range(1, 41 if os.environ.get("HOLDFAST_PROVE") else 5)
ATTEMPTS_MAX = 40
JUDGED = {"S1", "S2", "S3", "S4", "S5", "S7"}


class RestoredWorld(Simulation):
    """Each restore is drawn from the seed: which cell, when saved, when restored."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, WorldSize(nodes_per_region=6, faults_s=200.0))
        self.restored: list[str] = []
        self.attempts = 0

    async def _story(self):
        acts = [self.loop.create_task(self._restore_later(number)) for number in range(3)]
        try:
            return await super()._story()
        finally:
            await asyncio.gather(*acts)

    async def _settle(self):
        """What people want and what the backups knew need not agree any more: only safety is judged, for a while."""
        await asyncio.sleep(120.0)
        bound = [e.key for host in self.cells() for e in (await host.disk.store.range("/bindings/")).entries]
        self.attempts = max((int(key.rpartition(".")[2]) for key in bound), default=0)
        return 0.0, None

    async def _restore_later(self, number: int) -> None:
        chance = random_stream(self.seed, f"restore/{number}")
        host = chance.choice(self.cells())
        await asyncio.sleep(chance.uniform(20.0, 120.0))
        saved = [Put(e.key, e.value) for e in (await host.disk.store.range("")).entries]
        await asyncio.sleep(chance.uniform(10.0, 80.0))
        host.crash()
        known = restore_records.incarnation_of(await self._value(host, restore_records.incarnation_key()))
        now_s = EPOCH_S + self.loop.time()
        entries, _ = restore_records.restored_entries(host.name, saved, now_s, f"restore-{self.seed}-{number}", known)
        await self._replace(host, entries)
        self.restored.append(host.name)
        host.boot()

    async def _value(self, host, key: str) -> bytes | None:
        entry = await host.disk.store.get(key)
        return entry.value if entry is not None else None

    async def _replace(self, host, entries: list[Put]) -> None:
        """One commit from the world of today to that of the backup; nobody can watch across it."""
        kept = {put.key for put in entries}
        gone = [Remove(e.key) for e in (await host.disk.store.range("")).entries if e.key not in kept]
        before = len(self.checkers.violations)
        await host.disk.commit(Txn(writes=(*gone, *entries)))
        del self.checkers.violations[before:]  # a restore is no commit of anyone's
        await host.disk.store.compact(host.disk.store.head)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_runs_twice_and_nothing_is_overspent(seed: int) -> None:
    parallel_runs.silence_logs()
    world = RestoredWorld(seed)
    outcome = world.run()
    assert len(world.restored) == 3
    assert world.attempts <= ATTEMPTS_MAX, "work is bound, not started, and bound again"
    broken = [violation for violation in outcome.violations if violation.invariant in JUDGED]
    assert not broken, "\n".join(map(str, broken[:5]))
    assert not outcome.failures, outcome.failures
