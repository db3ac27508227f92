"""Names, addresses and their order: which records a name has."""

from __future__ import annotations

import pytest

from holdfast.dns.address_table import AddressTable
from holdfast.dns.answers import RECORDS_MAX, NameAnswer, resolve
from holdfast.dns.names import ServiceName, labels_below, parse_service
from holdfast.foundation.ports import SystemClock
from holdfast.model.endpoint import Address, Endpoint, EndpointSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.region import (
    HealthState,
    PeerProbeResult,
    Region,
    RegionHealth,
    RegionReport,
    RegionSpec,
    RegionStatus,
)
from holdfast.model.times import micro_text

WEB = ServiceName("web", "shop")


def endpoint(region: str, *ips: str, port: int = 8080) -> Endpoint:
    addresses = tuple(
        Address(replica=f"web-{region}-{n}", uid=f"{region}{n}", address=ip, ports={"http": port + n})
        for n, ip in enumerate(ips)
    )
    spec = EndpointSpec(workload="web", region=region, addresses=addresses)
    return Endpoint(metadata=ObjectMeta(name=f"web.{region}", namespace="shop"), spec=spec)


def region(name: str, *, state: HealthState = HealthState.HEALTHY, **latency_ms: float) -> Region:
    peers = tuple(
        PeerProbeResult(region=peer, reachable=True, latency_ms=ms, at=micro_text(SystemClock().now()))
        for peer, ms in latency_ms.items()
    )
    health = RegionHealth(state=state, last_contact_at=micro_text(SystemClock().now()))
    status = RegionStatus(health=health, report=RegionReport(peers=peers))
    return Region(metadata=ObjectMeta(name=name), spec=RegionSpec(zones=("a",)), status=status)


def table_of(*endpoints: Endpoint, here: str = "", regions: tuple[Region, ...] = ()) -> AddressTable:
    table = AddressTable(here, SystemClock())
    for item in endpoints:
        table.put(item)
    for found in regions:
        table.put_region(found)
    return table


def ips(answer: NameAnswer) -> list[str]:
    return [record.address for record in answer.addresses]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("web", "shop"), ServiceName("web", "shop")),
        (("web", "shop", "us"), ServiceName("web", "shop", "us")),
        (("web-0", "web", "shop", "us"), ServiceName("web", "shop", "us", "web-0")),
        (("_http", "_tcp", "web", "shop"), ServiceName("web", "shop", port="http")),
        (("_http", "_tcp", "web", "shop", "us"), ServiceName("web", "shop", "us", port="http")),
        (("_http", "_tcp", "web-0", "web", "shop", "us"), None),
        (("_", "_tcp", "web", "shop"), None),
        (("_http", "_sctp", "web", "shop"), None),
        (("shop",), None),
        (("a", "b", "c", "d", "e"), None),
    ],
)
def test_name_is_parsed_by_the_number_of_labels(labels: tuple[str, ...], expected: ServiceName | None) -> None:
    assert parse_service(labels) == expected


def test_labels_of_another_zone_are_not_of_this_one() -> None:
    zone = ("holdfast", "internal")
    assert labels_below(("Web", "Shop", "Holdfast", "INTERNAL"), zone) == ("web", "shop")
    assert labels_below(("web", "example", "com"), zone) is None
    assert labels_below(("internal",), zone) is None


def test_unknown_workload_does_not_exist() -> None:
    assert resolve(table_of(endpoint("us", "10.0.0.1")), ServiceName("other", "shop"), 0) == NameAnswer(False)


def test_workload_without_serving_replicas_exists_without_records() -> None:
    assert resolve(table_of(endpoint("us")), WEB, 0) == NameAnswer(True)


def test_own_region_answers_before_others() -> None:
    table = table_of(endpoint("eu", "10.1.0.1"), endpoint("us", "10.2.0.1"), here="us")
    assert ips(resolve(table, WEB, 0)) == ["10.2.0.1"]


def test_nearest_other_region_answers_when_the_own_has_no_serving_replica() -> None:
    regions = (region("us", eu=80.0, asia=120.0), region("eu"), region("asia"))
    table = table_of(
        endpoint("asia", "10.3.0.1"), endpoint("eu", "10.1.0.1"), endpoint("us"), here="us", regions=regions
    )
    assert ips(resolve(table, WEB, 0)) == ["10.1.0.1"]


def test_lost_region_is_left_out() -> None:
    regions = (region("eu", state=HealthState.LOST), region("us"))
    table = table_of(endpoint("eu", "10.1.0.1"), endpoint("us", "10.2.0.1"), here="eu", regions=regions)
    assert ips(resolve(table, WEB, 0)) == ["10.2.0.1"]


def test_own_region_that_answers_is_believed_before_the_global_cell() -> None:
    regions = (region("eu", state=HealthState.LOST), region("us"))
    table = table_of(endpoint("eu", "10.1.0.1"), endpoint("us", "10.2.0.1"), here="eu", regions=regions)
    table.replace_own([endpoint("eu", "10.1.0.9")])
    assert ips(resolve(table, WEB, 0)) == ["10.1.0.9"]
    table.replace_own(None)
    assert ips(resolve(table, WEB, 0)) == ["10.2.0.1"]


def test_named_region_answers_alone() -> None:
    table = table_of(endpoint("eu", "10.1.0.1"), endpoint("us", "10.2.0.1"), here="us")
    assert ips(resolve(table, ServiceName("web", "shop", "eu"), 0)) == ["10.1.0.1"]


def test_service_records_order_regions_by_priority() -> None:
    table = table_of(endpoint("eu", "10.1.0.1", "10.1.0.2"), endpoint("us", "10.2.0.1"), here="us")
    records = resolve(table, ServiceName("web", "shop", port="http"), 0).services
    assert [(r.priority, r.port, r.target.region) for r in records] == [
        (0, 8080, "us"),
        (10, 8080, "eu"),
        (10, 8081, "eu"),
    ]
    assert ips(resolve(table, records[1].target, 0)) == ["10.1.0.1"]


def test_unknown_port_has_no_service_records() -> None:
    assert resolve(table_of(endpoint("us", "10.2.0.1")), ServiceName("web", "shop", port="admin"), 0).services == ()


def test_records_rotate_and_are_bounded() -> None:
    table = table_of(endpoint("us", *(f"10.2.0.{n}" for n in range(1, 41))), here="us")
    first, second = (ips(resolve(table, WEB, turn)) for turn in (0, 1))
    assert len(first) == len(second) == RECORDS_MAX
    assert (first[0], second[0]) == ("10.2.0.1", "10.2.0.2")


def test_host_names_and_repeated_addresses_give_no_extra_records() -> None:
    table = table_of(endpoint("us", "10.2.0.1", "10.2.0.1", "node-7", "fd00::1"))
    assert [(r.address, r.version) for r in resolve(table, WEB, 0).addresses] == [("10.2.0.1", 4), ("fd00::1", 6)]


def test_removed_endpoint_removes_the_name() -> None:
    table = table_of(endpoint("us", "10.2.0.1"))
    table.remove(endpoint("us"))
    assert resolve(table, WEB, 0) == NameAnswer(False)
