"""Settings of an entry proxy: the operator's TOML file, read strictly.

The file alone decides which tenants a listener serves. A tenant can neither open a port nor claim a hostname: its
workloads get the hostname `WORKLOAD.TENANT.ZONE`, and every other name is a line in this file.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.dns.names import DEFAULT_ZONE
from holdfast.model.errors import Invalid

LISTENERS_MAX = 64
"""Listeners of one proxy. Each is a socket and a frontend."""
HOSTNAMES_MAX = 1000
"""Additional hostnames of one proxy."""
EVERY_TENANT = "*"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class HttpListener(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An HTTP port that chooses the workload by the request's Host. `tenants` names those it serves; `*` is all."""

    port: int
    tenants: tuple[str, ...]
    certificate: str = ""
    """PEM file with certificate and key. Empty: plain HTTP."""


class TcpListener(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A TCP port that belongs to one workload."""

    port: int
    workload: str
    workload_port: str = ""


class Hostname(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A further hostname of a workload, on the HTTP listeners that serve its tenant."""

    hostname: str
    workload: str
    workload_port: str = ""


class ProxySettings(_Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file. `networks` limits the addresses that a node can make the proxy connect to."""

    region: str
    bind: str = "127.0.0.1"
    zone: str = DEFAULT_ZONE
    status: str = ""
    """HOST:PORT of `/readyz` and `/metrics`. Empty: none."""
    networks: tuple[str, ...] = ()
    """Networks of the nodes. Empty: every network but link-local ones, and loopback only if `bind` is loopback."""
    drain_seconds: int = 30
    """How long a connection may outlive the replica's removal, or a reload."""
    max_connections: int = 4000
    max_connections_per_tenant: int = 1000
    http: tuple[HttpListener, ...] = ()
    tcp: tuple[TcpListener, ...] = ()
    host: tuple[Hostname, ...] = ()

    @property
    def listener_ports(self) -> tuple[int, ...]:
        return (*(http.port for http in self.http), *(tcp.port for tcp in self.tcp))

    def allows(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        """Whether a replica may have this address."""
        if self.networks:
            return any(address in ipaddress.ip_network(network) for network in self.networks)
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            return False
        return not address.is_loopback or ipaddress.ip_address(self.bind).is_loopback


def parse_settings(found: dict[str, Any], source: str) -> ProxySettings:
    """The settings of a parsed TOML file. Raises `Invalid` with the first fault."""
    try:
        settings = msgspec.convert(found, ProxySettings)
    except msgspec.ValidationError as error:
        raise Invalid(f"{source}: {error}") from None
    for fault in _faults(settings):
        raise Invalid(f"{source}: {fault}")
    return settings


def _faults(settings: ProxySettings) -> Iterator[str]:
    if not _LABEL.fullmatch(settings.region):
        yield f"region: invalid (expected the name of a region, found {settings.region!r})"
    yield from _address_faults(settings)
    for name, value, lowest, highest in (
        ("drain_seconds", settings.drain_seconds, 1, 3600),
        ("max_connections", settings.max_connections, 10, 1_000_000),
        ("max_connections_per_tenant", settings.max_connections_per_tenant, 1, settings.max_connections),
    ):
        if not lowest <= value <= highest:
            yield f"{name}: out of range (expected {lowest} to {highest}, found {value})"
    if not settings.http and not settings.tcp:
        yield "no listener (expected [[http]] or [[tcp]])"
    if len(settings.listener_ports) > LISTENERS_MAX:
        yield f"too many listeners (limit {LISTENERS_MAX}, found {len(settings.listener_ports)})"
    ports: set[int] = set()
    for port in settings.listener_ports:
        if not 1 <= port <= 65_535:
            yield f"port {port}: out of range (expected 1 to 65535)"
        if port in ports:
            yield f"port {port}: two listeners (expected one per port)"
        ports.add(port)
    for http in settings.http:
        yield from _http_faults(http)
    for tcp in settings.tcp:
        yield from _workload_faults(f"port {tcp.port}", tcp.workload, tcp.workload_port)
    yield from _hostname_faults(settings)


def _address_faults(settings: ProxySettings) -> Iterator[str]:
    if not _is_name(settings.zone):
        yield f"zone: invalid (expected a DNS name, found {settings.zone!r})"
    try:
        ipaddress.ip_address(settings.bind)
    except ValueError:
        yield f"bind: invalid (expected an IP address, found {settings.bind!r})"
    for network in settings.networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            yield f"networks: invalid (expected a network such as 10.0.0.0/8; {error})"
    if settings.status:
        host, _, port = settings.status.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
            yield f"status: invalid (expected HOST:PORT, found {settings.status!r})"


def _http_faults(listener: HttpListener) -> Iterator[str]:
    if not listener.tenants:
        yield f"port {listener.port}: tenants is empty (expected the names of tenants, or *)"
    for tenant in listener.tenants:
        if tenant != EVERY_TENANT and not _LABEL.fullmatch(tenant):
            yield f"port {listener.port}: tenants: invalid name {tenant!r}"
    if any(c in listener.certificate for c in " \t\r\n\"'\\#"):
        yield f"port {listener.port}: certificate: invalid path (expected no spaces, quotes or #)"


def _hostname_faults(settings: ProxySettings) -> Iterator[str]:
    if len(settings.host) > HOSTNAMES_MAX:
        yield f"too many hostnames (limit {HOSTNAMES_MAX}, found {len(settings.host)})"
    seen: set[str] = set()
    for host in settings.host:
        if not _is_name(host.hostname):
            yield f"hostname {host.hostname!r}: invalid (expected a DNS name in lower case)"
        if host.hostname == settings.zone or host.hostname.endswith("." + settings.zone):
            yield f"hostname {host.hostname}: inside the zone {settings.zone}, whose names follow from workloads"
        if host.hostname in seen:
            yield f"hostname {host.hostname}: given twice"
        seen.add(host.hostname)
        yield from _workload_faults(f"hostname {host.hostname}", host.workload, host.workload_port)
        tenant = host.workload.partition("/")[0]
        if not any(serves(listener, tenant) for listener in settings.http):
            yield f"hostname {host.hostname}: no [[http]] listener serves tenant {tenant}"


def serves(listener: HttpListener, tenant: str) -> bool:
    return tenant in listener.tenants or EVERY_TENANT in listener.tenants


def _workload_faults(where: str, workload: str, port: str) -> Iterator[str]:
    tenant, _, name = workload.partition("/")
    if not _LABEL.fullmatch(tenant) or not _LABEL.fullmatch(name):
        yield f"{where}: workload: invalid (expected TENANT/WORKLOAD, found {workload!r})"
    if port and not _LABEL.fullmatch(port):
        yield f"{where}: workload_port: invalid (expected the name of a port, found {port!r})"


def _is_name(text: str) -> bool:
    return 0 < len(text) <= 253 and all(_LABEL.fullmatch(label) for label in text.split("."))
