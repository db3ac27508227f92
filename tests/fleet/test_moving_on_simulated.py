"""The whole platform on virtual time: a region that is full of drained nodes, and work that does not wait there for
ever. The checkers of every world look on: nothing goes to and fro."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.model.assignment import Assignment
from holdfast.model.errors import Fault
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Node
from holdfast.model.placement_rules import Placement
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import HealthState, Region
from holdfast.model.template import Port, Probe, Probes, TcpProbe, Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Disruption, Workload, WorkloadSpec
from holdfast.sim import people
from holdfast.sim.ports import stream
from holdfast.sim.world import Shape, World

REGIONS = ("east", "north", "west")
SHAPE = {"cpu": "100m", "memory": "64Mi"}


class Full(World):
    """Work in two of three regions; every node of one of them is drained for ten minutes."""

    full = ""
    seconds = 0.0
    before: dict[str, int]
    after: dict[str, int]
    at_last: dict[str, int]

    async def _story(self):
        for host in self.cells():
            host.boot()
        await asyncio.sleep(1.0)
        for agent in self.agents:
            agent.boot()
        land = people.land(self.shape.regions, self.shape.tenants, self.shape.nodes_per_region, ())
        self.wanted = await self._persist(lambda: people.set_up(self.operator, land, stream(self.seed, "people")))
        await self._until(self._all_healthy, 60)
        for item in self._work():
            await self._persist(lambda item=item: people.create(self.operator, item))
        await self._until(self._all_serve, 120)
        self.before = await self._shares()
        self.full = max(self.before, key=lambda name: (self.before[name], name))
        await self._drain(on=True)
        began = self.loop.time()
        await self._until(self._moved, 300)
        self.seconds = self.loop.time() - began
        self.after = await self._shares()
        await asyncio.sleep(600.0)
        await self._drain(on=False)
        settled = await self._settle()
        self.at_last = await self._shares()
        return settled

    def _work(self):
        template = Template(
            command=("serve",), resources=SHAPE, ports=(Port(name="http"),),
            probes=Probes(readiness=Probe(tcp=TcpProbe(), period_seconds=1.0)),
        )  # fmt: skip
        yield Tenant(metadata=ObjectMeta(name="pay"))
        yield Quota(
            metadata=ObjectMeta(name="quota", namespace="pay"), spec=QuotaSpec(hard={"cpu": "6", "memory": "24Gi"})
        )
        yield Workload(
            metadata=ObjectMeta(name="risk", namespace="pay"),
            spec=WorkloadSpec(
                replicas=6, template=template, placement=Placement(spread_regions=2),
                disruption=Disruption(max_unavailable=6),
            ),
        )  # fmt: skip

    async def _drain(self, *, on):
        for agent in self.agents:
            if agent.region.name != self.full:
                continue
            client, name = self.operator_of(self.full), agent.name
            await self._persist(lambda client=client, name=name: people.edit(client, Node, name, "", drain=on))

    async def _shares(self):
        held = (await self.operator.list(Assignment)).items
        return {a.spec.region: a.spec.replicas for a in held if a.spec.workload == "risk" and a.spec.replicas}

    async def _until(self, true, most_s):
        deadline = self.loop.time() + most_s
        while self.loop.time() < deadline:
            try:
                if await true():
                    return
            except Fault:
                pass
            await asyncio.sleep(1.0)
        raise AssertionError(f"{true.__name__} did not come true within {most_s} s: {await self._shares()}")

    async def _all_healthy(self):
        found = [r.status for r in (await self.operator.list(Region)).items]
        nodes = [s.report.live_nodes for s in found if s.report is not None and s.health.state is HealthState.HEALTHY]
        return nodes == [self.shape.nodes_per_region] * len(self.shape.regions)

    async def _all_serve(self):
        risk = await self.operator.get(Workload, "risk", "pay")
        return risk.status.summary.serving >= 6

    async def _moved(self):
        return self.full not in await self._shares() and await self._all_serve()


@pytest.mark.slow
def test_what_waits_in_a_drained_region_serves_elsewhere_and_stays_there():
    world = Full(1, Shape(regions=REGIONS, nodes_per_region=3), enabled=())
    outcome = world.run()
    assert outcome.violations == () and outcome.failures == ()
    assert outcome.unsettled == ()
    assert len(world.before) == 2 and sum(world.after.values()) == 6
    assert world.full not in world.after and len(world.after) <= 2, "a hard spread is kept"
    assert 60 <= world.seconds < 240
    assert world.at_last == world.after, "what has its place does not go back"
