"""The ASGI application of one cell: routes, authenticates, authorizes, applies flow control, and responds.

Every response from 400 on is a Status object. An unexpected exception becomes a 500 with a logged traceback; no client
input may cause one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.foundation.region_contact import RegionContact
from holdfast.foundation.tracing import CURRENT_REQUEST, RequestFacts
from holdfast.gate.audit_chain import AuditCheckpoint
from holdfast.gate.audit_rows import RequestRecords
from holdfast.gate.authorize import access_refusal, path_refusal
from holdfast.gate.events import EventLog
from holdfast.gate.gate import Gate
from holdfast.gate.granted_access import GrantedAccess, acting_principal
from holdfast.gate.local_client import PlacementService
from holdfast.identity.authenticate import Authenticator, impersonated_principal
from holdfast.identity.joining import JoinService
from holdfast.model.errors import Fault, Forbidden, Overloaded, Refused, Unauthorized
from holdfast.model.indexes import indexes_of
from holdfast.model.principal import REGIONS, Principal
from holdfast.model.trace_ids import parse_traceparent
from holdfast.server import status
from holdfast.server.agent_rpc_hub import AgentRpcHub
from holdfast.server.asserted_calls import check_permitted
from holdfast.server.console import ConsoleService, check_request, session_principal
from holdfast.server.endpoints import stored_regions
from holdfast.server.fleet_objects import check_served_here
from holdfast.server.flow_control import FlowControl, priority_level_of
from holdfast.server.health import Health
from holdfast.server.malformed_paths import MALFORMED_PATH, MalformedPath, check_path
from holdfast.server.open_streams import OpenStreams
from holdfast.server.openapi import OpenApiDocuments
from holdfast.server.pod_metrics import UsageSamples
from holdfast.server.request import (
    AnyResponse,
    ClientDisconnected,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    StreamResponse,
    UpgradeResponse,
)
from holdfast.server.request_bodies import value_cost
from holdfast.server.resources import NAMESPACES, SESSIONS, opening_resources
from holdfast.server.response_sending import answer_lifespan, send_response
from holdfast.server.router import Route, Router, RouteTarget, route_target, with_opened_view
from holdfast.server.routes import ROUTES
from holdfast.server.selectors import parse
from holdfast.store.objects import Objects

# Requests that take longer are logged, whatever their result.
SLOW_REQUEST_S = 1.0

_log = structlog.get_logger()
_ITEM_VERBS = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_COLLECTION_VERBS = {"GET": "list", "HEAD": "list", "POST": "create", "DELETE": "deletecollection"}
_IMPERSONATION_HEADERS = frozenset({"impersonate-user", "impersonate-group"})


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
        joining: JoinService | None = None,
        console: ConsoleService | None = None,
    ) -> None:
        self.cell = cell
        self.objects = objects
        self.gate = gate
        self.authenticator = authenticator
        self.ports = ports
        self.placement = placement
        self.events = events if events is not None else EventLog(objects, ports)
        self.join_service = joining or JoinService(gate, None)
        self.console = console
        self.draining = False
        self.traces_requests = False
        self.openapi_documents = OpenApiDocuments(cell)
        self.access = GrantedAccess(objects, ports.clock)
        self.audit_checkpoints: Callable[[], list[AuditCheckpoint]] = list
        self.health = Health(self)
        self.flow = FlowControl()
        self.agent_rpc = AgentRpcHub()
        self.region_contact = RegionContact(lambda: stored_regions(objects), ports.clock)
        self.usage = UsageSamples()
        self.eviction_lock = asyncio.Lock()
        self._opening = opening_resources(gate.sealer)
        self._router = Router(ROUTES)
        self.streams = OpenStreams(self)
        self._timers: dict[tuple[str, str], Any] = {}
        self._counters: dict[tuple[str, str, int], Any] = {}
        self._log = structlog.get_logger().bind()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await answer_lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        began = self.ports.clock.monotonic()
        request, response = await self._respond(scope, receive)
        if response is None:
            return
        code = response.code if isinstance(response, Response) else 200
        try:
            if isinstance(response, UpgradeResponse):
                assert request is not None
                code = 101
                await self.streams.upgrade(request, response)
            elif isinstance(response, StreamResponse):
                assert request is not None
                await self.streams.send(request, response, send)
            else:
                await send_response(request, response, send)
        finally:
            if request is not None:
                self._record(request, code, self.ports.clock.monotonic() - began)

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[Request | None, AnyResponse | None]:
        """The response, after the audit records of the request are durable. None if the client has left."""
        with RequestRecords() as records:
            request, response = await self._compute_response(scope, receive)
            if request is None or response is None:
                return request, response
            if isinstance(response, Response) and response.code in (401, 403) and not records.has_any:
                self._audit_denied(request, response.code)
            if records.has_any:
                request.discard_body()
                try:
                    await records.durable()
                except Fault as fault:
                    return request, _refusal(request, fault)
            return request, response

    async def _compute_response(self, scope: Scope, receive: Receive) -> tuple[Request | None, AnyResponse | None]:
        request: Request | None = None
        try:
            request = Request(scope, receive, request_id=self.ports.ids.uid())
            if self.traces_requests:
                caller = parse_traceparent(request.headers.get("traceparent", ""))
                CURRENT_REQUEST.set(RequestFacts(request.id, self.ports.clock.now(), caller))
            return request, await self._handle(request)
        except ClientDisconnected:
            return request, None
        except Fault as fault:
            return request, _refusal(request, fault)
        except asyncio.CancelledError:
            raise
        except Exception:
            metrics.SERVER_FAILURES.inc()
            await _log.aexception("request_failed", path=scope["path"][:200], method=scope["method"])
            return request, _refusal(
                request, Fault("internal server error; next: see request_failed in the server's log")
            )

    async def drain(self) -> None:
        """Ends all watches cleanly. Clients resume them at another server."""
        self.draining = True
        self.streams.end_all()

    # Request -------------------------------------------------------------------------------------------------------

    async def _handle(self, request: Request) -> AnyResponse:
        try:
            route = self._match_route(request)
        except MalformedPath as malformed:
            await self._authenticate(request, "authenticated")  # the audit log says who sent it
            self._audit_malformed_path(request, malformed)
            raise
        await self._authenticate(request, route.access)
        request.caller = request.principal
        if route.access != "open":  # health checks work without the store
            request.principal = self.access.expand(request.caller)
        self._authorize(request, route)
        if REGIONS in request.principal.groups:
            self.region_contact.check()
        if not route.max_body_bytes and route.access == "open":
            return await _call(route, self, request)  # health checks work on an overloaded server
        flow = (request.principal, request.target.namespace)
        with self.flow.body_account(*flow, address=request.address) as account:
            values = 0
            if route.max_body_bytes:
                request.count_body = account.count
                # Before flow control, because a slow sender must not occupy a seat.
                values = value_cost(request.content_type, await request.body())
            async with self.flow.admit(*flow, values=values, address=request.address):
                return await _call(route, self, request)

    def _match_route(self, request: Request) -> Route:
        """The route of this path and method. A path without any route is 404, a path with other methods 405.

        Raises MalformedPath for a path that only an attempt to get around an authorization has. Open routes serve
        public files and check their names themselves.
        """
        found = checked = False
        parameters_before: dict[str, str] | None = None
        target: RouteTarget | None = None
        if request.console_only and request.path.strip("/").partition("/")[0] not in ("", "console", "docs"):
            raise status.HttpRefusal(400, "BadRequest", "the API of this port is served over https")
        request.use_resource_path()
        for route, parameters in self._router.find(request.path):
            if request.through_console and route.label != "resource":
                continue
            if parameters is not parameters_before:  # else the routes have one pattern, and so one target
                parameters_before, target = parameters, route_target(route, parameters)
            if target is None:
                continue
            found = True
            if route.access != "open" and not checked:
                check_path(request.path, request.raw_path)
                checked = True
            if request.method in route.methods:
                target.route = route
                target.verb = _verb(request, route, target)
                request.target = with_opened_view(target, self._opening)
                check_served_here(target, self.cell)
                if target.resource is not None and not target.subresource and target.verb not in target.resource.verbs:
                    raise status.method_not_allowed(request.method, target.resource.advice.get(target.verb, ""))
                return route
        if found:
            raise status.method_not_allowed(request.method)
        check_path(request.path, request.raw_path)
        if self._router.differs_in_case(request.path):
            raise MalformedPath(request.path, request.raw_path, "differs from a path of the API in case only")
        raise status.HttpRefusal(404, "NotFound", "the server could not find the requested resource")

    async def _authenticate(self, request: Request, access: str) -> None:
        bearer = request.headers.get("authorization", "")
        if bearer and not request.peer_certificate:
            await self.authenticator.prepare(bearer)
        if request.asserted_principal is not None:
            request.principal, request.session_is_live = request.asserted_principal, lambda: True
            check_permitted(request)
            return
        if request.peer_certificate:
            try:
                request.principal = self.authenticator.from_certificate(request.peer_certificate)
            except Unauthorized as refusal:
                self.audit_rejected_certificate(refusal, request)
                raise Unauthorized(refusal.message or "Unauthorized") from None
        elif bearer:
            try:
                request.principal = self.authenticator.from_bearer(bearer)
            except Unauthorized as refusal:
                self._audit_unauthenticated(request, str(refusal.facts.get("why", "TokenUnknown")))
                raise Unauthorized("Unauthorized") from None
        elif access == "open":
            return
        elif access == "console" or request.through_console:
            try:
                request.principal = session_principal(self, request)
            except Unauthorized:
                self._audit_unauthenticated(request, "NoSession")
                raise
            check_request(self, request)
            return
        else:
            self._audit_unauthenticated(request, "NoCredential")
            raise Unauthorized("Unauthorized")
        if request.through_console:
            check_request(self, request)
        user = request.headers.get("impersonate-user", "")
        if user or any(name.startswith("impersonate-") for name in request.headers):
            self._impersonate(request, user)

    def _audit_unauthenticated(self, request: Request, why: str) -> None:
        """A request without a known credential. Summed per address, so that a flood costs one record a second."""
        who = f"system:anonymous at {request.address or 'an unknown address'}"
        what = f"{request.id} {request.method} {request.path[:200]}"
        self.gate.audit.record_refusal(who, "authenticate", "credentials", why, request=what)

    def _audit_malformed_path(self, request: Request, fault: MalformedPath) -> None:
        """One row per caller and method, whatever the paths: the record has the first path of those that it counts."""
        self.gate.audit.record_refusal(
            request.principal, request.method.lower(), "paths", MALFORMED_PATH, message=fault.shown, request=request.id
        )

    def _audit_denied(self, request: Request, code: int) -> None:
        """Records a 401 or 403 that no handler has recorded."""
        what = request.target.resource.kind.plural if request.target.resource else request.path[:100]
        verb = request.target.verb or request.method.lower()
        if request.principal.groups:
            reason = "Forbidden" if code == 403 else "Unauthorized"
            self.gate.audit.record_refusal(request.principal, verb, what, reason, request=request.id)
        else:
            self._audit_unauthenticated(request, "Unauthorized" if code == 401 else "Forbidden")

    def audit_rejected_certificate(self, refusal: Unauthorized, request: Request) -> None:
        """A certificate that TLS accepted and the cell rejects: revoked, expired, or outside its authority."""
        who = refusal.facts.get("principal")
        if who is not None:
            self.gate.audit.record_refusal(
                who, "authenticate", "certificates", str(refusal.facts["why"]), request=request.id
            )

    def _impersonate(self, request: Request, user: str) -> None:
        groups = tuple(request.all_headers("impersonate-group"))
        others = [n for n in request.headers if n.startswith("impersonate-") and n not in _IMPERSONATION_HEADERS]
        request.principal = self.access.expand(request.principal)
        for resource, name in (
            ("users", user),
            *(("groups", group) for group in groups),
            *(("uids", n) for n in others),
        ):
            refused = self.access_refusal(request.principal, "impersonate", resource, name=name)
            if refused is not None:
                raise self.forbidden(request, refused)
        if not user or others:
            wrong = f"{others[0]} is not supported" if others else "the header Impersonate-User is missing"
            raise status.HttpRefusal(400, "BadRequest", f"impersonation: {wrong}")
        request.principal = impersonated_principal(request.principal, user, groups)

    def _authorize(self, request: Request, route: Route) -> None:
        who, target = request.principal, request.target
        refused: Refused | None = None
        if target.resource is not None:
            refused = self.resource_access_refusal(request)
        elif route.label == "review":
            refused = self.access_refusal(who, "create", route.pattern.rpartition("/")[2])
        elif route.access == "endpoints":
            refused = self.access_refusal(who, "list", "endpoints", namespace=target.parameters["tenant"])
        elif route.access in ("metrics", "audit"):
            refused = path_refusal(who, request.path, "get", granted=self.access.rows(who))
        if refused is not None:
            raise self.forbidden(request, refused)
        if target.resource is not None and self.access.rows(who).rows:
            refused = access_refusal(*_attributes(request), cell=self.cell)
            if refused is not None:  # a bound role allows it: the gate checks with the rights of this one request
                request.principal = acting_principal(who, target.resource.stored, target.verb, target.namespace)
        if route.check is not None:
            route.check(self, request)

    def resource_access_refusal(self, request: Request) -> Refused | None:
        target = request.target
        assert target.resource is not None
        kind = target.resource.kind
        fields: dict[str, str] = {}
        if target.verb in ("list", "watch", "deletecollection"):
            wanted = parse(kind, "", request.query.get("fieldSelector", ""))
            fields = {term.label: term.value for term in wanted.fields if term.equal}
        access = _attributes(request)
        refused = self.access_refusal(*access, fields=fields)
        if refused is not None and target.verb == "get":
            # Some principals may read an object because of its fields, such as the Bindings of their own node.
            item = self.objects.get(target.resource.stored, target.namespace, target.name)
            if item is not None:
                known = indexes_of(target.resource.stored.type)
                own = {name: next(iter(index(item)), "") for name, index in known.items()}
                refused = self.access_refusal(*access, fields=own)
        return refused

    def access_refusal(  # noqa: PLR0917 - the parts of a request, in the order clients name them
        self,
        who: Principal,
        verb: str,
        resource: str,
        subresource: str = "",
        namespace: str = "",
        name: str = "",
        *,
        fields: Mapping[str, str] | None = None,
    ) -> Refused | None:
        """Why the principal may not do this in this cell; None if its groups or a bound role allow it."""
        access = (who, verb, resource, subresource, namespace, name)
        return access_refusal(*access, fields=fields, cell=self.cell, granted=self.access.rows(who))

    def require_access(self, request: Request, verb: str) -> None:
        """Raises Forbidden if the caller may not use this verb on the request's target."""
        who, _, *rest = _attributes(request)
        if (refused := self.access_refusal(who, verb, *rest)) is not None:
            raise self.forbidden(request, refused)

    def forbidden(self, request: Request, refused: Refused) -> Forbidden:
        what = request.target.resource.kind.plural if request.target.resource else request.path[:100]
        verb = request.target.verb or request.method.lower()
        self.gate.audit.record_refusal(request.principal, verb, what, refused.reason, message=refused.message)
        return Forbidden(refused.message, facts=refused.facts)

    # Responses -----------------------------------------------------------------------------------------------------

    def _record(self, request: Request, code: int, seconds: float) -> None:
        target = request.target
        verb = target.verb or request.method.lower()
        resource = target.resource.kind.plural if target.resource else _label(target.route)
        if target.subresource:
            resource = f"{resource}/{target.subresource}"
        if code == 101:
            verb = "connect"  # a session lasts as long as its user wants: no duration is recorded
        counter = self._counters.get((verb, resource, code))
        if counter is None:
            counter = self._counters[(verb, resource, code)] = metrics.SERVER_REQUESTS.labels(verb, resource, str(code))
        counter.inc()
        if verb not in ("watch", "connect"):
            timer = self._timers.get((verb, resource))
            if timer is None:
                timer = self._timers[(verb, resource)] = metrics.SERVER_DURATION.labels(verb, resource)
            timer.observe(seconds)
        # The audit log records writes; this log is for failures and slow requests.
        is_notable = code >= 400 or (seconds > SLOW_REQUEST_S and verb not in ("watch", "connect"))
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
    if isinstance(response, StreamResponse | UpgradeResponse):
        app.flow.open_watch(request.principal)
    return response


def _attributes(request: Request) -> tuple[Principal, str, str, str, str, str]:
    target = request.target
    assert target.resource is not None
    plural = target.resource.kind.plural
    return request.principal, target.verb, plural, target.subresource, target.namespace, target.name


def _verb(request: Request, route: Route, target: RouteTarget) -> str:
    if target.resource is None:
        return "create" if route.label == "review" else ""
    if target.subresource in SESSIONS:
        return "create"  # also for GET: whoever may only read must not run commands
    watching = request.flag("watch") and request.method in ("GET", "HEAD") and not target.subresource
    if watching:
        return "watch"
    return (_ITEM_VERBS if target.name else _COLLECTION_VERBS)[request.method]


def _label(route: Route | None) -> str:
    """A bounded name for metrics: the first word of the route's pattern, never the path itself."""
    return "unknown" if route is None else route.pattern.strip("/").partition("/")[0]


def _trace_id(text: str) -> str:
    found = parse_traceparent(text) if text else None
    return found.trace_id if found is not None else ""


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
