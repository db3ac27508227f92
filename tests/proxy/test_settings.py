"""Settings of the entry proxy, and which backends follow from them."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from tests.dns.test_answers import endpoint, region, table_of

from holdfast.model.endpoint import Address, Endpoint, EndpointSpec
from holdfast.model.errors import Invalid
from holdfast.model.meta import ObjectMeta
from holdfast.proxy.backends import BACKENDS_MAX, SERVERS_MAX, plan_backends
from holdfast.proxy.haproxy_config import render, settings_mark
from holdfast.proxy.settings import parse_settings

GOOD: dict[str, Any] = {"region": "us", "http": [{"port": 8080, "tenants": ["shop"]}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"regoin": "us"}, "regoin"),
        ({"region": "us\nfrontend x"}, "region: invalid"),
        ({"http": []}, "no listener"),
        ({"http": [{"port": 8080, "tenants": []}]}, "port 8080: tenants is empty"),
        ({"http": [{"port": 0, "tenants": ["shop"]}]}, "port 0: out of range"),
        ({"http": [{"port": 8080, "tenants": ["shop bind"]}]}, "invalid name"),
        ({"http": [{"port": 8080, "tenants": ["shop"], "certificate": "/a b"}]}, "certificate: invalid path"),
        ({"tcp": [{"port": 8080, "workload": "shop/web"}]}, "port 8080: two listeners"),
        ({"tcp": [{"port": 9090, "workload": "web"}]}, "port 9090: workload: invalid"),
        ({"tcp": [{"port": 9090, "workload": "shop/web", "workload_port": "a b"}]}, "workload_port: invalid"),
        ({"tcp": [{"port": 20000 + n, "workload": "shop/web"} for n in range(64)]}, "too many listeners"),
        ({"host": [{"hostname": "a.example.com", "workload": "other/web"}]}, "no .* listener serves tenant other"),
        ({"host": [{"hostname": "x.shop.holdfast.internal", "workload": "shop/web"}]}, "inside the zone"),
        ({"host": [{"hostname": "A.example.com", "workload": "shop/web"}]}, "in lower case"),
        ({"host": [{"hostname": "a.example.com", "workload": "shop/web"}] * 2}, "given twice"),
        ({"bind": "localhost"}, "bind: invalid"),
        ({"networks": ["10.0.0.1/8"]}, "networks: invalid"),
        ({"status": "9105"}, "status: invalid"),
        ({"drain_seconds": 0}, "drain_seconds: out of range"),
        ({"max_connections_per_tenant": 5000}, "max_connections_per_tenant: out of range"),
    ],
)
def test_faulty_settings_are_refused_with_the_key_and_the_file(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=f"^proxy.toml: .*{message}"):
        parse_settings({**GOOD, **change}, "proxy.toml")


@pytest.mark.parametrize(
    ("change", "address", "allowed"),
    [
        ({}, "127.0.0.1", True),
        ({"bind": "0.0.0.0"}, "127.0.0.1", False),
        ({"bind": "0.0.0.0"}, "10.0.0.1", True),
        ({"bind": "0.0.0.0"}, "169.254.169.254", False),
        ({"bind": "0.0.0.0"}, "fe80::1", False),
        ({"networks": ["10.0.0.0/8"]}, "10.0.0.1", True),
        ({"networks": ["10.0.0.0/8"]}, "192.168.0.1", False),
    ],
)
def test_addresses_that_nodes_report_are_limited_to_their_networks(
    change: dict[str, Any], address: str, allowed: bool
) -> None:
    settings = parse_settings({**GOOD, **change}, "proxy.toml")
    assert settings.allows(ipaddress.ip_address(address)) is allowed


def hostile_endpoint(**values: Any) -> Endpoint:
    address = Address(**{"replica": "web-0", "uid": "1", "address": "127.0.0.1", "ports": {"http": 80}, **values})
    spec = EndpointSpec(workload="web", region="us", addresses=(address,))
    return Endpoint(metadata=ObjectMeta(name="web.us", namespace="shop"), spec=spec)


@pytest.mark.parametrize(
    "values",
    [
        {"address": "127.0.0.1:80\n    server evil 10.0.0.1:80"},
        {"address": "evil.example.com"},
        {"address": "169.254.169.254"},
        {"replica": "web-0 10.0.0.1:80\nlisten evil"},
        {"replica": " "},
        {"ports": {"http": 0}},
        {"ports": {"http": 70_000}},
    ],
)
def test_hostile_address_of_a_node_never_reaches_the_configuration(values: dict[str, Any]) -> None:
    settings = parse_settings(GOOD, "proxy.toml")
    plan = plan_backends(settings, table_of(hostile_endpoint(**values), here="us"))
    assert plan.refused == 1 and plan.http[0].servers == ()
    text = render(settings, plan, drop_privileges=False)
    assert "    server " not in text and "evil" not in text


def test_tenants_that_a_listener_does_not_name_have_no_backend_there() -> None:
    settings = parse_settings({**GOOD, "http": [{"port": 8080, "tenants": ["other"]}]}, "proxy.toml")
    assert plan_backends(settings, table_of(endpoint("us", "127.0.0.1"), here="us")).http == ()
    every = parse_settings({**GOOD, "http": [{"port": 8080, "tenants": ["*"]}]}, "proxy.toml")
    (backend,) = plan_backends(every, table_of(endpoint("us", "127.0.0.1"), here="us")).http
    assert backend.name == "http:8080:web.shop.holdfast.internal"


def test_second_nearest_region_stands_by_and_further_ones_are_left_out() -> None:
    regions = (region("us", eu=80.0, asia=200.0), region("eu"), region("asia"))
    table = table_of(*(endpoint(n, "127.0.0.1") for n in ("asia", "eu", "us")), here="us", regions=regions)
    (backend,) = plan_backends(parse_settings(GOOD, "proxy.toml"), table).http
    assert [(s.name.partition(".")[0], s.standby) for s in backend.servers] == [("us", False), ("eu", True)]


def test_backends_and_servers_are_bounded_and_the_rest_is_counted() -> None:
    settings = parse_settings(GOOD, "proxy.toml")
    table = table_of(endpoint("us", *(f"10.0.{n // 250}.{n % 250 + 1}" for n in range(SERVERS_MAX + 5))), here="us")
    assert len(plan_backends(settings, table).http[0].servers) == SERVERS_MAX
    for n in range(BACKENDS_MAX + 7):
        spec = EndpointSpec(workload=f"w{n}", region="us")
        table.put(Endpoint(metadata=ObjectMeta(name=f"w{n}.us", namespace="shop"), spec=spec))
    plan = plan_backends(settings, table)
    assert (len(plan.http), plan.omitted) == (BACKENDS_MAX, 8)


def test_port_without_a_name_is_http_or_the_only_one() -> None:
    settings = parse_settings(GOOD, "proxy.toml")
    for ports, expected in (({"http": 1, "grpc": 2}, [1]), ({"grpc": 2}, [2]), ({"grpc": 2, "admin": 3}, [])):
        plan = plan_backends(settings, table_of(hostile_endpoint(ports=ports), here="us"))
        assert [s.port for s in plan.http[0].servers] == expected


def test_changed_settings_have_another_mark() -> None:
    one, two = parse_settings(GOOD, "a"), parse_settings({**GOOD, "drain_seconds": 9}, "a")
    assert settings_mark(one) != settings_mark(two)
