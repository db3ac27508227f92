"""HTTP to hosts that users name: only allowed hosts and addresses, with deadlines and bounds.

- The caller's rules decide about every URL, also of each redirect, and about the address that is connected to.
- The address that was checked is the one that is used. No proxy is used, because its address would hide the source's.
- A transfer has a deadline, a limit on the time without data, and a limit on its size. None depends on the server.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from threading import Timer
from typing import Protocol
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

DEFAULT_PORTS = {"http": 80, "https": 443}
CHUNK_BYTES = 1024 * 1024

_REDIRECTS = (301, 302, 303, 307, 308)
# Public addresses that are a cloud's services for its machines, as 169.254.169.254 is.
_CLOUD_SERVICES = frozenset({ipaddress.ip_address("168.63.129.16")})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class SourceRefused(Exception):
    """The source may not be read on this node, or cannot be read. The message says why."""


class SourceForbidden(SourceRefused):
    """The rules forbid the source. Nothing was sent to it."""


class SourceRules(Protocol):
    """Which sources may be read. Both return why not; empty if they may."""

    def url_refusal(self, url: str) -> str: ...

    def address_refusal(self, text: str) -> str: ...


class TransferLimits(msgspec.Struct, frozen=True):
    """Bounds of one transfer: bytes, seconds without data, seconds altogether, redirects."""

    size_max: int
    timeout_s: float
    transfer_s: float
    redirects_max: int


@contextlib.contextmanager
def fetched(rules: SourceRules, url: str, limits: TransferLimits) -> Iterator[Iterator[bytes]]:
    """The body of the first response that is not a redirect, in chunks. Raises SourceRefused, also while it is read."""
    deadline = time.monotonic() + limits.transfer_s
    with contextlib.ExitStack() as connection:
        with failures_named(deadline, limits):
            response, _ = follow(rules, url, deadline, limits, connection=connection)
        if response.status != 200:
            raise SourceRefused(f"HTTP status {response.status}")
        yield bounded(body(response, deadline, limits), limits.size_max)


def bounded(chunks: Iterator[bytes], size_max: int) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > size_max:
            raise SourceRefused(f"larger than the limit of {size_max} bytes")
        yield chunk


def follow(
    rules: SourceRules,
    url: str,
    deadline: float,
    limits: TransferLimits,
    *,
    connection: contextlib.ExitStack,
    headers: Mapping[str, str] | None = None,
) -> tuple[http.client.HTTPResponse, bool]:
    """The first response that is not a redirect, and whether the first host sent it. `connection` keeps it open.

    `headers` go to the first host only: a redirect must not carry credentials elsewhere.
    """
    own = True
    sent = dict(headers or {})
    for _ in range(limits.redirects_max + 1):
        response = connection.enter_context(exchange(rules, url, deadline, limits, sent))
        if response.status not in _REDIRECTS:
            return response, own
        target = urljoin(url, response.headers.get("Location", ""))
        if urlsplit(target)[:2] != urlsplit(url)[:2]:
            sent.pop("Authorization", None)
            own = False
        url = target
        connection.close()
    raise SourceRefused(f"more than {limits.redirects_max} redirects")


@contextlib.contextmanager
def failures_named(deadline: float, limits: TransferLimits) -> Iterator[None]:
    """Turns what the network and its libraries raise into SourceRefused."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() >= deadline:
            raise SourceRefused(f"not complete after {limits.transfer_s:g} s") from error
        why = f"no data for {limits.timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        raise SourceRefused(why or type(error).__name__) from error


