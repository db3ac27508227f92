"""What a page of the console does in a region: reads a replica's log and a node's use, closes and drains a node.

Authorized and audited here, so that the global cell's audit log is complete, and again in the region, whose API serves
the request under the user's own name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from holdfast.console.node_usage import usage_request
from holdfast.console.region_calls import RegionRequest
from holdfast.model.errors import BadRequest, Forbidden
from holdfast.server.console import require_viewer, secured, service_of
from holdfast.server.request import Request, Response

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Newest lines of a log that a page shows. Older ones are read with `holdfast logs`.
LOG_LINES_MAX = 500
# Size of the part of a log that a page gets.
LOG_BYTES_MAX = 256 * 1024

MERGE_PATCH = "application/merge-patch+json"


async def replica_log(app: Application, request: Request) -> Response:
    """`GET /console/api/regions/REGION/pods/TENANT/NAME/log`: the newest lines, with the times of the agent."""
    tenant, name = request.target.parameters["tenant"], request.target.parameters["name"]
    require_access(app, request, "get", "pods", "log", tenant, name)
    query = urlencode({"tailLines": LOG_LINES_MAX, "limitBytes": LOG_BYTES_MAX, "timestamps": "true"})
    return await _forward(
        app, request, RegionRequest(method="GET", path=f"/api/v1/namespaces/{tenant}/pods/{name}/log", query=query)
    )


async def node(app: Application, request: Request) -> Response:
    """`GET /console/api/regions/REGION/nodes/NODE`."""
    name = request.target.parameters["node"]
    require_access(app, request, "get", "nodes", "", "", name)
    return await _forward(app, request, RegionRequest(method="GET", path=_node_path(name)))


async def patch_node(app: Application, request: Request) -> Response:
    """`PATCH /console/api/regions/REGION/nodes/NODE`: a merge patch, with `dryRun=All` for a dry run."""
    region, name = request.target.parameters["region"], request.target.parameters["node"]
    require_access(app, request, "patch", "nodes", "", "", name)
    if request.content_type != MERGE_PATCH:
        raise BadRequest(f"node {name}: wrong content type (expected {MERGE_PATCH}, found {request.content_type[:60]})")
    body = (await request.body()).decode(errors="replace")
    dry_run = {"dryRun": request.query["dryRun"]} if "dryRun" in request.query else {}
    query = urlencode({"fieldManager": "console", **dry_run})
    wanted = RegionRequest(method="PATCH", path=_node_path(name), query=query, body=body, content_type=MERGE_PATCH)
    if not dry_run:
        text = f"node {name} in region {region}"
        app.gate.audit.record_use(request.principal, "patch", "nodes", message=text, request=request.id)
    return await _forward(app, request, wanted)


async def node_usage(app: Application, request: Request) -> Response:
    """`GET /console/api/regions/REGION/nodes/NODE/usage`: what the node's tasks use now, as the agent measures it."""
    name = request.target.parameters["node"]
    require_access(app, request, "get", "nodes", "", "", name)
    return await _forward(app, request, usage_request(name))


def _node_path(name: str) -> str:
    return f"/apis/holdfast.dev/v1/nodes/{name}"


def require_access(  # noqa: PLR0917 - the parts of a request, in the order of `access_refusal`
    app: Application, request: Request, verb: str, resource: str, subresource: str, namespace: str, name: str
) -> None:
    """Raises Forbidden, and audits it, if the caller may not do this here."""
    refused = app.access_refusal(request.principal, verb, resource, subresource, namespace, name)
    if refused is not None:
        what = f"{resource}/{subresource}" if subresource else resource
        app.gate.audit.record_refusal(
            request.principal, verb, what, refused.reason, message=refused.message, request=request.id
        )
        raise Forbidden(refused.message, facts=refused.facts)


async def _forward(app: Application, request: Request, wanted: RegionRequest) -> Response:
    region = request.target.parameters["region"]
    viewer = require_viewer(app, request)
    if not viewer.reaches(region):
        app.gate.audit.record_refusal(
            request.principal, wanted.method.lower(), "console/regions", "Forbidden", message=region, request=request.id
        )
    found = await service_of(app).hub.call(region, viewer, wanted)
    return secured(Response(found.body.encode(), found.code, found.content_type))
