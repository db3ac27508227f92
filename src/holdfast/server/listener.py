"""Listener of one application: TLS with optional client certificates, connection limits, graceful shutdown.

uvicorn's HTTP protocol parses requests. This module builds on its internals, so pyproject.toml pins the minor release.
It adds the peer's certificate, a timeout and size limit for request headers, a connection limit, and Status objects for
input that is not valid HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from typing import Any

import httptools
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.server import status
from holdfast.server.app import Application
from holdfast.server.mixed_server import MixedServer
from holdfast.server.request import UpgradedStream
from holdfast.server.tls import ReloadingTls, TlsFiles
from holdfast.server.upgrade import RawStream

# Size of all request headers. A larger request is refused with 431.
MAX_HEADER_BYTES = 64 * 1024
# Time to send the request headers. After that, the connection is closed.
HEADER_TIMEOUT_S = 10.0
# Idle time of a connection before the server closes it. Above the 60 s that common proxies keep one open.
KEEP_ALIVE_S = 75.0
# Time for the TLS handshake. After that, the connection is closed.
HANDSHAKE_TIMEOUT_S = 10.0
# Time that a client gets to read a response that was sent before its whole body had arrived. Until then the rest of the
# body is discarded. Without an end, a client that does not close would hold the connection's buffers.
LINGER_S = 2.0
# Time that requests in flight get when the server stops. After that, they are cancelled.
SERVER_DRAIN_S = 10.0

_log = structlog.get_logger()
# Open connections per server. A further one is refused with 503.
MAX_CONNECTIONS = 25_000
# Bytes that a client may send after a request for an upgrade, before the response. Above that, it is disconnected.
EARLY_BYTES_MAX = 64 * 1024
# Connections that the kernel holds until the server accepts them.
BACKLOG = 4096


class HeadersTooLarge(Exception):
    """The request headers exceed their size limit."""


class ConnectionExchange:
    """One request and its response on the connection, for a complete response in one write.

    uvicorn writes head and body separately; under TLS that is two records and two system calls per small response.
    """

    __slots__ = ("_connection", "_cycle")

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle

    @property
    def body_complete(self) -> bool:
        """Whether the whole body has arrived, so that reading it does not block."""
        return not self._cycle.more_body

    async def respond(
        self, code: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, last: bool = False
    ) -> None:
        """Sends the response in one write and leaves the exchange as uvicorn would. If `last`, closes the
        connection.
        """
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        parts = [STATUS_LINE[code]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        cycle.keep_alive = cycle.keep_alive and not last
        parts.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        if cycle.scope["method"] != "HEAD":
            parts.append(body)
        cycle.transport.write(b"".join(parts))
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive and cycle.more_body:
            cycle.body = bytearray()
            self._connection.linger()
        elif not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    def upgrade(self, protocol: str, headers: Iterable[tuple[bytes, bytes]]) -> UpgradedStream:
        """Sends 101 and takes the connection out of HTTP. The response counts as open until the stream is closed."""
        parts = [b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: ", protocol.encode(), b"\r\n"]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        self._cycle.response_started, self._cycle.keep_alive = True, False
        return self._connection.leave_http(b"".join((*parts, b"\r\n")), self._cycle)


class Connection(HttpToolsProtocol):
    """One connection. A client that is too slow with its headers, or sends too many, is disconnected."""

    _deadline: asyncio.TimerHandle | None = None
    _certificate: dict[str, Any] | None = None
    _header_bytes = 0
    _in_headers = False
    _lingering = False
    _console_only = False
    _early: bytearray | None = None
    """What arrived after the headers of a request that asks for an upgrade, until the response decides about it."""
    _raw: RawStream | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        secured = transport.get_extra_info("ssl_object")
        self._certificate = secured.getpeercert() or None if secured is not None else None
        self._expect_headers()
        if len(self.connections) > MAX_CONNECTIONS:
            message = f"too many connections (limit {MAX_CONNECTIONS}); next: retry later"
            self._refuse(503, "ServiceUnavailable", message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        if self._raw is not None:
            self._raw.feed_eof()
        super().connection_lost(exc)

    def linger(self) -> None:
        """Discards what still arrives, and closes the connection when the client does, or after LINGER_S."""
        self._lingering = True
        self._cancel_deadline()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._raw is not None:
            self._raw.feed(data)
            return
        if self._early is not None:
            self._early += data
            if len(self._early) > EARLY_BYTES_MAX:
                self.transport.abort()
            return
        if self._lingering:
            return
        # A request that begins inside this chunk is not charged for it: the front may belong to the previous body.
        was_in_headers = self._in_headers
        self._feed(data)
        if not self._in_headers or self.transport.is_closing():
            return
        if not was_in_headers:
            self._expect_headers()  # most headers arrive in one chunk and need no timer
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            message = f"request headers: too large (limit {MAX_HEADER_BYTES} bytes)"
            self._refuse(431, "RequestHeaderFieldsTooLarge", message)

    def _feed(self, data: bytes) -> None:
        """As the method of uvicorn, but keeps what follows a request for an upgrade."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.cycle is not None and not self.cycle.response_complete:
                self._early = bytearray(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def leave_http(self, head: bytes, cycle: RequestResponseCycle) -> RawStream:
        self._raw = RawStream(self.transport, self.flow, cycle)
        self.transport.write(head)
        if self._early:
            self._raw.feed(bytes(self._early))
        self._early = None
        return self._raw

    def on_response_complete(self) -> None:
        early, self._early = self._early, None
        super().on_response_complete()
        if early and not self.transport.is_closing():
            self.data_received(bytes(early))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._in_headers = True
        scope: Any = self.scope
        scope["holdfast.peer_certificate"] = self._certificate
        scope["holdfast.abort"] = self.transport.abort
        scope["holdfast.console_only"] = self._console_only

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > 2 * MAX_HEADER_BYTES:
            raise HeadersTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._cancel_deadline()
        super().on_headers_complete()
        scope: Any = self.scope
        scope["holdfast.exchange"] = ConnectionExchange(self, self.cycle)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "BadRequest", msg)

    def _expect_headers(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self._headers_timed_out)

    def _headers_timed_out(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self._refuse(408, "Timeout", f"request headers: did not arrive within {HEADER_TIMEOUT_S:g} s")

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, code: int, reason: str, message: str) -> None:
        """Responds from the connection itself, for input that never became a request."""
        self._cancel_deadline()
        if self.cycle is None or self.cycle.response_complete:
            body = status.encode(status.status_dict(status.HttpRefusal(code, reason, message)))
            head = f"HTTP/1.1 {code} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()


