"""`kubectl port-forward`: `/api/v1/namespaces/{namespace}/pods/{name}/portforward`.

kubectl speaks SPDY/3.1, from 1.31 on inside a WebSocket (`SPDY/3.1+portforward.k8s.io`). Each connection to the
forwarded port is a pair of streams, and a session of its own with the agent. The Python client names its ports in the
request and speaks `v4.channel.k8s.io`, with two channels per port. The agent connects only to ports of the task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.foundation.tasks import cancel_quietly
from holdfast.model.errors import BadRequest, Fault
from holdfast.model.pod_session import Channel, SessionArguments, SessionKind
from holdfast.server import pod_sessions, status
from holdfast.server.agent_sessions import AgentLink, agent_session
from holdfast.server.pod_sessions import (
    CLIENT_MESSAGE_BYTES_MAX,
    STREAM_VERSION_HEADER,
    WebSocketChannels,
    require_running_pod,
    still_allowed,
)
from holdfast.server.request import Request, UpgradedStream, UpgradeResponse
from holdfast.server.session_relay import (
    SESSION_DURATION_MAX_S,
    SESSION_IDLE_S,
    SESSION_PING_EVERY_S,
    SessionMeter,
    audit_end,
    audit_open,
)
from holdfast.server.spdy import CANCEL, RST_STREAM, SYN_STREAM, ControlFrame, DataFrame, SpdyError
from holdfast.server.spdy_links import SpdyConnection
from holdfast.server.websocket import (
    WebSocket,
    WebSocketError,
    accept_headers,
    choose_subprotocol,
    is_spdy,
    is_websocket,
)

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Connections through one forward at a time. Further ones are refused.
FORWARDED_CONNECTIONS_MAX = 64
# Time for the task to take data. After that, its connection is reset, because it delays the others of the same forward.
FORWARD_STALL_S = 30.0
# Ports that one request of the Python client names.
FORWARDED_PORTS_MAX = 16

TUNNEL, CHANNELS = "SPDY/3.1+portforward.k8s.io", "v4.channel.k8s.io"
_SPDY_PROTOCOL = "portforward.k8s.io"

OpenSession = Callable[[int], contextlib.AbstractAsyncContextManager[AgentLink]]


class WebSocketBytes(UpgradedStream):
    """The bytes inside the messages of a WebSocket."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def read(self) -> bytes:
        message = await self._websocket.receive()
        while message is not None and not message:
            message = await self._websocket.receive()
        return message or b""

    async def write(self, data: bytes) -> None:
        await self._websocket.send(data)

    def close(self) -> None:
        """The connection below is closed by its owner."""


class ForwardedConnection(msgspec.Struct, eq=False):
    """One connection: its two streams, and the agent's side once it is open."""

    port: int
    error_stream: int = 0
    data_stream: int = 0
    agent: asyncio.Future[AgentLink] | None = None
    task: asyncio.Task[None] | None = None


