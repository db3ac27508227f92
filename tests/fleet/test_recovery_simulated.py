"""The whole platform on virtual time: a region dies, perhaps a second; the promise holds and all is given back."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.errors import Fault
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_rules import Placement
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.recovery import Recovery, RecoveryPhase
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, Slot
from holdfast.model.template import Port, Probe, Probes, TcpProbe, Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import RecoveryPromise, Workload, WorkloadSpec
from holdfast.sim import people
from holdfast.sim.ports import stream
from holdfast.sim.world import Shape, World

SHAPE = {"cpu": "100m", "memory": "64Mi"}
REGIONS = ("east", "west", "north")


class Loss(World):
    """Not the usual story: `lost` regions die one after the other, and come back together."""

    lost: tuple[str, ...] = ()
    seconds: float = 0.0
    closed: int = 0

    async def _story(self):
        for host in self.cells():
            host.boot()
        await asyncio.sleep(1.0)
        for agent in self.agents:
            agent.boot()
        land = people.land(self.shape.regions, self.shape.tenants, self.shape.nodes_per_region, ())
        self.wanted = await self._persist(lambda: people.set_up(self.operator, land, stream(self.seed, "people")))
        for item in self._promised():
            await self._persist(lambda item=item: people.create(self.operator, item))
        await self._until(self._all_serve, 120)
        await self._until(self._backed, 60)
        died = self.loop.time()
        for name in self.lost:
            self._kill(name)
            await asyncio.sleep(20.0)
        await self._until(self._recovered, 300)
        self.seconds = self.loop.time() - died
        for name in self.lost:
            self._revive(name)
        await self._until(self._closed, 400)
        return await self._settle()

    def _promised(self):
        template = Template(
            command=("serve",), resources=SHAPE, ports=(Port(name="http"),),
            probes=Probes(readiness=Probe(tcp=TcpProbe(), period_seconds=1.0)),
        )  # fmt: skip
        yield Tenant(metadata=ObjectMeta(name="pay"))
        yield Quota(
            metadata=ObjectMeta(name="quota", namespace="pay"),
            spec=QuotaSpec(hard={"cpu": "6", "memory": "24Gi"}, recovery_allowance={"cpu": "4", "memory": "16Gi"}),
        )
        for name in REGIONS:
            slots = (Slot(resources=SHAPE, count=4, min_zones=2),)
            yield RecoveryBudget(metadata=ObjectMeta(name=name), spec=RecoveryBudgetSpec(region=name, slots=slots))
        yield Workload(
            metadata=ObjectMeta(name="risk", namespace="pay"),
            spec=WorkloadSpec(
                replicas=6, template=template, priority_class_name="high", placement=Placement(spread_regions=2),
                recovery=RecoveryPromise(min_serving=4),
            ),
        )  # fmt: skip

    def _kill(self, name):
        host = self.cell(name)
        host.kept_down = True
        host.crash()
        for agent in self.agents:
            if agent.region is host:
                agent.kept_down = True
                agent.lose_power()

    def _revive(self, name):
        host = self.cell(name)
        host.kept_down = False
        host.boot()
        for agent in self.agents:
            if agent.region is host:
                agent.kept_down = False
                agent.boot()

    async def _until(self, true, most_s):
        deadline = self.loop.time() + most_s
        while self.loop.time() < deadline:
            try:
                if await true():
                    return
            except Fault:
                pass
            await asyncio.sleep(1.0)
        recoveries = (await self.operator.list(Recovery)).items
        risk = await self.operator.get(Workload, "risk", "pay")
        states = [r.status for r in recoveries]
        raise AssertionError(f"{true.__name__} did not come true within {most_s} s: {states}, {risk.status}")

    async def _all_serve(self):
        risk = await self.operator.get(Workload, "risk", "pay")
        return risk.status.summary.serving >= 6

    async def _backed(self):
        risk = await self.operator.get(Workload, "risk", "pay")
        return risk.status.backing is not None and risk.status.backing.backed

    async def _recovered(self):
        found = (await self.operator.list(Recovery)).items
        done = (RecoveryPhase.RECOVERED, RecoveryPhase.FAILING_BACK)
        held = (await self.operator.list(Assignment)).items
        for region in REGIONS:
            if region in self.lost:
                continue
            here = [a for a in held if a.spec.workload == "risk" and a.spec.region == region]
            if sum(a.status.serving for a in here) >= 4 and {r.spec.region for r in found} == set(self.lost):
                return all(r.status.phase in done for r in found)
        return False

    async def _closed(self):
        found = (await self.operator.list(Recovery)).items
        borrowed = [a for a in (await self.operator.list(Assignment)).items if a.spec.purpose is Purpose.RECOVERY]
        return not borrowed and all(r.status.phase is RecoveryPhase.CLOSED for r in found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("lost", [("east",), ("east", "west")])
def test_lost_regions_are_recovered_from_and_everything_is_given_back(seed, lost):
    world = Loss(seed, Shape(regions=REGIONS, nodes_per_region=4), enabled=())
    world.lost = lost
    outcome = world.run()
    assert outcome.violations == () and outcome.failures == ()
    assert outcome.unsettled == ()
    assert world.seconds < 200
