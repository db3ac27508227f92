"""Which backends a proxy has, from its settings and the serving addresses. Pure.

The nearest region with serving replicas takes all requests. The next region stands by: the proxy uses it when no
replica of the first passes its health check, before Holdfast has noticed. Names and addresses come from nodes, so every
one is checked before it reaches a configuration file.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

import msgspec

from holdfast.dns.address_table import AddressTable
from holdfast.model.endpoint import Address
from holdfast.proxy.settings import ProxySettings, serves

BACKENDS_MAX = 4000
"""Backends of one proxy. Further ones, in the order of their names, are left out and counted."""
SERVERS_MAX = 200
"""Replicas in a backend, and in its standby. Requests to more replicas are served by the first ones."""
USUAL_PORT = "http"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class ProxyServer(msgspec.Struct, frozen=True):
    """One replica. `standby`: used only while no other server of the backend is healthy."""

    name: str
    address: str
    port: int
    standby: bool = False


class Backend(msgspec.Struct, frozen=True):
    """The servers of one hostname of an HTTP listener, or of a TCP listener."""

    name: str
    tenant: str
    servers: tuple[ProxyServer, ...]


class ProxyPlan(msgspec.Struct, frozen=True):
    """`omitted` counts backends over the limit, `refused` addresses that are not allowed."""

    http: tuple[Backend, ...]
    tcp: tuple[Backend, ...]
    omitted: int = 0
    refused: int = 0


def http_backend_name(port: int, hostname: str) -> str:
    """The port is part of the name, so that a Host can only select backends of the listener that received it."""
    return f"http:{port}:{hostname}"


def tcp_backend_name(port: int) -> str:
    return f"tcp:{port}"


class _Planner:
    def __init__(self, settings: ProxySettings, table: AddressTable) -> None:
        self._settings, self._table = settings, table
        self.refused = 0

    def http(self) -> Iterator[Backend]:
        for listener in self._settings.http:
            for tenant, workload in self._table.workloads():
                if serves(listener, tenant):
                    hostname = f"{workload}.{tenant}.{self._settings.zone}"
                    yield self._backend(http_backend_name(listener.port, hostname), f"{tenant}/{workload}", "")
            for host in self._settings.host:
                if serves(listener, host.workload.partition("/")[0]):
                    name = http_backend_name(listener.port, host.hostname)
                    yield self._backend(name, host.workload, host.workload_port)

    def tcp(self) -> Iterator[Backend]:
        for listener in self._settings.tcp:
            yield self._backend(tcp_backend_name(listener.port), listener.workload, listener.workload_port)

    def _backend(self, name: str, workload: str, port: str) -> Backend:
        tenant, _, short = workload.partition("/")
        found: list[ProxyServer] = []
        for place, (region, addresses) in enumerate(self._table.serving(tenant, short)[:2]):
            servers = (self._server(region, address, port, standby=place > 0) for address in addresses)
            found += sorted((s for s in servers if s is not None), key=lambda s: s.name)[:SERVERS_MAX]
        if found and all(server.standby for server in found):
            found = [msgspec.structs.replace(server, standby=False) for server in found]
        return Backend(name, tenant, tuple(found))

    def _server(self, region: str, address: Address, port: str, *, standby: bool) -> ProxyServer | None:
        number = _port_number(address.ports, port)
        if number is None:
            return None
        name = f"{region}.{address.replica}.{number}"
        try:
            parsed = ipaddress.ip_address(address.address)
        except ValueError:
            self.refused += 1
            return None
        if not _NAME.fullmatch(name) or not 1 <= number <= 65_535 or not self._settings.allows(parsed):
            self.refused += 1
            return None
        return ProxyServer(name, str(parsed), number, standby)


def plan_backends(settings: ProxySettings, table: AddressTable) -> ProxyPlan:
    """Equal settings and addresses give an equal plan."""
    planner = _Planner(settings, table)
    http = sorted((b for b in planner.http() if _NAME.fullmatch(b.name.replace(":", "."))), key=lambda b: b.name)
    kept = tuple(http[:BACKENDS_MAX])
    return ProxyPlan(kept, tuple(planner.tcp()), omitted=len(http) - len(kept), refused=planner.refused)


def _port_number(ports: dict[str, int], wanted: str) -> int | None:
    """The named port; without a name the one called `http`, or the only one."""
    if wanted:
        return ports.get(wanted)
    if USUAL_PORT in ports or len(ports) != 1:
        return ports.get(USUAL_PORT)
    return next(iter(ports.values()))


def removed_servers(before: ProxyPlan, after: ProxyPlan) -> list[str]:
    """`BACKEND/SERVER` of every server that leaves, so that running processes stop choosing it."""
    kept = {f"{b.name}/{s.name}": (s.address, s.port) for b in (*after.http, *after.tcp) for s in b.servers}
    found = []
    for backend in (*before.http, *before.tcp):
        for server in backend.servers:
            name = f"{backend.name}/{server.name}"
            if kept.get(name) != (server.address, server.port):
                found.append(name)
    return found
