"""The ASGI application of one cell: routes, authenticates, authorizes, applies flow control, and responds.

Every response from 400 on is a Status object. An unexpected exception becomes a 500 with a logged traceback; no client
input may cause one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import structlog

from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.gate.authorize import access_refusal, is_served_in, path_refusal
from holdfast.gate.events import EventLog
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import PlacementService
from holdfast.identity.authenticate import Authenticator, impersonated_principal
from holdfast.identity.joining import JoinService
from holdfast.model.errors import Fault, Forbidden, Overloaded, Refused, Unauthorized
from holdfast.model.indexes import indexes_of
from holdfast.server import status
from holdfast.server.agent_rpc_hub import AgentRpcHub
from holdfast.server.flow_control import FlowControl, priority_level_of
from holdfast.server.health import Health
from holdfast.server.openapi import OpenApiDocuments
from holdfast.server.request import (
    AnyResponse,
    ClientDisconnected,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    StreamResponse,
)
from holdfast.server.resources import NAMESPACES
from holdfast.server.router import Route, Router, RouteTarget, resource_target
from holdfast.server.routes import ROUTES
from holdfast.server.selectors import parse
from holdfast.store.objects import Objects

# Time a client may take to accept one chunk of a stream. Then the stream is closed, and the client connects again.
SEND_STALL_TIMEOUT_S = 30.0
# Requests that take longer are logged, whatever their result.
SLOW_REQUEST_S = 1.0
# Interval at which open streams are checked for revoked credentials. Then such a stream is closed.
STREAM_CREDENTIALS_CHECK_EVERY_S = 5.0

_log = structlog.get_logger()
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_ITEM_VERBS = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_COLLECTION_VERBS = {"GET": "list", "HEAD": "list", "POST": "create", "DELETE": "deletecollection"}
# Warning headers of one response. The rest is dropped.
MAX_WARNINGS = 20
# Length of one warning. The rest is cut off.
MAX_WARNING_CHARS = 500


class Application:
    """The API of one cell. `placement` is the region's authority; None in the global cell."""

    def __init__(
        self,
        cell: str,
        objects: Objects,
        gate: Gate,
        authenticator: Authenticator,
        ports: Ports,
        *,
        placement: PlacementService | None = None,
        events: EventLog | None = None,
        open_metrics: bool = False,
        joining: JoinService | None = None,
    ) -> None:
        self.cell = cell
        self.objects = objects
        self.gate = gate
        self.authenticator = authenticator
        self.ports = ports
        self.placement = placement
        self.events = events if events is not None else EventLog(objects, ports)
        self.open_metrics = open_metrics
        self.join_service = joining or JoinService(gate, None)
        self.draining = False
        self.openapi_documents = OpenApiDocuments(cell)
        self.health = Health(self)
        self.flow = FlowControl()
        self.agent_rpc = AgentRpcHub()
        self._router = Router(ROUTES)
        self._streams: dict[asyncio.Task[None], Request] = {}
        self._stream_checker: asyncio.Task[None] | None = None
        self._timers: dict[tuple[str, str], Any] = {}
        self._counters: dict[tuple[str, str, int], Any] = {}
        self._log = structlog.get_logger().bind()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        began = self.ports.clock.monotonic()
        request: Request | None = None
        try:
            request = Request(scope, receive, request_id=self.ports.ids.uid())
            response = await self._handle(request)
        except ClientDisconnected:
            return
        except Fault as fault:
            response = _refusal(request, fault)
        except asyncio.CancelledError:
            raise
        except Exception:
            metrics.SERVER_FAILURES.inc()
            await _log.aexception("request_failed", path=scope["path"][:200], method=scope["method"])
            response = _refusal(request, Fault("internal server error; next: see request_failed in the server's log"))
        code = response.code if isinstance(response, Response) else 200
        try:
            if isinstance(response, StreamResponse):
                assert request is not None
                await self._stream(request, response, send)
            else:
                await _send_response(request, response, send)
        finally:
            if request is not None:
                self._record(request, code, self.ports.clock.monotonic() - began)

    async def drain(self) -> None:
        """Ends all watches cleanly. Clients resume them at another server."""
        self.draining = True
        if self._stream_checker is not None:
            self._stream_checker.cancel()
        for task in list(self._streams):
            task.cancel()

    # Request -------------------------------------------------------------------------------------------------------

    async def _handle(self, request: Request) -> AnyResponse:
        route = self._match_route(request)
        self._authenticate(request, route)
        if request.method in _BODY_METHODS:
            await request.body()  # before flow control: a slow sender must not occupy a seat
        self._authorize(request, route)
        if route.access == "open":
            return await _call(route, self, request)
        async with self.flow.admit(request.principal, request.target.namespace):
            return await _call(route, self, request)

    def _match_route(self, request: Request) -> Route:
        """The route of this path and method. A path without any route is 404, a path with other methods 405."""
        found = False
        for route, parameters in self._router.find(request.path):
            target: RouteTarget | None = RouteTarget(parameters=parameters)
            if route.label == "resource":
                named = route.pattern.rpartition("/")[2]
                part = {"subresource": named} if named in ("scale", "eviction", "log") else {}
                target = resource_target({**parameters, **part})
            if target is None:
                continue
            found = True
            if request.method in route.methods:
                target.route = route
                target.verb = _verb(request, route, target)
                request.target = target
                self._check_served_here(target)
                if target.resource is not None and not target.subresource and target.verb not in target.resource.verbs:
                    raise status.method_not_allowed(request.method)
                return route
        if found:
            raise status.method_not_allowed(request.method)
        raise status.HttpRefusal(404, "NotFound", "the server could not find the requested resource")

    def _check_served_here(self, target: RouteTarget) -> None:
        if target.resource is not None and not is_served_in(target.resource.stored, self.cell):
            plural = target.resource.kind.plural
            where = "in the regions" if self.cell == "global" else "in the global cell"
            raise status.HttpRefusal(
                404, "NotFound", f"{plural}: not stored in the {self.cell} cell; next: request them from {where}"
            )

    def _authenticate(self, request: Request, route: Route) -> None:
        bearer = request.headers.get("authorization", "")
        if request.peer_certificate:
            try:
                request.principal = self.authenticator.from_certificate(request.peer_certificate)
            except Unauthorized as refusal:
                self._audit_rejected_certificate(refusal, request)
                raise Unauthorized("Unauthorized") from None
        elif bearer:
            request.principal = self.authenticator.from_bearer(bearer)
        elif route.access == "open" or (route.access == "metrics" and self.open_metrics):
            return
        else:
            raise Unauthorized("Unauthorized")
        user = request.headers.get("impersonate-user", "")
        if user or any(name.startswith("impersonate-") for name in request.headers):
            self._impersonate(request, user)

    def _audit_rejected_certificate(self, refusal: Unauthorized, request: Request) -> None:
        """A certificate that TLS accepted and the cell rejects: revoked, expired, or outside its authority."""
        who = refusal.facts.get("principal")
        if who is not None:
            self.gate.audit.record_refusal(
                who, "authenticate", "certificates", str(refusal.facts["why"]), request=request.id
            )

    def _impersonate(self, request: Request, user: str) -> None:
        groups = tuple(request.all_headers("impersonate-group"))
        for resource, name in (("users", user), *(("groups", group) for group in groups)):
            refused = access_refusal(request.principal, "impersonate", resource, name=name, cell=self.cell)
            if refused is not None:
                raise self._forbidden(request, refused)
        if not user:
            raise status.HttpRefusal(400, "BadRequest", "impersonation: the header Impersonate-User is missing")
        request.principal = impersonated_principal(request.principal, user, groups)

    def _authorize(self, request: Request, route: Route) -> None:
        who, target = request.principal, request.target
        refused: Refused | None = None
        if target.resource is not None:
            refused = self._resource_access_refusal(request)
        elif route.label == "review":
            refused = access_refusal(who, "create", route.pattern.rpartition("/")[2], cell=self.cell)
        elif route.access == "endpoints":
            refused = access_refusal(who, "list", "endpoints", namespace=target.parameters["tenant"], cell=self.cell)
        elif route.access == "metrics" and not self.open_metrics:
            refused = path_refusal(who, request.path, "get")
        if refused is not None:
            raise self._forbidden(request, refused)

    def _resource_access_refusal(self, request: Request) -> Refused | None:
        who, target = request.principal, request.target
        assert target.resource is not None
        kind = target.resource.kind
        fields: dict[str, str] = {}
        if target.verb in ("list", "watch", "deletecollection"):
            wanted = parse(kind, "", request.query.get("fieldSelector", ""))
            fields = {term.label: term.value for term in wanted.fields if term.equal}
        access = (who, target.verb, kind.plural, target.subresource, target.namespace, target.name)
        refused = access_refusal(*access, fields=fields, cell=self.cell)
        if refused is not None and target.verb == "get":
            # Some principals may read an object because of its fields, such as the Bindings of their own node.
            item = self.objects.get(target.resource.stored, target.namespace, target.name)
            if item is not None:
                known = indexes_of(target.resource.stored.type)
                own = {name: next(iter(index(item)), "") for name, index in known.items()}
                refused = access_refusal(*access, fields=own, cell=self.cell)
        return refused

    def _forbidden(self, request: Request, refused: Refused) -> Forbidden:
        what = request.target.resource.kind.plural if request.target.resource else request.path[:100]
        verb = request.target.verb or request.method.lower()
        self.gate.audit.record_refusal(request.principal, verb, what, refused.reason, message=refused.message)
        return Forbidden(refused.message, facts=refused.facts)

    # Responses -----------------------------------------------------------------------------------------------------

    async def _stream(self, request: Request, response: StreamResponse, send: Send) -> None:
        """Sends until the stream ends, the client disconnects, or the server drains. A client that stops reading is
        disconnected.
        """
        who = request.principal
        sender = asyncio.ensure_future(_send_stream(response, send))
        gone = asyncio.ensure_future(request.disconnected())
        self._streams[gone] = request
        if self._stream_checker is None:
            self._stream_checker = asyncio.ensure_future(self._check_streams())
        try:
            await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
            client_left = gone.done() and not gone.cancelled()
            if not sender.done():
                sender.cancel()
                await asyncio.wait({sender})
                if not client_left:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif not sender.cancelled() and sender.exception() is not None:
                request.abort()
                if not isinstance(sender.exception(), TimeoutError):
                    metrics.SERVER_FAILURES.inc()
                    _log.error("stream_failed", path=request.path[:200], exc_info=sender.exception())
        finally:
            self._streams.pop(gone, None)
            gone.cancel()
            sender.cancel()
            self.flow.close_watch(who)

    async def _check_streams(self) -> None:
        """Ends streams whose credential was revoked or expired; a watch could otherwise outlive it by days."""
        try:
            while self._streams and not self.draining:
                await self.ports.clock.sleep(STREAM_CREDENTIALS_CHECK_EVERY_S)
                for task, request in list(self._streams.items()):
                    try:
                        if request.peer_certificate:
                            self.authenticator.from_certificate(request.peer_certificate)
                        else:
                            self.authenticator.from_bearer(request.headers.get("authorization", ""))
                    except Unauthorized as refusal:
                        self._audit_rejected_certificate(refusal, request)
                        task.cancel()
        finally:
            self._stream_checker = None

    def _record(self, request: Request, code: int, seconds: float) -> None:
        target = request.target
        verb = target.verb or request.method.lower()
        resource = target.resource.kind.plural if target.resource else _label(target.route)
        if target.subresource:
            resource = f"{resource}/{target.subresource}"
        counter = self._counters.get((verb, resource, code))
        if counter is None:
            counter = self._counters[(verb, resource, code)] = metrics.SERVER_REQUESTS.labels(verb, resource, str(code))
        counter.inc()
        if verb != "watch":
            timer = self._timers.get((verb, resource))
            if timer is None:
                timer = self._timers[(verb, resource)] = metrics.SERVER_DURATION.labels(verb, resource)
            timer.observe(seconds)
        # The audit log records writes; this log is for failures and slow requests.
        is_notable = code >= 400 or (seconds > SLOW_REQUEST_S and verb != "watch")
        if is_notable or self._log.is_enabled_for(logging.DEBUG):
            log_request = self._log.info if is_notable else self._log.debug
            log_request(
                "request_answered",
                id=request.id,
                user=request.principal.name,
                verb=verb,
                resource=resource,
                namespace=target.namespace,
                name=target.name,
                code=code,
                seconds=round(seconds, 6),
                lane=priority_level_of(request.principal),
                agent=request.headers.get("user-agent", "")[:80],
                command=request.headers.get("kubectl-command", "")[:80],
                trace=_trace_id(request.headers.get("traceparent", "")),
            )


