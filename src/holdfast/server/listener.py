"""Listener of one application: TLS with optional client certificates, connection limits, graceful shutdown.

uvicorn's HTTP protocol parses requests. This module builds on its internals, so pyproject.toml pins the minor release.
It adds the peer's certificate, a timeout and size limit for request headers, a connection limit, and Status objects for
input that is not valid HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.server import status
from holdfast.server.app import Application

# Size of all request headers. A larger request is refused with 431.
MAX_HEADER_BYTES = 64 * 1024
# Time to send the request headers. Then the connection is closed.
HEADER_TIMEOUT_S = 10.0
# Idle time of a connection before the server closes it. Above the 60 s that common proxies keep one open.
KEEP_ALIVE_S = 75.0
# Time for the TLS handshake. Then the connection is closed.
HANDSHAKE_TIMEOUT_S = 10.0
# Time that requests in flight get when the server stops. Then they are cancelled.
SERVER_DRAIN_S = 10.0

_log = structlog.get_logger()
# Open connections per server. A further one is refused with 503.
MAX_CONNECTIONS = 25_000
# Connections that the kernel holds until the server accepts them.
BACKLOG = 4096


class TlsFiles(msgspec.Struct, frozen=True):
    """The server's certificate, and the authorities whose client certificates it accepts."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    node_ca: Path | None = None


class HeadersTooLarge(Exception):
    """The request headers exceed their size limit."""


class ConnectionExchange:
    """One request and its response on the connection, for a complete response in one write.

    uvicorn writes head and body separately; under TLS that is two records and two system calls per small response.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
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
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class Connection(HttpToolsProtocol):
    """One connection. A client that is too slow with its headers, or sends too many, is disconnected."""

    _deadline: asyncio.TimerHandle | None = None
    _certificate: dict[str, Any] | None = None
    _header_bytes = 0
    _in_headers = False

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
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # A request that begins inside this chunk is not charged for it: the front may belong to the previous body.
        was_in_headers = self._in_headers
        super().data_received(data)
        if not self._in_headers or self.transport.is_closing():
            return
        if not was_in_headers:
            self._expect_headers()  # most headers arrive in one chunk and need no timer
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            message = f"request headers: too large (limit {MAX_HEADER_BYTES} bytes)"
            self._refuse(431, "RequestHeaderFieldsTooLarge", message)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._in_headers = True
        scope: Any = self.scope
        scope["holdfast.peer_certificate"] = self._certificate
        scope["holdfast.abort"] = self.transport.abort

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
        scope["holdfast.exchange"] = ConnectionExchange(self.cycle)

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


def tls_context(tls: TlsFiles) -> ssl.SSLContext:
    """Client certificates are optional: clients without one may use a token. A certificate of another CA ends the
    handshake.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["http/1.1"])
    for authority in (tls.client_ca, tls.node_ca):
        if authority is not None:
            context.load_verify_locations(authority)
            context.verify_mode = ssl.CERT_OPTIONAL
    return context


class Listener:
    """A listening server. `port` is the actual port, also if 0 was requested."""

    def __init__(self, app: Application, server: asyncio.Server, state: ServerState) -> None:
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


async def listen(app: Application, host: str, port: int, tls: TlsFiles | None = None) -> Listener:
    """Starts serving. Raises OSError if the address cannot be bound."""
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
    server = await loop.create_server(
        lambda: Connection(config, state, {}, loop),
        host,
        port,
        ssl=tls_context(tls) if tls is not None else None,
        ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls is not None else None,
        backlog=BACKLOG,
    )
    listener = Listener(app, server, state)
    _log.info("server_started", host=host, port=listener.port, tls=tls is not None, cell=app.cell)
    return listener


async def serve(
    app: Application, host: str, port: int, tls: TlsFiles | None = None, *, stop: asyncio.Event, started: Any = None
) -> None:
    """Serves until `stop` is set, then shuts down gracefully. `started` is called with the listener."""
    listener = await listen(app, host, port, tls)
    if started is not None:
        started(listener)
    await stop.wait()
    await listener.stop()
