"""`GET /endpoints/TENANT[/WORKLOAD]`: who may receive traffic, for load balancers that speak plain JSON.

Entries of a region that has not confirmed them within their time to live are left out: a cut-off region's addresses age
out here by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.endpoint import Endpoint
from holdfast.model.kinds import BY_NAME
from holdfast.model.times import parse_time
from holdfast.server.request import Request, Response, json_response

if TYPE_CHECKING:
    from holdfast.server.app import Application

_ENDPOINT = BY_NAME["Endpoint"]


async def endpoints(app: Application, request: Request) -> Response:
    tenant = request.target.parameters["tenant"]
    workload = request.target.parameters.get("workload", "")
    fields = {"workload": f"{tenant}/{workload}"} if workload else None
    found, revision = app.objects.list(_ENDPOINT, tenant, fields=fields)
    now_s = app.ports.clock.now()
    groups: dict[str, list[dict[str, Any]]] = {}
    for item in found:
        assert isinstance(item, Endpoint)
        if expired(item, now_s):
            continue
        rows = [
            {"region": item.spec.region, **msgspec.to_builtins(address)} for address in item.spec.addresses
        ]  # fmt: skip
        groups.setdefault(item.spec.workload, []).extend(rows)
    return json_response({"tenant": tenant, "revision": str(revision), "workloads": groups})


def expired(item: Endpoint, now_s: float) -> bool:
    """Whether the region has been silent for longer than its entries may be used."""
    if not item.status.confirmed_at:
        return False  # written here by the region itself, which withdraws what stops serving
    try:
        return now_s - parse_time(item.status.confirmed_at) > item.spec.ttl_seconds
    except ValueError:
        return True
