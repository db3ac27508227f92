"""`GET /endpoints/TENANT[/WORKLOAD]`: addresses that may receive traffic, as plain JSON for load balancers.

The global cell omits entries of a region that has not reported within their TTL, so the addresses of a partitioned
region age out. A region's own cell lists its own endpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.endpoint import Endpoint
from holdfast.model.kinds import BY_NAME
from holdfast.model.region import Region
from holdfast.model.times import parse_time
from holdfast.server.request import Request, Response, json_response

if TYPE_CHECKING:
    from holdfast.server.app import Application

_ENDPOINT = BY_NAME["Endpoint"]
_REGION = BY_NAME["Region"]


async def endpoints(app: Application, request: Request) -> Response:
    tenant = request.target.parameters["tenant"]
    workload = request.target.parameters.get("workload", "")
    fields = {"workload": f"{tenant}/{workload}"} if workload else None
    found, revision = app.objects.list(_ENDPOINT, tenant, fields=fields)
    groups: dict[str, list[dict[str, Any]]] = {}
    for item in found:
        assert isinstance(item, Endpoint)
        if is_expired(app, item):
            continue
        rows = [{"region": item.spec.region, **msgspec.to_builtins(address)} for address in item.spec.addresses]
        groups.setdefault(item.spec.workload, []).extend(rows)
    return json_response({"tenant": tenant, "revision": str(revision), "workloads": groups})


def is_expired(app: Application, item: Endpoint) -> bool:
    """Whether the region's last report is older than the entry's TTL, on this cell's clock."""
    region = app.objects.get(_REGION, "", item.spec.region)
    last_contact_at = region.status.health.last_contact_at if isinstance(region, Region) else ""
    return bool(last_contact_at) and app.ports.clock.now() - parse_time(last_contact_at) > item.spec.ttl_seconds
