"""`POST /join/v1` and `POST /join/v1/renew`: how agents get their certificates. The rules are in
`identity/joining.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.model.errors import BadRequest
from holdfast.model.join import JoinRequest, RenewalRequest
from holdfast.server.request import Request, Response

if TYPE_CHECKING:
    from holdfast.server.app import Application

JOIN_PATH = "/join/v1"
RENEW_PATH = "/join/v1/renew"
_encoder = msgspec.json.Encoder()
T = TypeVar("T")


async def join(app: Application, request: Request) -> Response:
    """Open to everyone: the token in the body is the credential. Unauthenticated callers share the `users` priority
    level.
    """
    join_request = _decoded(await request.body(), JoinRequest)
    async with app.flow.admit(request.principal, ""):
        made = await app.join_service.join(join_request, request=f"{request.id} POST {JOIN_PATH}")
    return Response(_encoder.encode(made))


async def renew(app: Application, request: Request) -> Response:
    join_request = _decoded(await request.body(), RenewalRequest)
    made = await app.join_service.renew(request.principal, join_request, request=f"{request.id} POST {RENEW_PATH}")
    return Response(_encoder.encode(made))


def _decoded(body: bytes, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRequest(f"join: cannot decode the request ({wrong})") from None