class SpdyForward:
    """All connections of one `kubectl port-forward`."""

    def __init__(self, connection: SpdyConnection, open_session: OpenSession, meter: SessionMeter) -> None:
        self._connection, self._open_session, self._meter = connection, open_session, meter
        self._pairs: dict[str, ForwardedConnection] = {}
        self._by_stream: dict[int, str] = {}

    async def run(self, now: Callable[[], float]) -> None:
        """Until the client disconnects. Raises SpdyError and WebSocketError."""
        try:
            async for frame in self._connection.frames():
                self._meter.active_s = now()
                if isinstance(frame, DataFrame):
                    await self._data(frame)
                elif frame.kind == SYN_STREAM:
                    await self._open(frame)
                elif frame.kind == RST_STREAM:
                    self._drop(self._by_stream.get(frame.stream, ""))
        finally:
            await cancel_quietly(*(pair.task for pair in self._pairs.values() if pair.task is not None))

    async def _open(self, frame: ControlFrame) -> None:
        request_id, kind = frame.headers.get("requestid", "")[:64], frame.headers.get("streamtype", "")
        port = frame.headers.get("port", "")
        is_new = request_id not in self._pairs
        if (
            kind not in ("error", "data")
            or not request_id
            or not port.isascii()
            or not port.isdigit()
            or len(port) > 5
            or (is_new and len(self._pairs) >= FORWARDED_CONNECTIONS_MAX)
            or frame.stream in self._by_stream
        ):
            await self._connection.write(self._connection.encoder.rst_stream(frame.stream))
            return
        pair = self._pairs.setdefault(request_id, ForwardedConnection(int(port)))
        if kind == "error":
            pair.error_stream = frame.stream
        else:
            pair.data_stream = frame.stream
        self._by_stream[frame.stream] = request_id
        await self._connection.write(self._connection.encoder.syn_reply(frame.stream))
        if pair.error_stream and pair.data_stream and pair.task is None:
            pair.agent = asyncio.get_running_loop().create_future()
            pair.task = asyncio.ensure_future(self._forward(request_id, pair))

    async def _data(self, frame: DataFrame) -> None:
        pair = self._pairs.get(self._by_stream.get(frame.stream, ""))
        if pair is None or frame.stream != pair.data_stream or pair.agent is None:
            return  # clients close their error stream, and may send to a connection that has ended
        self._meter.bytes_in += len(frame.data)
        try:
            async with asyncio.timeout(FORWARD_STALL_S):
                agent = await asyncio.shield(pair.agent)
                if frame.data:
                    await agent.send(Channel.STDIN, frame.data)
                if frame.fin:
                    await agent.close_channel(Channel.STDIN)
        except (TimeoutError, ConnectionError, Fault):
            self._drop(self._by_stream.get(frame.stream, ""))
            await self._connection.write(self._connection.encoder.rst_stream(frame.stream, CANCEL))

    def _drop(self, request_id: str) -> None:
        pair = self._pairs.pop(request_id, None)
        if pair is not None:
            self._by_stream.pop(pair.error_stream, None)
            self._by_stream.pop(pair.data_stream, None)
            if pair.task is not None:
                pair.task.cancel()

    async def _forward(self, request_id: str, pair: ForwardedConnection) -> None:
        """From the task to the client, until both are done."""
        assert pair.agent is not None
        error = ""
        try:
            async with self._open_session(pair.port) as agent:
                pair.agent.set_result(agent)
                error = await self._to_client(pair, agent)
        except Fault as fault:
            error = fault.message
        except ConnectionError:
            return
        finally:
            if not pair.agent.done():
                pair.agent.set_exception(ConnectionResetError("the connection was not opened"))
                pair.agent.exception()  # nobody may be waiting for it
        with contextlib.suppress(ConnectionError):
            await self._connection.send_data(pair.data_stream, b"", fin=True)
            await self._connection.send_data(pair.error_stream, error.encode(), fin=True)
        self._pairs.pop(request_id, None)
        self._by_stream.pop(pair.error_stream, None)
        self._by_stream.pop(pair.data_stream, None)

    async def _to_client(self, pair: ForwardedConnection, agent: AgentLink) -> str:
        while (message := await agent.receive()) is not None:
            channel, data = message
            if channel == Channel.ERROR:
                return failure_text(data)
            if channel == Channel.STDOUT:
                self._meter.bytes_out += len(data)
                await self._connection.send_data(pair.data_stream, data)
        return "the agent's connection was lost; next: connect again"


def failure_text(outcome: bytes) -> str:
    """The message of a failed session; empty after a success."""
    try:
        status_object = msgspec.json.decode(outcome)
        return "" if status_object.get("status") == "Success" else str(status_object.get("message", "failed"))
    except (msgspec.MsgspecError, AttributeError):
        return "the agent's report cannot be read"