@contextlib.contextmanager
def exchange(
    rules: SourceRules,
    url: str,
    deadline: float,
    limits: TransferLimits,
    headers: Mapping[str, str],
    *,
    method: str = "GET",
    content: bytes | None = None,
    trust: ssl.SSLContext | None = None,
) -> Iterator[http.client.HTTPResponse]:
    """The response to one request, also if it is a redirect. Its connection is cut at the deadline, whatever the server
    does. Without `trust` the CA certificates of the machine are used."""
    if refusal := rules.url_refusal(url):
        raise SourceForbidden(refusal)
    parts = urlsplit(url)
    host, port = parts.hostname or "", port_of(parts)
    plain = _connect(rules, host, port, deadline, limits)
    cut = socket.socket(fileno=os.dup(plain.fileno()))
    timer = Timer(max(0.0, deadline - time.monotonic()), _shut, (cut,))
    timer.daemon = True
    timer.start()
    connection = http.client.HTTPConnection(host, port)
    connection.auto_open = 0  # only the checked connection is used
    try:
        if parts.scheme == "https":
            connection.default_port = 443
            connection.sock = (trust or ssl.create_default_context()).wrap_socket(plain, server_hostname=host)
        else:
            connection.sock = plain
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        general = {"User-Agent": "holdfast-agent", "Accept-Encoding": "identity"}
        connection.request(method, target, body=content, headers={**general, **headers})
        with connection.getresponse() as response:
            yield response
    finally:
        timer.cancel()
        connection.close()
        plain.close()
        cut.close()


def _shut(cut: socket.socket) -> None:
    with contextlib.suppress(OSError):
        cut.shutdown(socket.SHUT_RDWR)


def _connect(rules: SourceRules, host: str, port: int, deadline: float, limits: TransferLimits) -> socket.socket:
    """Connects to an allowed address of the host. The address that was checked is the one that is used."""
    refusal = failure = ""
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if refused := rules.address_refusal(str(address[0])):
            refusal = refusal or refused
            continue
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(max(0.1, min(limits.timeout_s, deadline - time.monotonic())))
            connected.connect(address)
        except OSError as error:
            failure = str(error)
            connected.close()
            continue
        return connected
    if refusal and not failure:
        raise SourceForbidden(refusal)
    raise SourceRefused(failure or "the host has no address")


def body(response: http.client.HTTPResponse, deadline: float, limits: TransferLimits) -> Iterator[bytes]:
    """Chunks as they arrive. A body that ends before its announced length, or at the deadline, is refused."""
    if response.length is not None and response.length > limits.size_max:
        raise SourceRefused(f"larger than the limit of {limits.size_max} bytes")
    while True:
        with failures_named(deadline, limits):
            data = response.read1(CHUNK_BYTES)
        if time.monotonic() >= deadline:
            raise SourceRefused(f"not complete after {limits.transfer_s:g} s")
        if not data:
            break
        yield data
    if response.length:
        raise SourceRefused("the connection ended early")


# --- rules about hosts and addresses ---------------------------------------------------------------------------


def port_of(parts: SplitResult) -> int:
    return parts.port or DEFAULT_PORTS.get(parts.scheme, 0)


def host_and_port(text: str) -> tuple[str, str | None]:
    name, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), None
    return name.strip("[]"), port


def is_host_pattern(text: str) -> bool:
    name, port = host_and_port(text)
    return bool(name) and "/" not in name and (port is None or port.isdigit())


def is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def matches_host(allowed: str, host: str, port: int, scheme: str) -> bool:
    name, allowed_port = host_and_port(allowed.lower())
    if port != (DEFAULT_PORTS[scheme] if allowed_port is None else int(allowed_port)):
        return False
    return name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:]))


def judged_address(text: str, networks: tuple[str, ...]) -> tuple[Address, bool]:
    """The address that the text stands for, and whether it is public or in one of the networks."""
    address = _effective(ipaddress.ip_address(text.partition("%")[0]))
    named = any(address in ipaddress.ip_network(network) for network in networks)
    return address, named or _is_public(address)


def _effective(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, so that no notation hides a private one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def _is_public(address: Address) -> bool:
    unusual = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    old = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    return address.is_global and not unusual and not old and address not in _CLOUD_SERVICES
