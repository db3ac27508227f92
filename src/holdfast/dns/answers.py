"""The records of a name. Pure.

A and AAAA answer with the nearest region that has a serving replica: a client that knows no order between addresses
would otherwise use a far region as often as a near one. SRV lists every region, with the distance as its priority.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import msgspec

from holdfast.dns.address_table import AddressTable
from holdfast.dns.names import ServiceName
from holdfast.model.endpoint import Address

# Records in an answer. More would not fit into a UDP response, and clients use one of them.
RECORDS_MAX = 16
PRIORITY_STEP = 10


class AddressRecord(msgspec.Struct, frozen=True):
    """A record of type A or AAAA."""

    address: str
    version: int


class ServiceRecord(msgspec.Struct, frozen=True):
    """A record of type SRV, with the replica's own name as target and its address for the additional section."""

    priority: int
    port: int
    target: ServiceName
    address: AddressRecord


class NameAnswer(msgspec.Struct, frozen=True):
    """`exists` is False if the zone has no such name."""

    exists: bool
    addresses: tuple[AddressRecord, ...] = ()
    services: tuple[ServiceRecord, ...] = ()


def resolve(table: AddressTable, name: ServiceName, turn: int) -> NameAnswer:
    """`turn` rotates the records, so that clients which use the first one spread over the replicas."""
    if not table.is_known(name.tenant, name.workload):
        return NameAnswer(False)
    if name.port:
        return NameAnswer(True, services=tuple(_services(table, name, turn)))
    serving = table.serving(name.tenant, name.workload, name.region)
    if name.replica:
        found = [a for _, addresses in serving for a in addresses if a.replica.lower() == name.replica]
        return NameAnswer(bool(found), addresses=tuple(_records(found)))
    nearest = serving[0][1] if serving else ()
    return NameAnswer(True, addresses=tuple(_records(_rotated(nearest, turn)))[:RECORDS_MAX])


def _services(table: AddressTable, name: ServiceName, turn: int) -> Iterator[ServiceRecord]:
    left = RECORDS_MAX
    for place, (region, addresses) in enumerate(table.serving(name.tenant, name.workload, name.region)):
        for address in _rotated(addresses, turn):
            ports = {key.lower(): number for key, number in address.ports.items()}
            for record in _records([address]):
                if left > 0 and name.port in ports:
                    left -= 1
                    target = ServiceName(name.workload, name.tenant, region, address.replica.lower())
                    yield ServiceRecord(place * PRIORITY_STEP, ports[name.port], target, record)


def _rotated(addresses: tuple[Address, ...], turn: int) -> tuple[Address, ...]:
    start = turn % len(addresses) if addresses else 0
    return addresses[start:] + addresses[:start]


def _records(addresses: list[Address] | tuple[Address, ...]) -> Iterator[AddressRecord]:
    """One record per distinct IP address. Host names have none."""
    seen: set[str] = set()
    for address in addresses:
        try:
            parsed = ipaddress.ip_address(address.address)
        except ValueError:
            continue
        if str(parsed) not in seen:
            seen.add(str(parsed))
            yield AddressRecord(str(parsed), parsed.version)
