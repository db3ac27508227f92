"""Simulated platform: emergency quota is used in full, ends, and comes back within the time its Override states."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from tests.expected import present
from tests.fleet.staged_simulation import ASKS, REPLICAS, Staged, template

from holdfast.model.meta import Object, ObjectMeta, is_condition_true
from holdfast.model.override import EXPIRED, Override, OverrideKind, OverrideScope, OverrideSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Disruption, Workload, WorkloadSpec
from holdfast.sim import actors
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.scenario_files import SimulationSize

EXTRA = 3
TTL_S = 60.0
DRAIN_S = 40.0


class Emergency(Staged):
    """A workload that fills its quota gets emergency quota for three replicas, and wants two more than that."""

    max_unavailable = 1
    drained_s = 0.0
    fewest_serving = REPLICAS

    async def _run_phases(self) -> tuple[float, ConvergenceCheck | None]:
        await self.bring_up()
        spec = OverrideSpec(
            kind=OverrideKind.EMERGENCY_QUOTA,
            scope=OverrideScope(tenant="pay"),
            reason="a sale",
            quota={"cpu": f"{EXTRA * 100}m", "memory": f"{EXTRA * 64}Mi"},
            ttl_seconds=TTL_S,
            drain_seconds=DRAIN_S,
        )
        made = Override(metadata=ObjectMeta(name="more"), spec=spec)
        await self._persist(partial(actors.create_object, self.operator, made))
        second = self.operator_client("global", user="second")
        await self._persist(partial(actors.edit_spec, second, Override, "more", "", approver="second"))
        wanted = REPLICAS + EXTRA + 2
        await self._persist(partial(actors.edit_spec, self.operator, Workload, "risk", "pay", replicas=wanted))
        await self.until(self._extra_serves, TTL_S)
        await self.until(self._has_ended, 2 * TTL_S)
        began = self.loop.time()
        await self.until(self._is_reverted, 600)
        self.drained_s = self.loop.time() - began
        await asyncio.sleep(30.0)
        return await self._converge()

    def work(self) -> Iterator[Object]:
        yield Tenant(metadata=ObjectMeta(name="pay"))
        hard = {"cpu": f"{REPLICAS * 100}m", "memory": f"{REPLICAS * 64}Mi"}
        yield Quota(metadata=ObjectMeta(name="quota", namespace="pay"), spec=QuotaSpec(hard=dict(hard)))
        spec = WorkloadSpec(
            replicas=REPLICAS, template=template(), disruption=Disruption(max_unavailable=self.max_unavailable)
        )
        yield Workload(metadata=ObjectMeta(name="risk", namespace="pay"), spec=spec)

    async def _serving(self) -> int:
        serving = present(await self.operator.get(Workload, "risk", "pay")).status.summary.serving
        self.fewest_serving = min(serving, self.fewest_serving)
        return serving

    async def _extra_serves(self) -> bool:
        return await self._serving() == REPLICAS + EXTRA

    async def _override(self) -> Override:
        return present(await self.operator.get(Override, "more"))

    async def _has_ended(self) -> bool:
        return (await self._override()).status.phase == EXPIRED

    async def _is_reverted(self) -> bool:
        return is_condition_true((await self._override()).status.conditions, "Reverted") and (
            await self._serving() == REPLICAS
        )

    async def standing(self) -> object:
        return [
            (c.type, c.status, c.message) for c in (await self._override()).status.conditions
        ], await self._serving()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("max_unavailable", "within_s"),
    [(1, DRAIN_S), (0, DRAIN_S + 30)],
    ids=["replicas waiting for quota use no budget", "the deadline ends a drain that the budget forbids"],
)
def test_emergency_quota_comes_back_after_its_end(max_unavailable: int, within_s: float) -> None:
    assert ASKS == {"cpu": "100m", "memory": "64Mi"}
    world = Emergency(1, SimulationSize(regions=("east", "west"), nodes_per_region=3), enabled=())
    world.max_unavailable = max_unavailable
    outcome = world.run()
    assert outcome.violations == () and outcome.failures == ()
    assert world.drained_s <= within_s, f"drained after {world.drained_s} s"
    assert world.drained_s >= (DRAIN_S - 5 if max_unavailable == 0 else 0), "until the deadline the budget holds"
    assert world.fewest_serving == REPLICAS, "nothing within the quota is evicted"
