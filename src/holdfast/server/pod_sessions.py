"""`kubectl exec` and `kubectl attach`: `/api/v1/namespaces/{namespace}/pods/{name}/exec` and `…/attach`.

Clients speak WebSocket (`v5.channel.k8s.io`, `v4.channel.k8s.io`: kubectl from 1.31, the Python client, the console) or
SPDY/3.1 (older kubectl). Both need the right to create the subresource, whatever the HTTP method: a viewer may read
everything and must not run commands. Each session is audited before it opens and when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import msgspec

from holdfast.gate.authorize import access_refusal
from holdfast.model.binding import Binding
from holdfast.model.errors import BadRequest, Fault
from holdfast.model.pod_session import (
    SESSION_COMMAND_BYTES_MAX,
    Channel,
    SessionArguments,
    SessionKind,
    outcome_of_failure,
)
from holdfast.model.principal import Principal
from holdfast.server import status
from holdfast.server.agent_sessions import AgentLink, agent_session
from holdfast.server.read import require_object
from holdfast.server.request import Request, UpgradedStream, UpgradeResponse
from holdfast.server.session_relay import ClientLink, Relay, SessionMeter, audit_end, audit_open
from holdfast.server.spdy_links import SpdyChannels
from holdfast.server.websocket import WebSocket, accept_headers, choose_subprotocol, is_spdy, is_websocket

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Message of a client. kubectl sends 32 KiB; the Python client sends what its caller passes.
CLIENT_MESSAGE_BYTES_MAX = 1024 * 1024
WEBSOCKET_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
SPDY_PROTOCOLS = ("v4.channel.k8s.io",)
STREAM_VERSION_HEADER = "x-stream-protocol-version"


class WebSocketChannels(ClientLink):
    """A client that speaks channels over WebSocket."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> tuple[int, bytes] | None:
        message = await self._websocket.receive()
        while message is not None and not message:
            message = await self._websocket.receive()
        return None if message is None else (message[0], message[1:])

    async def send(self, channel: int, data: bytes) -> None:
        await self._websocket.send(bytes((channel,)) + data)

    async def ping(self) -> None:
        await self._websocket.ping()

    async def finish(self, outcome: bytes) -> None:
        await self._websocket.send(bytes((Channel.ERROR,)) + outcome)
        await self._websocket.close()


class SessionSource(msgspec.Struct, frozen=True):
    """Where a session comes from: the words of its audit records, and what opens the other side."""

    what: str
    open: Callable[[], AbstractAsyncContextManager[AgentLink]]


async def exec_(app: Application, request: Request) -> UpgradeResponse:
    return await _open_here(app, request, exec_arguments(request))


async def attach(app: Application, request: Request) -> UpgradeResponse:
    return await _open_here(app, request, attach_arguments(request))


def exec_arguments(request: Request) -> SessionArguments:
    command = request.all_values("command")
    if not command or not command[0]:
        raise BadRequest("command: missing; next: kubectl exec POD -- COMMAND")
    if sum(len(word.encode()) + 1 for word in command) > SESSION_COMMAND_BYTES_MAX:
        raise BadRequest(f"command: too long (limit {SESSION_COMMAND_BYTES_MAX} bytes)")
    if any("\0" in word for word in command):
        raise BadRequest("command: contains a NUL character")
    return _arguments(request, SessionKind.EXEC, command)


def attach_arguments(request: Request) -> SessionArguments:
    if request.flag("stdin"):
        raise BadRequest(
            "attach: the standard input of a task is not connected; next: attach without -i, or kubectl exec -i"
        )
    return _arguments(request, SessionKind.ATTACH, ())


