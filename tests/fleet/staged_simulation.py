"""A simulated platform with one healthy service. Each test adds its own events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from tests.expected import present

from holdfast.model.errors import Fault
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.probe import Probe, TcpProbe
from holdfast.model.quantity import Amount
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import HealthState, Region
from holdfast.model.template import Port, Probes, Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload
from holdfast.sim import actors
from holdfast.sim.ports import random_stream
from holdfast.sim.simulation import Simulation

ASKS: dict[str, Amount] = {"cpu": "100m", "memory": "64Mi"}
REPLICAS = 6


class Staged(Simulation):
    """`work` returns the objects to create, among them workload pay/risk with REPLICAS replicas."""

    async def bring_up(self) -> None:
        for host in self.cells():
            host.boot()
        await asyncio.sleep(1.0)
        for agent in self.agents:
            agent.boot()
        land = actors.make_topology(self.size.regions, self.size.tenants, self.size.nodes_per_region, ())
        self.desired = await self._persist(
            lambda: actors.create_initial_objects(self.operator, land, random_stream(self.seed, "people"))
        )
        await self.until(self.all_healthy, 60)
        for item in self.work():
            await self._persist(partial(actors.create_object, self.operator, item))
        await self.until(self.all_serve, 120)

    def work(self) -> Iterator[Object]:
        raise NotImplementedError

    def tenant(self, **quota: Any) -> Iterator[Object]:
        yield Tenant(metadata=ObjectMeta(name="pay"))
        spec = QuotaSpec(hard={"cpu": "6", "memory": "24Gi"}, **quota)
        yield Quota(metadata=ObjectMeta(name="quota", namespace="pay"), spec=spec)

    async def until(self, true: Callable[[], Awaitable[bool]], most_s: float) -> None:
        deadline = self.loop.time() + most_s
        while self.loop.time() < deadline:
            try:
                if await true():
                    return
            except Fault:
                pass
            await asyncio.sleep(1.0)
        raise AssertionError(f"{true.__name__} did not come true within {most_s} s: {await self.standing()}")

    async def standing(self) -> object:
        """State to print when a wait fails."""
        return [w.status for w in (await self.operator.list(Workload)).items if w.metadata.name == "risk"]

    async def all_healthy(self) -> bool:
        found = [r.status for r in (await self.operator.list(Region)).items]
        nodes = [s.report.live_nodes for s in found if s.report is not None and s.health.state is HealthState.HEALTHY]
        return nodes == [self.size.nodes_per_region] * len(self.size.regions)

    async def all_serve(self) -> bool:
        risk = present(await self.operator.get(Workload, "risk", "pay"))
        return risk.status.summary.serving >= REPLICAS


def template() -> Template:
    return Template(
        command=("serve",),
        resources=ASKS,
        ports=(Port(name="http"),),
        probes=Probes(readiness=Probe(tcp=TcpProbe(), period_seconds=1.0)),
    )