async def _call(route: Route, app: Application, request: Request) -> AnyResponse:
    response: AnyResponse = await route.handler(app, request)
    if isinstance(response, StreamResponse):
        app.flow.open_watch(request.principal)
    return response


def _verb(request: Request, route: Route, target: RouteTarget) -> str:
    if target.resource is None:
        return "create" if route.label == "review" else ""
    watching = request.flag("watch") and request.method in ("GET", "HEAD") and not target.subresource
    if watching:
        return "watch"
    return (_ITEM_VERBS if target.name else _COLLECTION_VERBS)[request.method]


def _label(route: Route | None) -> str:
    """A bounded name for metrics: the first word of the route's pattern, never the path itself."""
    return "unknown" if route is None else route.pattern.strip("/").partition("/")[0]


def _trace_id(traceparent: str) -> str:
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 and parts[1].isalnum() else ""


def _refusal(request: Request | None, fault: Fault) -> Response:
    target = request.target if request is not None else RouteTarget()
    kind = target.resource.kind if target.resource else None
    status_object = status.status_dict(fault, kind=kind, name=target.name)
    if target.resource is NAMESPACES:
        status_object = _reword_for_namespace(status_object)
    response = Response(status.encode(status_object), fault.code)
    if isinstance(fault, Overloaded) and fault.retry_after_s > 0:
        response.headers.append((b"retry-after", str(max(1, round(fault.retry_after_s))).encode()))
    return response