def _arguments(request: Request, kind: SessionKind, command: tuple[str, ...]) -> SessionArguments:
    tty = request.flag("tty")
    arguments = SessionArguments(
        kind=kind,
        command=command,
        stdin=request.flag("stdin"),
        stdout=request.flag("stdout"),
        stderr=request.flag("stderr") and not tty,
        tty=tty,
    )
    if not (arguments.stdin or arguments.stdout or arguments.stderr):
        raise BadRequest("session: at least one of stdin, stdout and stderr must be requested")
    return arguments


def require_running_pod(app: Application, request: Request) -> Binding:
    binding = require_object(app, request)
    assert isinstance(binding, Binding)  # pods are stored as Bindings
    if binding.status.acknowledged_at:
        raise BadRequest(f"pod {binding.metadata.name}: its task has ended; next: kubectl logs {binding.metadata.name}")
    return binding


def still_allowed(app: Application, request: Request) -> Callable[[Principal], bool]:
    """Whether the role still permits the session. An impersonated user keeps the groups that the request named."""
    target, asked_as = request.target, request.principal

    def check(who: Principal) -> bool:
        caller = who if who.name == asked_as.name else asked_as
        access = (caller, "create", "pods", target.subresource, target.namespace, target.name)
        return access_refusal(*access, cell=app.cell) is None

    return check


async def _open_here(app: Application, request: Request, arguments: SessionArguments) -> UpgradeResponse:
    return await open_session(app, request, arguments, agent_source(app, require_running_pod(app, request), arguments))


def agent_source(app: Application, binding: Binding, arguments: SessionArguments) -> SessionSource:
    what = f"replica {binding.metadata.namespace}/{binding.spec.replica}"
    return SessionSource(what, lambda: agent_session(app, binding, arguments))


async def open_session(
    app: Application, request: Request, arguments: SessionArguments, source: SessionSource
) -> UpgradeResponse:
    """Negotiates the protocol with the client, and relays between the client and the source."""
    link: Callable[[UpgradedStream], Awaitable[ClientLink]]
    asked = request.client_link
    if asked is not None:
        protocol, headers = "", []

        async def link(stream: UpgradedStream) -> ClientLink:
            return asked

    elif is_websocket(request):
        subprotocol = choose_subprotocol(request, "sec-websocket-protocol", WEBSOCKET_PROTOCOLS)
        protocol, headers = "websocket", accept_headers(request, subprotocol)
        link = _websocket_link
    elif is_spdy(request):
        version = choose_subprotocol(request, STREAM_VERSION_HEADER, SPDY_PROTOCOLS)
        protocol, headers = "SPDY/3.1", [(STREAM_VERSION_HEADER.encode(), version.encode())]

        async def link(stream: UpgradedStream) -> ClientLink:
            return await SpdyChannels.accept(stream, arguments)

    else:
        raise status.HttpRefusal(400, "BadRequest", "Upgrade request required")
    what = source.what
    if arguments.command:
        what = f"{what}: {' '.join(arguments.command)}"
    await audit_open(app, request, what)

    async def serve(stream: UpgradedStream) -> None:
        meter = SessionMeter(app.ports.clock.monotonic())
        why = "the client disconnected"
        try:
            client = await link(stream)
            why = await _relay(app, source, client, meter)
        except (ConnectionError, TimeoutError):
            return
        finally:
            audit_end(app, request, what, meter, why)

    return UpgradeResponse(protocol, serve, headers=headers, still_allowed=still_allowed(app, request))


async def _websocket_link(stream: UpgradedStream) -> ClientLink:
    return WebSocketChannels(WebSocket(stream, CLIENT_MESSAGE_BYTES_MAX))


async def _relay(app: Application, source: SessionSource, client: ClientLink, meter: SessionMeter) -> str:
    try:
        async with source.open() as agent:
            return await Relay(app, client, agent, meter).run()
    except Fault as fault:
        await client.finish(outcome_of_failure(fault.message, fault.reason, fault.code))
        return fault.message
    except asyncio.CancelledError:
        await client.finish(outcome_of_failure("the session was ended before it opened; next: run it again"))
        raise
