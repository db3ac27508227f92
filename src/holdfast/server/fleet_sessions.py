"""exec, attach, port-forward and `logs -f` in the API of the global cell: sessions in the region that runs the pod.

The region is asked which one it is, authorizes the caller again, and records the session as its own. Each connection of
a forwarded port is a session.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from holdfast.console.region_calls import RegionRequest
from holdfast.model.errors import Fault, NotFound, Unavailable
from holdfast.model.pod_session import Channel, SessionArguments
from holdfast.server import fleet_objects, pod_sessions, port_forward, status
from holdfast.server.agent_sessions import AgentLink
from holdfast.server.fleet_objects import region_of
from holdfast.server.region_sessions import region_session
from holdfast.server.request import Request, Response, StreamResponse, UpgradeResponse

if TYPE_CHECKING:
    from holdfast.server.app import Application


class SessionRefusal(msgspec.Struct, frozen=True):
    """The Status with which a region ends a session that it refuses."""

    message: str = "the region refused the session"
    reason: str = "InternalError"
    code: int = 500


async def exec_(app: Application, request: Request) -> UpgradeResponse:
    return await _open(app, request, pod_sessions.exec_arguments(request))


async def attach(app: Application, request: Request) -> UpgradeResponse:
    return await _open(app, request, pod_sessions.attach_arguments(request))


async def _open(app: Application, request: Request, arguments: SessionArguments) -> UpgradeResponse:
    region = await region_of(app, request)
    flags = [(name, "true") for name in ("stdin", "stdout", "stderr", "tty") if getattr(arguments, name)]
    query = urlencode([*(("command", word) for word in arguments.command), *flags])
    source = pod_sessions.SessionSource(_what(request, region), lambda: _session(app, request, region, query))
    return await pod_sessions.open_session(app, request, arguments, source)


async def forward(app: Application, request: Request) -> UpgradeResponse:
    region = await region_of(app, request)

    def open_port(port: int) -> AbstractAsyncContextManager[AgentLink]:
        return _session(app, request, region, urlencode({"ports": port}))

    return await port_forward.forward_ports(app, request, _what(request, region), open_port)


async def follow_log(app: Application, request: Request) -> StreamResponse | Response:
    try:
        region = await region_of(app, request)
    except NotFound:
        return await fleet_objects.log(app, request)  # it may have ended: then nothing follows
    lines = _lines(_session(app, request, region, f"{fleet_objects.log_query(request)}&follow=true"))
    first = await anext(lines, b"")  # a refusal is an error of the request
    return StreamResponse(_chunks(first, lines), content_type="text/plain")


def _what(request: Request, region: str) -> str:
    return f"pod {request.target.namespace}/{request.target.name} in region {region}"


def _session(app: Application, request: Request, region: str, query: str) -> AbstractAsyncContextManager[AgentLink]:
    wanted = RegionRequest(method="GET", path=request.path, query=query)
    return region_session(app, region, fleet_objects.asking_caller(app, request), wanted)


async def _lines(session: AbstractAsyncContextManager[AgentLink]) -> AsyncGenerator[bytes]:
    async with session as link:
        while (message := await link.receive()) is not None:
            channel, data = message
            if channel == Channel.ERROR:
                _check_outcome(data)
                return
            if data:  # an empty chunk would end the response
                yield data
    raise Unavailable("the region's connection was lost; next: run the command again")


def _check_outcome(data: bytes) -> None:
    if msgspec.json.decode(data).get("status") != "Success":
        refusal = msgspec.json.decode(data, type=SessionRefusal)
        raise status.HttpRefusal(refusal.code, refusal.reason, refusal.message)


async def _chunks(first: bytes, lines: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """The lines as they come. Closing the generator ends the session."""
    async with aclosing(lines):
        if first:
            yield first
        try:
            async for data in lines:
                yield data
        except Fault as fault:  # as in the region: the response has begun, so the reason is its last line
            yield f"error: {fault.message}\n".encode()
