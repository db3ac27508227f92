"""Which addresses the global cell lists when regions, or the cell itself, were silent."""

from __future__ import annotations

import pytest
from tests.expected import present

from holdfast.foundation.ports import SystemClock
from holdfast.foundation.region_contact import RegionContact
from holdfast.model.endpoint import Address, Endpoint, EndpointSpec
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import REGIONS, from_identity
from holdfast.model.region import HealthState, Region, RegionHealth, RegionSpec
from holdfast.model.times import micro_text
from holdfast.model.writes import Create, SetStatus
from holdfast.server.endpoints import stored_regions

from .conftest import V1, Api, World


class MovedClock(SystemClock):
    """The machine's clock, some time later."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def advance(self, seconds: float) -> None:
        self.ahead_s += seconds

    def now(self) -> float:
        return super().now() + self.ahead_s

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@pytest.fixture
def clock(world: World) -> MovedClock:
    moved = MovedClock()
    world.app.region_contact = RegionContact(lambda: stored_regions(world.objects), moved)
    return moved


async def region_with_address(world: World, name: str, contact_s: float, state: HealthState) -> None:
    item = Region(metadata=ObjectMeta(name=name), spec=RegionSpec(zones=("a",)))
    await world.commit(Create(item), role="operator")
    await region_reports(world, name, contact_s, state)
    addresses = (Address(replica="r-0", uid="u", address="10.0.0.1", ports={"http": 80}),)
    slice_ = Endpoint(
        metadata=ObjectMeta(name=f"web.{name}", namespace="shop"),
        spec=EndpointSpec(workload="web", region=name, addresses=addresses, ttl_seconds=60),
    )
    link = from_identity(f"holdfast:region:{name}", (REGIONS,), credential="test")
    await world.gate.commit(link, [Create(slice_)])


async def region_reports(world: World, name: str, contact_s: float, state: HealthState = HealthState.HEALTHY) -> None:
    stored = present(world.objects.get(BY_NAME["Region"], "", name))
    health = RegionHealth(state=state, last_contact_at=micro_text(contact_s))
    await world.commit(SetStatus("Region", stored.key, stored.uid, blocks={"health": health}), role="region-health")


async def regions_served(api: Api) -> list[str]:
    found = (await api.get("/endpoints/shop")).json["workloads"].get("web", [])
    return [row["region"] for row in found]


async def test_endpoints_of_lost_or_unreachable_region_are_omitted(world: World, clock: MovedClock) -> None:
    """With the verdict Lost they leave at once, whatever their TTL."""
    api = Api(world.app)
    now_s = clock.now()
    healthy, lost = HealthState.HEALTHY, HealthState.LOST
    for name, state in (("near", healthy), ("far", healthy), ("lost", lost)):
        await region_with_address(world, name, now_s, state)
    assert await regions_served(api) == ["far", "near"], "lost is silent for less than its TTL"
    for _ in range(8):
        clock.advance(8.0)
        await region_reports(world, "near", clock.now())
        await api.get("/endpoints/shop")
    found = (await api.get("/endpoints/shop")).json
    assert [row["region"] for row in found["workloads"]["web"]] == ["near"]
    assert found["workloads"]["web"][0]["address"] == "10.0.0.1"
    assert (await api.get("/endpoints/shop/web")).json["workloads"].keys() == {"web"}
    assert (await api.get("/endpoints/shop/nope")).json["workloads"] == {}
    assert (await api.as_user("tim").get("/endpoints/shop")).code == 200
    assert (await api.as_user("tim").get("/endpoints/other")).code == 403
    assert (await api.as_user("").get("/endpoints/shop")).code == 401


@pytest.mark.parametrize("first_event", ["request for addresses", "report of one region"])
async def test_global_cell_that_was_stopped_keeps_the_addresses_of_every_region(
    world: World, clock: MovedClock, first_event: str
) -> None:
    """It continues after 300 s: no region could report. Each has its TTL again to do so."""
    api = Api(world.app)
    for name in ("near", "far"):
        await region_with_address(world, name, clock.now(), HealthState.HEALTHY)
    assert await regions_served(api) == ["far", "near"]
    clock.advance(300.0)
    if first_event == "request for addresses":
        assert await regions_served(api) == ["far", "near"]
    else:
        await Api(world.app, "holdfast:region:near").get(f"{V1}/regions/near")
    await region_reports(world, "near", clock.now())
    assert await regions_served(api) == ["far", "near"]
    for _ in range(8):
        clock.advance(8.0)
        await region_reports(world, "near", clock.now())
    assert await regions_served(api) == ["near"], "far had its TTL and did not report"


async def test_restarted_global_cell_keeps_the_addresses_of_every_region(world: World, clock: MovedClock) -> None:
    now_s = clock.now()
    for name in ("near", "far"):
        await region_with_address(world, name, now_s - 300, HealthState.HEALTHY)
    assert await regions_served(Api(world.app)) == ["far", "near"]
