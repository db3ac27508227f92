"""The route table: every path the server serves. Nothing else is served.

`access`: `open` everyone; `authenticated` every authenticated principal; `authorized` principals that may use the
resource; `metrics`, `endpoints` principals that may read these; `handler` the handler authorizes the call itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast.server import (
    access_reviews,
    agent_rpc_hub,
    delete,
    discovery,
    endpoints,
    eviction,
    health,
    internal_api,
    join,
    openapi,
    pod_logs,
    read,
    scale,
    watch,
)
from holdfast.server import write as w
from holdfast.server.request import AnyResponse, Request, Response
from holdfast.server.router import Route

if TYPE_CHECKING:
    from holdfast.server.app import Application

_GET = ("GET", "HEAD")


async def metrics(app: Application, request: Request) -> Response:
    return Response(generate_latest(REGISTRY), content_type=CONTENT_TYPE_LATEST)


async def collection(app: Application, request: Request) -> AnyResponse:
    if request.target.verb == "watch":
        return await watch.watch(app, request)
    return await read.list_objects(app, request)


async def item(app: Application, request: Request) -> AnyResponse:
    if request.target.verb == "watch":
        return await watch.watch(app, request)
    return await read.get(app, request)


def _collection(pattern: str) -> tuple[Route, ...]:
    return (
        Route(_GET, pattern, collection, label="resource"),
        Route(("POST",), pattern, w.create, label="resource"),
        Route(("DELETE",), pattern, delete.delete_collection, label="resource"),
    )


def _item(pattern: str) -> tuple[Route, ...]:
    return (
        Route(_GET, pattern, item, label="resource"),
        Route(("PUT",), pattern, w.update, label="resource"),
        Route(("PATCH",), pattern, w.patch, label="resource"),
        Route(("DELETE",), pattern, delete.delete, label="resource"),
    )


def _parts(pattern: str) -> tuple[Route, ...]:
    """Subresources: scale has its own type, the others are parts of the object."""
    return (
        Route(_GET, f"{pattern}/scale", scale.get_scale, label="resource"),
        Route(("PUT",), f"{pattern}/scale", scale.update_scale, label="resource"),
        Route(("PATCH",), f"{pattern}/scale", scale.patch_scale, label="resource"),
        Route(("POST",), f"{pattern}/eviction", eviction.evict, label="resource"),
        Route(("GET",), f"{pattern}/log", pod_logs.log, label="resource"),
        Route(_GET, f"{pattern}/{{subresource}}", read.get, label="resource"),
        Route(("PUT",), f"{pattern}/{{subresource}}", w.update, label="resource"),
        Route(("PATCH",), f"{pattern}/{{subresource}}", w.patch, label="resource"),
    )


_CORE, _GROUPED = "/api/{version}", "/apis/{group}/{version}"
ROUTES: tuple[Route, ...] = (
    Route(_GET, "/version", discovery.version, access="open"),
    Route(_GET, "/healthz", health.health, access="open"),
    Route(_GET, "/healthz/{check}", health.health, access="open"),
    Route(_GET, "/livez", health.health, access="open"),
    Route(_GET, "/livez/{check}", health.health, access="open"),
    Route(_GET, "/readyz", health.health, access="open"),
    Route(_GET, "/readyz/{check}", health.health, access="open"),
    Route(_GET, "/metrics", metrics, access="metrics"),
    Route(_GET, "/openapi/v2", openapi.openapi_v2, access="authenticated"),
    Route(_GET, "/openapi/v3", openapi.openapi_root, access="authenticated"),
    Route(_GET, "/openapi/v3/api/v1", openapi.group_document, access="authenticated"),
    Route(_GET, "/openapi/v3/apis/{group}/{version}", openapi.group_document, access="authenticated"),
    Route(_GET, "/api", discovery.core, access="authenticated"),
    Route(_GET, "/apis", discovery.groups, access="authenticated"),
    Route(_GET, "/apis/{group}", discovery.group, access="authenticated"),
    Route(_GET, "/api/v1", discovery.resources, access="authenticated"),
    Route(_GET, _GROUPED, discovery.resources, access="authenticated"),
    *(
        Route(("POST",), f"/apis/{group}/v1/{plural}", access_reviews.review, access="authorized", label="review")
        for group, plural in access_reviews.REVIEWS
    ),
    *(
        Route(("POST",), f"/placement/v1/{call}", internal_api.placement, access="handler")
        for call in internal_api.PLACEMENT_CALLS
    ),
    Route(("POST",), "/join/v1", join.join, access="open"),
    Route(("POST",), "/join/v1/renew", join.renew, access="handler"),
    Route(("POST",), "/commit/v1", internal_api.commit, access="handler"),
    Route(("POST",), "/notify/v1", internal_api.notify, access="handler"),
    Route(("GET",), "/node/v1/{node}/calls", agent_rpc_hub.agent_stream, access="handler"),
    Route(("POST",), "/node/v1/{node}/responses/{id}", agent_rpc_hub.agent_response, access="handler"),
    Route(("POST",), "/agent/v1/replicas/{tenant}/{replica}", agent_rpc_hub.call_replica_agent, access="handler"),
    Route(("POST",), "/agent/v1/nodes/{node}", agent_rpc_hub.call_node_agent, access="handler"),
    Route(_GET, "/endpoints/{tenant}", endpoints.endpoints, access="endpoints"),
    Route(_GET, "/endpoints/{tenant}/{workload}", endpoints.endpoints, access="endpoints"),
    # Namespaces first: `/api/v1/namespaces/x/status` is a subresource of a namespace, not an object called status.
    *_parts("/api/v1/namespaces/{name}"),
    *_item("/api/v1/namespaces/{name}"),
    *_collection("/api/v1/namespaces"),
    *(
        route
        for base in (_CORE, _GROUPED)
        for route in (
            *_parts(f"{base}/namespaces/{{namespace}}/{{plural}}/{{name}}"),
            *_item(f"{base}/namespaces/{{namespace}}/{{plural}}/{{name}}"),
            *_collection(f"{base}/namespaces/{{namespace}}/{{plural}}"),
            *_parts(f"{base}/{{plural}}/{{name}}"),
            *_item(f"{base}/{{plural}}/{{name}}"),
            *_collection(f"{base}/{{plural}}"),
        )
    ),
)