class ChannelForward:
    """The Python client's form: channel 2i carries the data of port i, channel 2i+1 its error."""

    def __init__(
        self, link: WebSocketChannels, ports: tuple[int, ...], open_session: OpenSession, meter: SessionMeter
    ) -> None:
        self._link, self._ports, self._open_session, self._meter = link, ports, open_session, meter
        self._agents: dict[int, AgentLink] = {}

    async def run(self, now: Callable[[], float]) -> None:
        """Until the client disconnects, or every port has ended: this form has no other way to say so."""
        async with contextlib.AsyncExitStack() as stack:
            for index, port in enumerate(self._ports):
                head = port.to_bytes(2, "little")
                await self._link.send(2 * index, head)
                await self._link.send(2 * index + 1, head)
                try:
                    self._agents[index] = await stack.enter_async_context(self._open_session(port))
                except Fault as fault:
                    await self._link.send(2 * index + 1, fault.message.encode())
            receiving = asyncio.ensure_future(self._to_agents(now))
            sending = asyncio.ensure_future(self._to_clients())
            try:
                await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    receiving.result()
            finally:
                await cancel_quietly(receiving, sending)

    async def _to_clients(self) -> None:
        await asyncio.gather(*(self._to_client(index) for index in self._agents))

    async def _to_agents(self, now: Callable[[], float]) -> None:
        while (message := await self._link.receive()) is not None:
            channel, data = message
            agent = self._agents.get(channel // 2) if channel % 2 == 0 else None
            if agent is not None and data:
                self._meter.bytes_in, self._meter.active_s = self._meter.bytes_in + len(data), now()
                await agent.send(Channel.STDIN, data)

    async def _to_client(self, index: int) -> None:
        with contextlib.suppress(ConnectionError):
            while (message := await self._agents[index].receive()) is not None:
                channel, data = message
                if channel == Channel.STDOUT:
                    self._meter.bytes_out += len(data)
                    await self._link.send(2 * index, data)
                elif channel == Channel.ERROR:
                    if text := failure_text(data):
                        await self._link.send(2 * index + 1, text.encode())
                    return


async def port_forward(app: Application, request: Request) -> UpgradeResponse:
    binding = require_running_pod(app, request)
    if request.client_link is not None:  # one connection of a forward through the global cell
        arguments = SessionArguments(kind=SessionKind.PORT_FORWARD, port=_ports(request)[0])
        return await pod_sessions.open_session(
            app, request, arguments, pod_sessions.agent_source(app, binding, arguments)
        )

    def open_port(port: int) -> contextlib.AbstractAsyncContextManager[AgentLink]:
        return agent_session(app, binding, SessionArguments(kind=SessionKind.PORT_FORWARD, port=port))

    return await forward_ports(app, request, f"replica {binding.metadata.namespace}/{binding.spec.replica}", open_port)


async def forward_ports(app: Application, request: Request, what: str, open_port: OpenSession) -> UpgradeResponse:
    """Forwards the connections of one client. Each is a session that `open_port` opens."""
    protocol, headers, forward = _negotiate(request, open_port)
    await audit_open(app, request, what)

    async def serve(stream: UpgradedStream) -> None:
        clock = app.ports.clock
        meter = SessionMeter(clock.monotonic())
        why = "the client disconnected"
        running = asyncio.ensure_future(forward(stream, meter, clock.monotonic))
        try:
            while not (await asyncio.wait({running}, timeout=SESSION_PING_EVERY_S))[0]:
                now = clock.monotonic()
                if now - meter.active_s >= SESSION_IDLE_S or now - meter.began_s >= SESSION_DURATION_MAX_S:
                    why = "its idle time or duration reached the limit"
                    break
        except asyncio.CancelledError:
            why = "the API server stops" if app.draining else "the credential or role no longer permits it"
        finally:
            await cancel_quietly(running)
            audit_end(app, request, what, meter, why)

    return UpgradeResponse(protocol, serve, headers=headers, still_allowed=still_allowed(app, request))


_Forward = Callable[[UpgradedStream, SessionMeter, Callable[[], float]], Awaitable[None]]


def _negotiate(request: Request, open_session: OpenSession) -> tuple[str, list[tuple[bytes, bytes]], _Forward]:
    if is_spdy(request):
        version = choose_subprotocol(request, STREAM_VERSION_HEADER, (_SPDY_PROTOCOL,))

        async def raw(stream: UpgradedStream, meter: SessionMeter, now: Callable[[], float]) -> None:
            with contextlib.suppress(SpdyError, ConnectionError):
                await SpdyForward(SpdyConnection(stream), open_session, meter).run(now)

        return "SPDY/3.1", [(STREAM_VERSION_HEADER.encode(), version.encode())], raw
    if not is_websocket(request):
        raise status.HttpRefusal(400, "BadRequest", "Upgrade request required")
    subprotocol = choose_subprotocol(request, "sec-websocket-protocol", (TUNNEL, CHANNELS))
    ports = _ports(request) if subprotocol == CHANNELS else ()

    async def tunnelled(stream: UpgradedStream, meter: SessionMeter, now: Callable[[], float]) -> None:
        websocket = WebSocket(stream, CLIENT_MESSAGE_BYTES_MAX)
        try:
            if subprotocol == TUNNEL:
                inner = SpdyConnection(WebSocketBytes(websocket))
                await SpdyForward(inner, open_session, meter).run(now)
            else:
                await ChannelForward(WebSocketChannels(websocket), ports, open_session, meter).run(now)
        except (SpdyError, WebSocketError, ConnectionError):
            return
        finally:
            await websocket.close()

    return "websocket", accept_headers(request, subprotocol), tunnelled


def _ports(request: Request) -> tuple[int, ...]:
    words = [word for value in request.all_values("ports") for word in value.split(",")]
    if not words or len(words) > FORWARDED_PORTS_MAX:
        raise BadRequest(f"ports: expected 1 to {FORWARDED_PORTS_MAX} ports, found {len(words)}")
    if not all(word.isascii() and word.isdigit() and len(word) <= 5 and 0 < int(word) < 65536 for word in words):
        raise BadRequest(f"ports: must be numbers from 1 to 65535, found {','.join(words)[:100]}")
    return tuple(map(int, words))
