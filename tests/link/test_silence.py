"""A hung cell is noticed within ten seconds, whatever hangs: the process, or only its disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.expected import present
from tests.fleet.staged_simulation import REPLICAS, Staged, template

from holdfast.model import connectivity
from holdfast.model.core import Lease
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.region import HealthState, Region
from holdfast.model.workload import Workload, WorkloadSpec
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.scenario_files import SimulationSize

NOTICED_WITHIN_S = 10
CONTACT_KEY = f"/leases/{connectivity.NAMESPACE}/{connectivity.NAME}"


class Hung(Staged):
    """The process or disk of one cell hangs for a minute. `noticed_s` is when that was on record."""

    def __init__(self, cell: str, what: str) -> None:
        super().__init__(1, SimulationSize(nodes_per_region=3), enabled=())
        self.hung_cell, self.what = cell, what
        self.noticed_s: dict[str, float] = {}

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        await self.bring_up()
        await asyncio.sleep(17.3)
        assert not self.silent("east") and not self.silent("west")
        host, began_s = self.cell(self.hung_cell), self.loop.time()
        if self.what == "process":
            host.pause(60.0)
        else:
            host.disk.hung = True
        while self.loop.time() < began_s + 60.0:
            for name in self.watchers():
                if self.notices(name):
                    self.noticed_s.setdefault(name, self.loop.time() - began_s)
            await asyncio.sleep(0.2)
        host.disk.hung = False
        return await self._converge()

    def watchers(self) -> tuple[str, ...]:
        return tuple(self.size.regions) if self.hung_cell == "global" else ("global",)

    def notices(self, watcher: str) -> bool:
        if watcher != "global":
            return self.silent(watcher)
        region: Region = self.checkers.state("global")[f"/regions/{self.hung_cell}"]
        return region.status.health.state is not HealthState.HEALTHY

    def silent(self, region: str) -> bool:
        lease: Lease | None = self.checkers.state(region).get(CONTACT_KEY)
        return not connectivity.is_connected(present(lease))

    def work(self) -> Iterator[Object]:
        yield from self.tenant()
        meta = ObjectMeta(name="risk", namespace="pay")
        yield Workload(metadata=meta, spec=WorkloadSpec(replicas=REPLICAS, template=template()))


@pytest.mark.parametrize("what", ["process", "disk"])
@pytest.mark.parametrize("cell", ["global", "east"])
def test_hung_cell_is_noticed_within_ten_seconds(cell: str, what: str) -> None:
    world = Hung(cell, what)
    outcome = world.run()
    assert outcome.violations == () and outcome.unconverged == () and outcome.failures == ()
    assert set(world.noticed_s) == set(world.watchers())
    assert max(world.noticed_s.values()) <= NOTICED_WITHIN_S, world.noticed_s
