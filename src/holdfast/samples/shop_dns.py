"""Finds a workload by its DNS name, and sends requests to it.

`_http._tcp.api.shop.holdfast.internal` is looked up as SRV at the name server of `HOLDFAST_DNS`. Each answer has the
port and the name of one serving replica; its address is in the additional section. A request tries the replicas of its
own region first, then the others in the order of their priority, until one answers.

The standard library has no SRV lookup. A program with dnspython needs one line for it:
`dns.resolver.resolve("_http._tcp.api.shop.holdfast.internal", "SRV")`.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import secrets
import socket
import struct
from typing import Any, NamedTuple

ZONE = "holdfast.internal"
SRV, OPT, INTERNET = 33, 41, 1
UDP_BYTES_MAX = 1232
TRUNCATED = 0x0200
LOOKUP_TIMEOUT_S = 1.0
REQUEST_TIMEOUT_S = 1.0
ANSWER_BYTES_MAX = 1024 * 1024


class NoAnswer(Exception):
    """No replica of the workload answered; the text says why."""


class Target(NamedTuple):
    """One serving replica."""

    priority: int
    address: str
    port: int
    region: str


def lookup(workload: str, tenant: str, server: str, *, port: str = "http") -> list[Target]:
    """The serving replicas of a workload. `server` is HOST:PORT of the name server."""
    host, _, number = server.rpartition(":")
    where = (host.strip("[]"), int(number))
    number_sent = secrets.randbelow(65536)
    query = _query(f"_{port}._tcp.{workload}.{tenant}.{ZONE}", number_sent)
    try:
        answer = _ask_udp(where, query)
        if len(answer) < 12 or answer[:2] != query[:2]:
            raise NoAnswer(f"name server {server}: the response does not belong to the query")
        if struct.unpack_from(">H", answer, 2)[0] & TRUNCATED:
            answer = _ask_tcp(where, query)
        return _targets(answer)
    except (OSError, struct.error, IndexError, ValueError) as error:
        raise NoAnswer(f"name server {server}: {error}") from error


def fetch(workload: str, tenant: str, path: str) -> dict[str, Any]:
    """The JSON answer of the first replica that gives one."""
    server = os.environ.get("HOLDFAST_DNS", "")
    if not server:
        raise NoAnswer("HOLDFAST_DNS is not set; next: set `dns` in the agent's configuration")
    targets = lookup(workload, tenant, server)
    own = os.environ.get("HOLDFAST_REGION", "")
    failures: list[str] = []
    for target in sorted(targets, key=lambda t: (t.region != own, t.priority)):
        try:
            return request(target.address, target.port, path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{target.region}: {error}")
    raise NoAnswer(f"{workload}.{tenant}: {'; '.join(failures) or 'no replica serves'}")


def request(address: str, port: int, path: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(address, port, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        body = response.read(ANSWER_BYTES_MAX)
        if response.status != 200:
            raise ValueError(f"{path}: HTTP status {response.status}")
        decoded: dict[str, Any] = json.loads(body)
        return decoded
    finally:
        connection.close()


def _query(name: str, number: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    # The OPT record allows a response over UDP that is larger than 512 bytes.
    option = b"\0" + struct.pack(">HHIH", OPT, UDP_BYTES_MAX, 0, 0)
    header = struct.pack(">HHHHHH", number, 0, 1, 0, 0, 1)
    return header + labels + b"\0" + struct.pack(">HH", SRV, INTERNET) + option


def _ask_udp(where: tuple[str, int], query: bytes) -> bytes:
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.settimeout(LOOKUP_TIMEOUT_S)
        sender.connect(where)  # responses from other addresses are dropped
        sender.send(query)
        return sender.recv(65535)


def _ask_tcp(where: tuple[str, int], query: bytes) -> bytes:
    with socket.create_connection(where, timeout=LOOKUP_TIMEOUT_S) as stream, stream.makefile("rwb") as file:
        file.write(struct.pack(">H", len(query)) + query)
        file.flush()
        (size,) = struct.unpack(">H", file.read(2))
        return file.read(size)


def _targets(answer: bytes) -> list[Target]:
    questions, *counts = struct.unpack_from(">HHHH", answer, 4)
    at = 12
    for _ in range(questions):
        _, at = _name(answer, at)
        at += 4
    services: list[tuple[int, int, str]] = []
    addresses: dict[str, str] = {}
    for _ in range(sum(counts)):
        name, at = _name(answer, at)
        kind, _, _, size = struct.unpack_from(">HHIH", answer, at)
        at += 10
        if kind == SRV:
            priority, _, port = struct.unpack_from(">HHH", answer, at)
            services.append((priority, port, _name(answer, at + 6)[0]))
        elif kind in (1, 28):  # A and AAAA
            addresses[name] = str(ipaddress.ip_address(answer[at : at + size]))
        at += size
    # The name of a replica is REPLICA.WORKLOAD.TENANT.REGION.ZONE.
    return [Target(p, addresses[n], port, n.split(".")[3]) for p, port, n in services if n in addresses]


def _name(answer: bytes, at: int) -> tuple[str, int]:
    """A name and the position after it. Two bytes that begin with two bits set point to an earlier part of the name."""
    labels: list[str] = []
    after = -1
    for _ in range(128):
        size = answer[at]
        if size >= 0xC0:
            after = at + 2 if after < 0 else after
            at = struct.unpack_from(">H", answer, at)[0] & 0x3FFF
        elif size:
            labels.append(answer[at + 1 : at + 1 + size].decode("ascii").lower())
            at += 1 + size
        else:
            return ".".join(labels), after if after >= 0 else at + 1
    raise ValueError("a name in the response does not end")
