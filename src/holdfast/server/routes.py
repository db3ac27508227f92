"""The route table: every path the server serves. Nothing else is served.

`access`: `open` everyone; `authenticated` every authenticated principal; `authorized` principals that may use the
resource; `metrics`, `endpoints` principals that may read these; `handler` the handler authorizes the call itself;
`console` signed-in users of the console, and every authenticated principal that sends its header.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.console.region_calls import CALL_BODY_CHARS_MAX
from holdfast.server import (
    access_reviews,
    agent_rpc_hub,
    agent_sessions,
    audit_log,
    config_values,
    console,
    console_assets,
    console_drills,
    console_regions,
    console_shell,
    console_what_if,
    delete,
    discovery,
    endpoints,
    eviction,
    fleet_objects,
    fleet_sessions,
    fleet_watch,
    health,
    internal_api,
    join,
    metrics,
    openapi,
    pod_logs,
    pod_metrics,
    pod_sessions,
    port_forward,
    read,
    region_sessions,
    scale,
    watch,
)
from holdfast.server import write as w
from holdfast.server.request import MAX_BODY_BYTES, MAX_JOIN_BYTES, MAX_OPTIONS_BYTES, AnyResponse, Request
from holdfast.server.router import Route

if TYPE_CHECKING:
    from holdfast.server.app import Application

_GET = ("GET", "HEAD")


def _is_read_in_regions(app: Application, request: Request) -> bool:
    return fleet_objects.is_read_in_regions(read.target_resource(request), app.cell)


async def collection(app: Application, request: Request) -> AnyResponse:
    config_values.audit_read(app, request)
    if request.target.verb == "watch":
        return await _watch(app, request)
    if _is_read_in_regions(app, request):
        return await fleet_objects.list_objects(app, request)
    return await read.list_objects(app, request)


async def item(app: Application, request: Request) -> AnyResponse:
    config_values.audit_read(app, request)
    if request.target.verb == "watch":
        return await _watch(app, request)
    if _is_read_in_regions(app, request):
        return await fleet_objects.get(app, request)
    return await read.get(app, request)


async def _watch(app: Application, request: Request) -> AnyResponse:
    if _is_read_in_regions(app, request):
        return await fleet_watch.watch(app, request)
    return await watch.watch(app, request)


async def log(app: Application, request: Request) -> AnyResponse:
    if not _is_read_in_regions(app, request):
        return await pod_logs.log(app, request)
    if request.flag("follow") and not request.flag("previous"):
        return await fleet_sessions.follow_log(app, request)
    return await fleet_objects.log(app, request)


async def exec_(app: Application, request: Request) -> AnyResponse:
    if _is_read_in_regions(app, request):
        return await fleet_sessions.exec_(app, request)
    return await pod_sessions.exec_(app, request)


async def attach(app: Application, request: Request) -> AnyResponse:
    if _is_read_in_regions(app, request):
        return await fleet_sessions.attach(app, request)
    return await pod_sessions.attach(app, request)


async def forward(app: Application, request: Request) -> AnyResponse:
    if _is_read_in_regions(app, request):
        return await fleet_sessions.forward(app, request)
    return await port_forward.port_forward(app, request)


def _resource(methods: tuple[str, ...], pattern: str, handler: Callable[..., Any], max_body_bytes: int = 0) -> Route:
    return Route(methods, pattern, handler, label="resource", max_body_bytes=max_body_bytes)


def _collection(pattern: str) -> tuple[Route, ...]:
    return (
        _resource(_GET, pattern, collection),
        _resource(("POST",), pattern, w.create, MAX_BODY_BYTES),
        _resource(("DELETE",), pattern, delete.delete_collection, MAX_OPTIONS_BYTES),
    )


def _item(pattern: str) -> tuple[Route, ...]:
    return (
        _resource(_GET, pattern, item),
        _resource(("PUT",), pattern, w.update, MAX_BODY_BYTES),
        _resource(("PATCH",), pattern, w.patch, MAX_BODY_BYTES),
        _resource(("DELETE",), pattern, delete.delete, MAX_OPTIONS_BYTES),
    )


def _session(pattern: str, handler: Callable[..., Any]) -> tuple[Route, ...]:
    """A session is opened with GET over WebSocket, with POST over SPDY."""
    return (_resource(("GET",), pattern, handler), _resource(("POST",), pattern, handler, MAX_OPTIONS_BYTES))


def _parts(pattern: str) -> tuple[Route, ...]:
    """Subresources: scale has its own type, the others are parts of the object."""
    return (
        _resource(_GET, f"{pattern}/scale", scale.get_scale),
        _resource(("PUT",), f"{pattern}/scale", scale.update_scale, MAX_OPTIONS_BYTES),
        _resource(("PATCH",), f"{pattern}/scale", scale.patch_scale, MAX_OPTIONS_BYTES),
        _resource(("POST",), f"{pattern}/eviction", eviction.evict, MAX_OPTIONS_BYTES),
        _resource(("GET",), f"{pattern}/log", log),
        *_session(f"{pattern}/exec", exec_),
        *_session(f"{pattern}/attach", attach),
        *_session(f"{pattern}/portforward", forward),
        _resource(_GET, f"{pattern}/{{subresource}}", read.get),
        _resource(("PUT",), f"{pattern}/{{subresource}}", w.update, MAX_BODY_BYTES),
        _resource(("PATCH",), f"{pattern}/{{subresource}}", w.patch, MAX_BODY_BYTES),
    )


def _call(
    pattern: str, handler: Callable[..., Any], max_body_bytes: int, check: Callable[..., None] | None = None
) -> Route:
    return Route(("POST",), pattern, handler, access="handler", max_body_bytes=max_body_bytes, check=check)


def _console(method: str, pattern: str, handler: Callable[..., Any], max_body_bytes: int = 0) -> Route:
    path = f"/console/api/{pattern}"
    return Route((method,), path, handler, access="console", max_body_bytes=max_body_bytes, check=console.check_request)


_CORE, _GROUPED = "/api/{version}", "/apis/{group}/{version}"
_METRICS = f"/apis/{pod_metrics.GROUP}/{pod_metrics.VERSION}"
ROUTES: tuple[Route, ...] = (
    Route(_GET, "/version", discovery.version, access="open"),
    Route(_GET, "/healthz", health.health, access="open"),
    Route(_GET, "/healthz/{check}", health.health, access="open"),
    Route(_GET, "/livez", health.health, access="open"),
    Route(_GET, "/livez/{check}", health.health, access="open"),
    Route(_GET, "/readyz", health.health, access="open"),
    Route(_GET, "/readyz/{check}", health.health, access="open"),
    Route(_GET, "/metrics", metrics.of_cell, access="metrics"),
    Route(_GET, "/metrics/nodes", metrics.node_targets, access="metrics"),
    Route(_GET, "/metrics/nodes/{node}", metrics.of_node, access="metrics"),
    Route(("GET",), "/audit/v1", audit_log.read_audit_log, access="audit"),
    Route(("GET",), "/audit/v1/checkpoints", audit_log.read_checkpoints, access="audit"),
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
        Route(
            ("POST",),
            f"/apis/{group}/v1/{plural}",
            access_reviews.review,
            access="authorized",
            label="review",
            max_body_bytes=MAX_OPTIONS_BYTES,
        )
        for group, plural in access_reviews.REVIEWS
    ),
    *(
        _call(f"/placement/v1/{name}", internal_api.placement, MAX_BODY_BYTES, internal_api.check_placement)
        for name in internal_api.PLACEMENT_CALLS
    ),
    Route(("POST",), "/join/v1", join.join, access="open", max_body_bytes=MAX_JOIN_BYTES),
    _call("/join/v1/renew", join.renew, MAX_JOIN_BYTES),
    Route(_GET, "/join/v1/ca", join.trust_bundle, access="open"),
    Route(("POST",), "/join/v1/region", join.join_region, access="open", max_body_bytes=MAX_JOIN_BYTES),
    _call("/join/v1/region/renew", join.renew_region, MAX_JOIN_BYTES),
    _call("/join/v1/server/material", join.share_material, MAX_JOIN_BYTES),
    _call("/join/v1/regions/{name}/revoke", join.revoke_region, MAX_OPTIONS_BYTES),
    _call("/join/v1/servers/{name}/revoke", join.revoke_server, MAX_OPTIONS_BYTES),
    _call("/commit/v1", internal_api.commit, MAX_BODY_BYTES, internal_api.check_commit),
    _call("/notify/v1", internal_api.notify, MAX_BODY_BYTES, internal_api.check_notify),
    Route(
        ("GET",),
        "/node/v1/{node}/calls",
        agent_rpc_hub.agent_stream,
        access="handler",
        check=agent_rpc_hub.check_caller_is_agent,
    ),
    _call(
        "/node/v1/{node}/responses/{id}",
        agent_rpc_hub.agent_response,
        MAX_BODY_BYTES,
        agent_rpc_hub.check_caller_is_agent,
    ),
    Route(
        ("GET",),
        "/node/v1/{node}/sessions/{id}",
        agent_sessions.agent_side,
        access="handler",
        check=agent_rpc_hub.check_caller_is_agent,
    ),
    _call("/agent/v1/replicas/{tenant}/{replica}", agent_rpc_hub.call_replica_agent, MAX_OPTIONS_BYTES),
    _call("/agent/v1/nodes/{node}", agent_rpc_hub.call_node_agent, MAX_OPTIONS_BYTES),
    Route(_GET, f"{_METRICS}/nodes", pod_metrics.nodes, access="handler"),
    Route(_GET, f"{_METRICS}/nodes/{{name}}", pod_metrics.nodes, access="handler"),
    Route(_GET, f"{_METRICS}/pods", pod_metrics.pods, access="handler"),
    Route(_GET, f"{_METRICS}/namespaces/{{namespace}}/pods", pod_metrics.pods, access="handler"),
    Route(_GET, f"{_METRICS}/namespaces/{{namespace}}/pods/{{name}}", pod_metrics.pods, access="handler"),
    Route(_GET, "/endpoints/{tenant}", endpoints.endpoints, access="endpoints"),
    Route(_GET, "/endpoints/{tenant}/{workload}", endpoints.endpoints, access="endpoints"),
    Route(_GET, "/", console_assets.root, access="open"),
    Route(
        ("POST",),
        "/console/api/links",
        console.make_link,
        access="authenticated",
        max_body_bytes=console.MAX_SIGN_IN_BYTES,
    ),
    Route(("POST",), "/console/api/session", console.sign_in, access="open", max_body_bytes=console.MAX_SIGN_IN_BYTES),
    Route(_GET, "/console/api/sign-in", console.ways_to_sign_in, access="open"),
    Route(
        ("POST",), "/console/api/oidc", console.begin_at_issuer, access="open", max_body_bytes=console.MAX_SIGN_IN_BYTES
    ),
    _console("GET", "session", console.session),
    _console("DELETE", "session", console.sign_out, console.MAX_SIGN_IN_BYTES),
    _console("GET", "pages/{page}", console.page),
    _console("GET", "stream", console.stream),
    _console("GET", "history", console.history),
    _console("GET", "drills", console_drills.read),
    _console("POST", "drills", console_drills.start, console.MAX_SIGN_IN_BYTES),
    _console("POST", "what-if", console_what_if.apply, console_what_if.MANIFEST_BYTES_MAX),
    _console("GET", "regions/{region}/pods/{tenant}/{name}/log", console_regions.replica_log),
    _console("GET", "regions/{region}/pods/{tenant}/{name}/exec", console_shell.shell),
    _console("GET", "regions/{region}/nodes/{node}", console_regions.node),
    _console("PATCH", "regions/{region}/nodes/{node}", console_regions.patch_node, CALL_BODY_CHARS_MAX),
    _console("GET", "regions/{region}/nodes/{node}/usage", console_regions.node_usage),
    Route(_GET, "/console/assets/{file}", console_assets.asset, access="open"),
    *(
        Route(
            _GET, "/console" + "".join(f"/{{{name}}}" for name in "abcde"[:depth]), console_assets.index, access="open"
        )
        for depth in range(5)
    ),
    *(
        Route(_GET, "/docs" + "".join(f"/{{{name}}}" for name in "abcd"[:depth]), console_assets.docs, access="open")
        for depth in range(console_assets.DOCS_DEPTH_MAX + 1)
    ),
    Route(
        ("GET",),
        "/region/v1/{region}/queries",
        console.region_stream,
        access="handler",
        check=console.check_caller_is_region,
    ),
    Route(
        ("GET",),
        "/region/v1/{region}/sessions/{id}",
        region_sessions.region_side,
        access="handler",
        check=console.check_caller_is_region,
    ),
    _call("/region/v1/{region}/answers/{id}", console.region_answer, MAX_BODY_BYTES, console.check_caller_is_region),
    Route(
        ("GET",), "/secrets/v1/keys", config_values.secret_keys, access="handler", check=config_values.check_operator
    ),
    Route(
        ("GET",),
        "/region/v1/{region}/config",
        config_values.region_config,
        access="handler",
        check=console.check_caller_is_region,
    ),
    Route(
        ("GET",),
        "/region/v1/{region}/config/{kind}/{tenant}/{name}",
        config_values.region_config_object,
        access="handler",
        check=console.check_caller_is_region,
    ),
    Route(
        ("GET",),
        "/node/v1/{node}/values/{tenant}/{binding}",
        config_values.task_values,
        access="handler",
        check=agent_rpc_hub.check_caller_is_agent,
    ),
    Route(
        ("GET",),
        "/node/v1/{node}/registry-login/{tenant}/{binding}",
        config_values.registry_login,
        access="handler",
        check=agent_rpc_hub.check_caller_is_agent,
    ),
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
