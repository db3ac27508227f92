"""`GET /endpoints/TENANT[/WORKLOAD]`: addresses that may receive traffic, as plain JSON for load balancers.

The global cell omits entries of a region that is lost or has not reported within their TTL, so the addresses of a lost
or partitioned region leave the list. A global cell that heard no region at all keeps every address, because the silence
is its own. A region's own cell lists its own endpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.endpoint import Endpoint
from holdfast.model.kinds import BY_NAME
from holdfast.model.region import Region
from holdfast.server.request import Request, Response, json_response
from holdfast.store.objects import Objects

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
        region = app.objects.get(_REGION, "", item.spec.region)
        assert region is None or isinstance(region, Region)
        if app.region_contact.has_expired(item, region):
            continue
        rows = [{"region": item.spec.region, **msgspec.to_builtins(address)} for address in item.spec.addresses]
        groups.setdefault(item.spec.workload, []).extend(rows)
    return json_response({"tenant": tenant, "revision": str(revision), "workloads": groups})


def stored_regions(objects: Objects) -> Iterator[Region]:
    found, _ = objects.list(_REGION)
    return (region for region in found if isinstance(region, Region))
