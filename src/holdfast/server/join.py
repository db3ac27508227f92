"""`/join/v1`: how agents and the cells of regions get their certificates, and everyone the platform's CA.

The rules are in `identity/joining.py`, `identity/region_joining.py` and `identity/cell_revocation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.identity.cell_revocation import CellRevocation
from holdfast.model.errors import BadRequest, Forbidden
from holdfast.model.join import (
    CellRequests,
    JoinRequest,
    MaterialRequest,
    RegionJoinRequest,
    RenewalRequest,
    RevokeRequest,
)
from holdfast.server.request import Request, Response

if TYPE_CHECKING:
    from holdfast.server.app import Application

JOIN_PATH = "/join/v1"
RENEW_PATH = "/join/v1/renew"
REGION_PATH = "/join/v1/region"
REGION_RENEW_PATH = "/join/v1/region/renew"
MATERIAL_PATH = "/join/v1/server/material"
_encoder = msgspec.json.Encoder()
T = TypeVar("T")


async def join(app: Application, request: Request) -> Response:
    """Open to everyone: the token in the body is the credential. Unauthenticated callers have a priority level of
    their own.
    """
    join_request = _decoded(await request.body(), JoinRequest)
    made = await app.join_service.join(join_request, request=f"{request.id} POST {JOIN_PATH}")
    return Response(_encoder.encode(made))


async def renew(app: Application, request: Request) -> Response:
    join_request = _decoded(await request.body(), RenewalRequest)
    made = await app.join_service.renew(request.principal, join_request, request=f"{request.id} POST {RENEW_PATH}")
    return Response(_encoder.encode(made))


async def trust_bundle(app: Application, request: Request) -> Response:
    """The CA certificates that this cell trusts. They are public; a joining machine compares them with its token."""
    return Response(_encoder.encode(app.join_service.trust_bundle()))


async def join_region(app: Application, request: Request) -> Response:
    """Open to everyone: the token in the body is the credential. Answers with the certificates of a region's cell."""
    asked = _decoded(await request.body(), RegionJoinRequest)
    made = await app.join_service.regions.join(asked, request=f"{request.id} POST {REGION_PATH}")
    return Response(_encoder.encode(made))


async def renew_region(app: Application, request: Request) -> Response:
    """New certificates for the region that shows its link certificate."""
    asked = _decoded(await request.body(), CellRequests)
    made = await app.join_service.regions.renew(
        request.principal, asked, request=f"{request.id} POST {REGION_RENEW_PATH}"
    )
    return Response(_encoder.encode(made))


async def share_material(app: Application, request: Request) -> Response:
    """The keys that the servers of a cell share, sealed for the server that asks."""
    asked = _decoded(await request.body(), MaterialRequest)
    made = app.join_service.share_material(request.principal, asked, request=f"{request.id} POST {MATERIAL_PATH}")
    return Response(_encoder.encode(made))


async def revoke_region(app: Application, request: Request) -> Response:
    return await _revoke(app, request, "regions")


async def revoke_server(app: Application, request: Request) -> Response:
    return await _revoke(app, request, "servers")


async def _revoke(app: Application, request: Request, plural: str) -> Response:
    """An operator's call. Whoever may not change servers gets no answer about them."""
    name, who = request.target.parameters["name"], request.principal
    where = f"{request.id} POST {request.path[:200]}"
    for resource in dict.fromkeys((plural, "servers")):
        refused = app.access_refusal(who, "update", resource, "", "", name)
        if refused is not None:
            app.gate.audit.record_refusal(who, "revoke", resource, "Forbidden", message=refused.message, request=where)
            raise Forbidden(refused.message, facts=refused.facts)
    if app.cell != "global":
        raise BadRequest(f"revocation: only the global cell revokes (found cell {app.cell})")
    asked = _decoded(await request.body(), RevokeRequest)
    service = CellRevocation(app.gate)
    revoke = service.revoke_region if plural == "regions" else service.revoke_server
    return Response(_encoder.encode(await revoke(who, name, asked, request=where)))


def _decoded(body: bytes, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRequest(f"join: cannot decode the request ({wrong})") from None
