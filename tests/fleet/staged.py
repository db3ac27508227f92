"""A simulated platform with one healthy service. Each test adds its own events."""

from __future__ import annotations

import asyncio

from holdfast.model.errors import Fault
from holdfast.model.meta import ObjectMeta
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import HealthState, Region
from holdfast.model.template import Port, Probe, Probes, TcpProbe, Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload
from holdfast.sim import people
from holdfast.sim.ports import stream
from holdfast.sim.world import World

ASKS = {"cpu": "100m", "memory": "64Mi"}
REPLICAS = 6


class Staged(World):
    """`work` returns the objects to create, among them workload pay/risk with REPLICAS replicas."""

    async def bring_up(self) -> None:
        for host in self.cells():
            host.boot()
        await asyncio.sleep(1.0)
        for agent in self.agents:
            agent.boot()
        land = people.land(self.shape.regions, self.shape.tenants, self.shape.nodes_per_region, ())
        self.wanted = await self._persist(lambda: people.set_up(self.operator, land, stream(self.seed, "people")))
        await self.until(self.all_healthy, 60)
        for item in self.work():
            await self._persist(lambda item=item: people.create(self.operator, item))
        await self.until(self.all_serve, 120)

    def work(self):
        raise NotImplementedError

    def tenant(self, **quota):
        yield Tenant(metadata=ObjectMeta(name="pay"))
        spec = QuotaSpec(hard={"cpu": "6", "memory": "24Gi"}, **quota)
        yield Quota(metadata=ObjectMeta(name="quota", namespace="pay"), spec=spec)

    async def until(self, true, most_s):
        deadline = self.loop.time() + most_s
        while self.loop.time() < deadline:
            try:
                if await true():
                    return
            except Fault:
                pass
            await asyncio.sleep(1.0)
        raise AssertionError(f"{true.__name__} did not come true within {most_s} s: {await self.standing()}")

    async def standing(self):
        """State to print when a wait fails."""
        return [w.status for w in (await self.operator.list(Workload)).items if w.metadata.name == "risk"]

    async def all_healthy(self):
        found = [r.status for r in (await self.operator.list(Region)).items]
        nodes = [s.report.live_nodes for s in found if s.report is not None and s.health.state is HealthState.HEALTHY]
        return nodes == [self.shape.nodes_per_region] * len(self.shape.regions)

    async def all_serve(self):
        risk = await self.operator.get(Workload, "risk", "pay")
        return risk.status.summary.serving >= REPLICAS


def template() -> Template:
    return Template(
        command=("serve",), resources=ASKS, ports=(Port(name="http"),),
        probes=Probes(readiness=Probe(tcp=TcpProbe(), period_seconds=1.0)),
    )  # fmt: skip
