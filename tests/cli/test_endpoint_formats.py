"""The forms endpoints are written in, as their readers expect them."""

from __future__ import annotations

import json

from holdfast.platform.endpoint_formats import render_endpoints

ONE = {"address": "10.0.0.1", "ports": {"http": 20001, "admin": 20002}, "replica": "api-us-east-0", "region": "us-east",
       "zone": "a", "node": "n1", "revision": "r1"}  # fmt: skip
TWO = {"address": "fd00::1", "ports": {"http": 20003}, "replica": "api-us-east-1", "region": "us-east"}


def test_http_sd_has_one_target_per_replica_with_its_labels():
    told = json.loads(render_endpoints("http-sd", "acme", "api", [ONE, TWO], "http"))
    assert [group["targets"] for group in told] == [["10.0.0.1:20001"], ["[fd00::1]:20003"]]
    assert told[0]["labels"]["__meta_holdfast_replica"] == "api-us-east-0"
    assert all(isinstance(v, str) for group in told for v in group["labels"].values())


def test_haproxy_is_a_backend():
    text = render_endpoints("haproxy", "acme", "api", [ONE], "http")
    assert text.startswith("backend acme-api\n") and "    server api-us-east-0 10.0.0.1:20001\n" in text


def test_nginx_is_an_upstream_even_without_replicas():
    assert "server 10.0.0.1:20001 " in render_endpoints("nginx", "acme", "api", [ONE], "http")
    assert "server 127.0.0.1:1 down;" in render_endpoints("nginx", "acme", "api", [], "http")


def test_a_port_is_chosen_by_name_or_the_first():
    assert "20002" in render_endpoints("haproxy", "acme", "api", [ONE], "") and "20001" not in render_endpoints(
        "haproxy", "acme", "api", [ONE], ""
    )
    assert render_endpoints("haproxy", "acme", "api", [TWO], "admin").count("server") == 0
