"""The output formats of endpoints."""

from __future__ import annotations

import json

from holdfast.platform.endpoint_formats import render_endpoints

ONE = {
    "address": "10.0.0.1",
    "ports": {"http": 20001, "admin": 20002},
    "replica": "api-us-east-0",
    "region": "us-east",
    "zone": "a",
    "node": "n1",
    "revision": "r1",
}
TWO = {"address": "fd00::1", "ports": {"http": 20003}, "replica": "api-us-east-1", "region": "us-east"}


def test_http_sd_has_one_labelled_target_per_replica() -> None:
    groups = json.loads(render_endpoints("http-sd", "acme", "api", [ONE, TWO], "http"))
    assert [group["targets"] for group in groups] == [["10.0.0.1:20001"], ["[fd00::1]:20003"]]
    assert groups[0]["labels"]["__meta_holdfast_replica"] == "api-us-east-0"
    assert all(isinstance(v, str) for group in groups for v in group["labels"].values())


def test_haproxy_output_is_a_backend() -> None:
    text = render_endpoints("haproxy", "acme", "api", [ONE], "http")
    assert text.startswith("backend acme-api\n") and "    server api-us-east-0 10.0.0.1:20001\n" in text


def test_nginx_output_without_replicas_has_one_down_server() -> None:
    assert "server 10.0.0.1:20001 " in render_endpoints("nginx", "acme", "api", [ONE], "http")
    assert "server 127.0.0.1:1 down;" in render_endpoints("nginx", "acme", "api", [], "http")


def test_port_is_selected_by_name_or_first() -> None:
    assert "20002" in render_endpoints("haproxy", "acme", "api", [ONE], "") and "20001" not in render_endpoints(
        "haproxy", "acme", "api", [ONE], ""
    )
    assert render_endpoints("haproxy", "acme", "api", [TWO], "admin").count("server") == 0
