"""Renders the serving addresses of a workload for proxies and monitoring. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

ENDPOINT_FORMATS = ("table", "json", "http-sd", "nginx", "haproxy")


def render_endpoints(form: str, tenant: str, workload: str, addresses: Sequence[dict[str, Any]], port: str) -> str:
    """The text of one file. Equal addresses give equal text."""
    match form:
        case "json":
            document = {"tenant": tenant, "workload": workload, "addresses": list(addresses)}
            return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        case "http-sd":
            return http_sd(tenant, workload, addresses, port)
        case "nginx":
            return nginx(tenant, workload, addresses, port)
        case "haproxy":
            return haproxy(tenant, workload, addresses, port)
    raise ValueError(form)


def endpoint_targets(addresses: Sequence[dict[str, Any]], port: str) -> list[tuple[str, dict[str, Any]]]:
    """`address:port` of each replica, with the named port or the replica's first port."""
    found = []
    for address in addresses:
        ports: dict[str, int] = address.get("ports", {})
        number = ports.get(port) if port else next((ports[name] for name in sorted(ports)), None)
        if number is not None:
            host = address["address"]
            found.append((f"[{host}]:{number}" if ":" in host else f"{host}:{number}", address))
    return found


def http_sd(tenant: str, workload: str, addresses: Sequence[dict[str, Any]], port: str) -> str:
    """Prometheus HTTP service discovery: one target group per replica, with its labels."""
    groups = [
        {
            "targets": [where],
            "labels": {
                "__meta_holdfast_tenant": tenant,
                "__meta_holdfast_workload": workload,
                "__meta_holdfast_replica": address.get("replica", ""),
                "__meta_holdfast_region": address.get("region", ""),
                "__meta_holdfast_zone": address.get("zone", ""),
                "__meta_holdfast_node": address.get("node", ""),
                "__meta_holdfast_revision": address.get("revision", ""),
            },
        }
        for where, address in endpoint_targets(addresses, port)
    ]
    return json.dumps(groups, indent=2) + "\n"


def nginx(tenant: str, workload: str, addresses: Sequence[dict[str, Any]], port: str) -> str:
    """An nginx upstream. Without replicas it contains a down server, so that nginx answers 502 and accepts the file."""
    rows = [f"    server {where} max_fails=1 fail_timeout=2s;" for where, _ in endpoint_targets(addresses, port)]
    body = "\n".join(rows or ["    server 127.0.0.1:1 down;"])
    return f"upstream {tenant}-{workload} {{\n{body}\n    keepalive 16;\n}}\n"


def haproxy(tenant: str, workload: str, addresses: Sequence[dict[str, Any]], port: str) -> str:
    """An HAProxy backend that retries a failed connection on another server."""
    rows = [f"    server {address['replica']} {where}" for where, address in endpoint_targets(addresses, port)]
    lines = [
        f"backend {tenant}-{workload}",
        "    balance roundrobin",
        "    option redispatch",
        "    retries 3",
        "    retry-on conn-failure empty-response",
        *rows,
    ]
    return "\n".join(lines) + "\n"
