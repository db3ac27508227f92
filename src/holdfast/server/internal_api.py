"""Calls of Holdfast's own components: placement, atomic commits and event notices. Responses are the model's own
types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client import wire
from holdfast.gate.authorize import call_refusal
from holdfast.model.errors import BadRequest, Forbidden
from holdfast.model.kinds import BY_NAME
from holdfast.model.placement_api import BindRequest, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.model.writes import Notice
from holdfast.server.placement_forwarding import FORWARDED_FOR_HEADER, forwarded_principal
from holdfast.server.request import Request, Response

if TYPE_CHECKING:
    from holdfast.server.app import Application

_encoder = msgspec.json.Encoder()
PLACEMENT_CALLS: dict[str, msgspec.json.Decoder[Any]] = {
    "reserve": msgspec.json.Decoder(ReserveRequest),
    "bind": msgspec.json.Decoder(BindRequest),
    "release": msgspec.json.Decoder(ReleaseRequest),
    "renew": msgspec.json.Decoder(RenewRequest),
}


async def placement(app: Application, request: Request) -> Response:
    """`POST /placement/v1/CALL`"""
    call = request.path.strip("/").rpartition("/")[2]
    body = await request.body()
    decoded: ReserveRequest | BindRequest | ReleaseRequest | RenewRequest
    try:
        decoded = PLACEMENT_CALLS[call].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRequest(f"{call}: cannot decode the request ({wrong})") from wrong
    nodes = [item.node for item in decoded.items] if isinstance(decoded, RenewRequest) else []
    forwarded = request.headers.get(FORWARDED_FOR_HEADER, "")
    if forwarded:
        request.principal = forwarded_principal(request.principal, forwarded, app.cell)
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
    """`POST /commit/v1`: all writes or none. The gate checks each of them."""
    require_allowed(app, request, "commit")
    decoded = wire.decode_commit(await request.body())
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
    """`POST /notify/v1`: Events about existing objects. Notices about missing objects are dropped: they are best
    effort.
    """
    require_allowed(app, request, "commit")
    decoded = wire.decode_notify(await request.body())
    notices = []
    for form in decoded.notices:
        kind = BY_NAME.get(form.about.kind)
        about = app.objects.get(kind, form.about.namespace, form.about.name) if kind is not None else None
        if about is not None and (not form.about.uid or form.about.uid == about.uid):
            notices.append(Notice(about=about, reason=form.reason, message=form.message, warning=form.warning))
    if notices:
        await app.events.record(notices, component=decoded.component or request.principal.name)
    return Response(_encoder.encode({"recorded": len(notices)}))


def require_allowed(app: Application, request: Request, verb: str, nodes: list[str] | None = None) -> None:
    refused = call_refusal(request.principal, verb, nodes=nodes or [], cell=app.cell)
    if refused is not None:
        app.gate.audit.record_refusal(request.principal, verb, "placement", refused.reason, message=refused.message)
        raise Forbidden(refused.message, facts=refused.facts)
