"""Calls of Holdfast's own components: placement, atomic commits and event notices. Responses are the model's own
types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client import wire
from holdfast.gate.authorize import call_refusal
from holdfast.gate.scope import CLUSTER_NAMESPACE, event_refusal
from holdfast.model import limits
from holdfast.model.errors import BadRequest, Forbidden
from holdfast.model.kinds import BY_NAME
from holdfast.model.placement_api import BindRequest, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.model.principal import CONTROLLERS, OPERATORS
from holdfast.model.writes import Notice
from holdfast.server.flow_control import priority_level_of
from holdfast.server.placement_forwarding import FORWARDED_FOR_HEADER, forwarded_principal
from holdfast.server.request import Request, Response
from holdfast.server.request_bodies import check_structure

if TYPE_CHECKING:
    from holdfast.server.app import Application

_encoder = msgspec.json.Encoder()
PLACEMENT_CALLS: dict[str, msgspec.json.Decoder[Any]] = {
    "reserve": msgspec.json.Decoder(ReserveRequest),
    "bind": msgspec.json.Decoder(BindRequest),
    "release": msgspec.json.Decoder(ReleaseRequest),
    "renew": msgspec.json.Decoder(RenewRequest),
}


def check_placement(app: Application, request: Request) -> None:
    """Before the body is read: the caller may make this call at all. Also resolves the caller of a forwarded call, so
    that a forwarded renewal has the priority level of its agent.
    """
    forwarded = request.headers.get(FORWARDED_FOR_HEADER, "")
    if forwarded:
        request.principal = forwarded_principal(request.principal, forwarded, app.cell)
    require_allowed(app, request, _call_name(request))


def check_commit(app: Application, request: Request) -> None:
    require_allowed(app, request, "commit")


def check_notify(app: Application, request: Request) -> None:
    require_allowed(app, request, "notify")


def _call_name(request: Request) -> str:
    return request.path.strip("/").rpartition("/")[2]


async def placement(app: Application, request: Request) -> Response:
    """`POST /placement/v1/CALL`"""
    call = _call_name(request)
    body = await request.body()
    decoded: ReserveRequest | BindRequest | ReleaseRequest | RenewRequest
    try:
        decoded = PLACEMENT_CALLS[call].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRequest(f"{call}: cannot decode the request ({wrong})") from wrong
    nodes = [item.node for item in decoded.items] if isinstance(decoded, RenewRequest) else []
    require_allowed(app, request, call, nodes)
    if app.placement is None:
        raise BadRequest(f"{call}: the {app.cell} cell does not place replicas; next: call the region's cell")
    who = request.principal
    match decoded:
        case ReserveRequest():
            response = await app.placement.reserve(who, decoded)
        case BindRequest():
            response = await app.placement.bind(who, decoded)
        case ReleaseRequest():
            token = wire.decode_token(request.headers.get(wire.TOKEN_HEADER, ""))
            response = await app.placement.release(who, decoded, token=token)
        case RenewRequest():
            response = await app.placement.renew(who, decoded)
    return Response(_encoder.encode(response))


async def commit(app: Application, request: Request) -> Response:
    """`POST /commit/v1`: all writes or none. The gate checks each of them. A tenant's commit has the bounds of any
    other body; components and operators write thousands of objects at once.
    """
    body = await request.body()
    by_tenant = priority_level_of(request.principal) == "users"
    if by_tenant:
        check_structure(body)
    decoded = wire.decode_commit(body)
    if by_tenant and not 0 < len(decoded.writes) <= limits.BATCH_WRITES_MAX:
        raise BadRequest(f"commit: expected 1 to {limits.BATCH_WRITES_MAX} writes, found {len(decoded.writes)}")
    what = f"{request.id} POST {wire.COMMIT_PATH}"
    done = await app.gate.commit(
        request.principal,
        decoded.writes,
        token=decoded.token,
        dry_run=decoded.dry_run,
        request=what,
        warnings=request.warnings,
    )
    request.warnings.extend(decoded.unknown)
    return Response(wire.encode_committed(done, brief=decoded.brief))


async def notify(app: Application, request: Request) -> Response:
    """`POST /notify/v1`: Events about existing objects within the caller's scope, best effort.

    The response is the same for missing objects and for those of others, so it reveals nothing.
    """
    who = request.principal
    decoded = wire.decode_notify(await request.body())
    notices = []
    for form in decoded.notices:
        kind = BY_NAME.get(form.about.kind)
        about = app.objects.get(kind, form.about.namespace, form.about.name) if kind is not None else None
        if about is None or (form.about.uid and form.about.uid != about.uid):
            continue
        where = about.metadata.namespace or CLUSTER_NAMESPACE
        refused = event_refusal(who, app.cell, where, about)
        if refused is not None:
            app.gate.audit.record_refusal(who, "notify", "events", refused.reason, message=refused.message)
            continue
        app.gate.audit.record_use(
            who, "notify", f"events/{where}", message=f"about {form.about.kind} {about.key}", request=request.id
        )
        notices.append(Notice(about=about, reason=form.reason, message=form.message, warning=form.warning))
    if notices:
        # A caller with a credential of its own cannot speak for another component.
        component = decoded.component if CONTROLLERS in who.groups or OPERATORS in who.groups else who.name
        await app.events.record(notices, component=component or who.name)
    return Response(_encoder.encode({"received": len(decoded.notices)}))


def require_allowed(app: Application, request: Request, verb: str, nodes: list[str] | None = None) -> None:
    refused = call_refusal(request.principal, verb, nodes=nodes or [], cell=app.cell)
    if refused is not None:
        app.gate.audit.record_refusal(request.principal, verb, "placement", refused.reason, message=refused.message)
        raise Forbidden(refused.message, facts=refused.facts)
