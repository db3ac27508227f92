"""A reporting region keeps its grant leases even without a full comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.fleet.staged_simulation import REPLICAS, Staged, template

from holdfast.model import limits
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.times import parse_time
from holdfast.model.workload import Workload, WorkloadSpec
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.ports import EPOCH_S
from holdfast.sim.scenario_files import SimulationSize


class Quiet(Staged):
    """Nothing happens for several leases. `left_s` is the remaining time of each grant then."""

    left_s: dict[str, float]

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        await self.bring_up()
        await asyncio.sleep(5 * limits.GRANT_LEASE_S)
        now_s = EPOCH_S + self.loop.time()
        self.left_s = {}
        for region in self.size.regions:
            for copy in (await self.operator_client(region).list(GrantCopy)).items:
                self.left_s[f"{region}/{copy.key}"] = parse_time(copy.spec.lease_expires_at) - now_s
        return await self._converge()

    def work(self) -> Iterator[Object]:
        yield from self.tenant()
        meta = ObjectMeta(name="risk", namespace="pay")
        yield Workload(metadata=meta, spec=WorkloadSpec(replicas=REPLICAS, template=template()))


@pytest.mark.slow
def test_grant_leases_are_renewed_by_region_reports_only() -> None:
    world = Quiet(1, SimulationSize(nodes_per_region=3, resync_enabled=False), enabled=())
    outcome = world.run()
    assert outcome.violations == () and outcome.unconverged == ()
    assert {name.partition("/")[0] for name in world.left_s} == {"east", "west"}
    assert min(world.left_s.values()) > limits.GRANT_LEASE_S / 4, world.left_s
