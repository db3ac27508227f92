"""A region with a stale summary gets no new work, even if its `lostAfterSeconds` is long. Virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.virtual import VirtualPorts, run

from holdfast.cell.cell import GLOBAL, Cell
from holdfast.model import input_freshness
from holdfast.model.assignment import Assignment
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import OPERATORS, REGIONS, from_identity
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.region import Region, RegionReport, RegionSpec
from holdfast.model.template import Template
from holdfast.model.tenant import Tenant
from holdfast.model.times import micro_text
from holdfast.model.workload import Workload, WorkloadSpec
from holdfast.model.writes import Create, SetStatus
from holdfast.store.memory import MemoryStore

OPERATOR = from_identity("ann", (OPERATORS,), credential="token")
PATIENT_S = 3600.0


class Fleet:
    def __init__(self) -> None:
        self.ports = VirtualPorts()
        self.cell = Cell(GLOBAL, MemoryStore(), MemoryStore(), self.ports, identity="g-0")
        self.operator = self.cell.client(OPERATOR)

    async def start(self) -> None:
        await self.cell.start()
        template = Template(command=("true",), resources={"cpu": "1"})
        self.template = template
        made: list[Any] = [
            Tenant(ObjectMeta(name="shop")),
            PriorityClass(ObjectMeta(name="standard"), PriorityClassSpec(priority=0)),
            Quota(ObjectMeta(name="quota", namespace="shop"), QuotaSpec(hard={"cpu": "50"})),
            Region(ObjectMeta(name="east"), RegionSpec(zones=("a",), lost_after_seconds=PATIENT_S)),
        ]
        for item in made:
            await self.operator.commit([Create(item)])

    async def report(self) -> None:
        """Writes the region's report, as its link does."""
        now = self.ports.clock.now()
        report = RegionReport(
            at=micro_text(now), sequence=int(now * 1000), nodes=2, live_nodes=2, capacity={"cpu": "32"}, used={}
        )
        region = await self.operator.get(Region, "east")
        assert region is not None
        link = self.cell.client(from_identity("holdfast:region:east", (REGIONS,), credential="certificate"))
        await link.commit([SetStatus("Region", region.key, region.uid, blocks={"report": report})])

    async def workload(self, name: str) -> None:
        spec = WorkloadSpec(replicas=1, template=self.template, priority_class_name="standard")
        await self.operator.commit([Create(Workload(ObjectMeta(name=name, namespace="shop"), spec))])

    async def assigned(self) -> set[str]:
        found = (await self.operator.list(Assignment)).items
        return {a.spec.workload for a in found if a.spec.replicas}

    async def advance(self, seconds: float) -> None:
        await self.ports.clock.sleep(seconds)


@pytest.mark.parametrize("old", [False, True], ids=["fresh", "stale"])
def test_region_with_stale_summary_gets_no_new_assignment(old: bool) -> None:
    async def main() -> None:
        fleet = Fleet()
        await fleet.start()
        await fleet.report()
        await fleet.workload("first")
        await until_assigned(fleet, "first")
        await fleet.advance(
            input_freshness.REGION_SUMMARY.seconds + 5 if old else input_freshness.REGION_SUMMARY.seconds - 4
        )
        await fleet.workload("second")
        await fleet.advance(10)
        assert ("second" in await fleet.assigned()) is not old
        if old:
            await fleet.report()
            await until_assigned(fleet, "second")
        await fleet.cell.stop()

    run(main)


async def until_assigned(fleet: Fleet, name: str) -> None:
    deadline = fleet.ports.clock.monotonic() + 60
    while name not in await fleet.assigned():
        assert fleet.ports.clock.monotonic() < deadline, f"{name} was not assigned within a minute"
        await fleet.advance(0.5)
