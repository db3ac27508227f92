"""Names of the zone. Pure.

    WORKLOAD.TENANT.ZONE                      the nearest region that serves
    WORKLOAD.TENANT.REGION.ZONE               one region
    REPLICA.WORKLOAD.TENANT.REGION.ZONE       one replica
    _PORT._tcp.WORKLOAD.TENANT[.REGION].ZONE  a named port, as SRV

Names are compared in lower case, as DNS requires.
"""

from __future__ import annotations

import msgspec

DEFAULT_ZONE = "holdfast.internal"
PROTOCOLS = ("_tcp", "_udp")


class ServiceName(msgspec.Struct, frozen=True):
    """A parsed name. Empty: not given."""

    workload: str
    tenant: str
    region: str = ""
    replica: str = ""
    port: str = ""

    def labels(self) -> tuple[str, ...]:
        """The labels below the zone."""
        return tuple(part for part in (self.replica, self.workload, self.tenant, self.region) if part)


def parse_service(labels: tuple[str, ...]) -> ServiceName | None:
    """The name of these labels below the zone; None if the zone has no names of this form."""
    port = ""
    if len(labels) > 2 and labels[1] in PROTOCOLS and labels[0].startswith("_"):
        port, labels = labels[0][1:], labels[2:]
        if not port or len(labels) > 3:
            return None
    if any(label.startswith("_") or not label for label in labels):
        return None
    match labels:
        case (workload, tenant):
            return ServiceName(workload, tenant, port=port)
        case (workload, tenant, region):
            return ServiceName(workload, tenant, region, port=port)
        case (replica, workload, tenant, region):
            return ServiceName(workload, tenant, region, replica)
    return None


def labels_below(name: tuple[str, ...], zone: tuple[str, ...]) -> tuple[str, ...] | None:
    """The labels of the name below the zone, in lower case; None if it is not in the zone."""
    lowered = tuple(label.lower() for label in name)
    if len(lowered) < len(zone) or lowered[len(lowered) - len(zone) :] != zone:
        return None
    return lowered[: len(lowered) - len(zone)]