class PlainConnection(Connection):
    """A connection without TLS at a port that otherwise requires it. Serves the console only."""

    _console_only = True


class Listener:
    """A listening server. `port` is the actual port, also if 0 was requested."""

    def __init__(self, app: Application, server: asyncio.Server | MixedServer, state: ServerState) -> None:
        self._app = app
        self._server = server
        self._state = state
        self.port: int = server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Graceful shutdown: not ready, no new connections, watches ended, requests finished; then aborts the rest."""
        await self._app.drain()
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(SERVER_DRAIN_S):
                while self._state.tasks:
                    await asyncio.wait(set(self._state.tasks))
        except TimeoutError:
            _log.warning("requests_aborted", count=len(self._state.tasks))
            for task in set(self._state.tasks):
                task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
        _log.info("server_stopped")


async def listen(
    app: Application, host: str, port: int, tls: TlsFiles | None = None, *, plain_console: bool = False
) -> Listener:
    """Starts serving. Raises OSError if the address cannot be bound.

    With `plain_console`, the console is also served without TLS, on the same port. Only for a loopback address.
    """
    # Everything uvicorn would log is already answered, counted or logged here.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(KEEP_ALIVE_S),
    )
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server: asyncio.Server | MixedServer
    if tls is not None and plain_console:
        server = MixedServer(
            _bound_socket(host, port),
            ReloadingTls(tls).context,
            secure=lambda: Connection(config, state, {}, loop),
            plain=lambda: PlainConnection(config, state, {}, loop),
            timeout_s=HANDSHAKE_TIMEOUT_S,
        )
    else:
        server = await loop.create_server(
            lambda: Connection(config, state, {}, loop),
            host,
            port,
            ssl=ReloadingTls(tls).context if tls is not None else None,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls is not None else None,
            backlog=BACKLOG,
        )
    listener = Listener(app, server, state)
    _log.info("server_started", host=host, port=listener.port, tls=tls is not None, cell=app.cell)
    return listener


def _bound_socket(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


async def serve(
    app: Application, host: str, port: int, tls: TlsFiles | None = None, *, stop: asyncio.Event, started: Any = None
) -> None:
    """Serves until `stop` is set, then shuts down gracefully. `started` is called with the listener."""
    listener = await listen(app, host, port, tls)
    if started is not None:
        started(listener)
    await stop.wait()
    await listener.stop()