def _reword_for_namespace(status_object: dict[str, Any]) -> dict[str, Any]:
    """The gate's message about a Tenant, reworded for a client that requested a Namespace."""
    text = (
        status_object["message"]
        .replace("tenants.holdfast.dev", "namespaces")
        .replace("Tenant.holdfast.dev", "Namespace")
    )
    details = status_object.get("details", {})
    if details.get("kind") in ("tenants", "Tenant"):
        kind = "namespaces" if details["kind"] == "tenants" else "Namespace"
        details = {key: value for key, value in details.items() if key != "group"} | {"kind": kind}
    return {**status_object, "message": text, "details": details}


async def _send_response(request: Request | None, response: Response, send: Send) -> None:
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", b"%d" % len(response.body)),
        *response.headers,
    ]
    if request is not None:
        if request.warnings:
            headers += _warnings(request)
        headers.append((b"audit-id", request.id.encode()))
        unread = request.has_unread_body  # the rest of the body stays unread, so the connection must close
        if request.exchange is not None:
            await request.exchange.respond(response.code, headers, response.body, last=unread)
            return
        if unread:
            headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": response.code, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def _send_stream(response: StreamResponse, send: Send) -> None:
    headers = [(b"content-type", response.content_type.encode()), (b"cache-control", b"no-cache"), *response.headers]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    chunks: AsyncIterator[bytes] = response.chunks
    try:
        async for chunk in chunks:
            async with asyncio.timeout(SEND_STALL_TIMEOUT_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except TimeoutError:
        metrics.SERVER_STALLED.inc()
        raise
    finally:
        closing = getattr(chunks, "aclose", None)
        if closing is not None:
            await closing()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _warnings(request: Request) -> list[tuple[bytes, bytes]]:
    made = []
    for text in list(dict.fromkeys(request.warnings))[:MAX_WARNINGS]:
        clean = "".join(c if c.isprintable() else " " for c in text)[:MAX_WARNING_CHARS]
        quoted = clean.replace("\\", "\\\\").replace('"', '\\"')
        made.append((b"warning", f'299 - "{quoted}"'.encode("ascii", "replace")))
    return made


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
