"""Listens for one application: TLS with optional client certificates, limits on what a connection may do, a quiet end.

uvicorn's HTTP protocol does the parsing; this builds on its internals, so pyproject.toml pins its minor release. Added
here: the peer's certificate for the application, a deadline and a size for request headers, a bound on connections, and
Status objects for what is not even HTTP.
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

from holdfast.model import limits
from holdfast.server import status
from holdfast.server.app import Application

_log = structlog.get_logger()
MAX_CONNECTIONS = 25_000
BACKLOG = 4096


class Tls(msgspec.Struct, frozen=True):
    """The server's own certificate, and the authorities whose client certificates it believes."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    node_ca: Path | None = None


class HeadersTooLarge(Exception):
    """The headers of a request exceed their limit."""


class Exchange:
    """One request and its answer on the wire, for an application that has the whole answer in its hands.

    uvicorn writes head and body apart; under TLS that is two records and two system calls for every small answer.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def arrived(self) -> bool:
        """Whether the whole body is here, so that reading it cannot wait."""
        return not self._cycle.more_body

    async def answer(
        self, code: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, last: bool = False
    ) -> None:
        """Sends an answer with one write, and leaves the exchange as uvicorn would. After the `last` one it closes."""
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
    """One connection. Whoever does not finish its headers in time, or sends too many, is let go."""

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
            self._refuse(503, "ServiceUnavailable", "this server has too many connections; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # What began within a piece is not counted with it: its front may be the end of the body before.
        begun = self._in_headers
        super().data_received(data)
        if not self._in_headers or self.transport.is_closing():
            return
        if not begun:
            self._expect_headers()  # most headers come in one piece, and need no clock
            return
        self._header_bytes += len(data)
        if self._header_bytes > limits.MAX_HEADER_BYTES:
            self._refuse(431, "RequestHeaderFieldsTooLarge", f"headers take at most {limits.MAX_HEADER_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._in_headers = True
        scope: Any = self.scope
        scope["holdfast.peer_certificate"] = self._certificate
        scope["holdfast.abort"] = self.transport.abort

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > 2 * limits.MAX_HEADER_BYTES:
            raise HeadersTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._forget_deadline()
        super().on_headers_complete()
        scope: Any = self.scope
        scope["holdfast.exchange"] = Exchange(self.cycle)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "BadRequest", msg)

    def _expect_headers(self) -> None:
        self._forget_deadline()
        self._deadline = self.loop.call_later(limits.HEADER_TIMEOUT_S, self._too_slow)

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self._refuse(408, "Timeout", f"the request's headers did not arrive within {limits.HEADER_TIMEOUT_S:g} s")

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, code: int, reason: str, message: str) -> None:
        """An answer from the connection itself, for what never became a request."""
        self._forget_deadline()
        if self.cycle is None or self.cycle.response_complete:
            body = status.encode(status.status_dict(status.Refusal(code, reason, message)))
            head = f"HTTP/1.1 {code} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Client certificates are optional: who has none may show a token. One of another authority ends the handshake."""
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
    """A listening server. `port` is the real one, also where 0 was asked for."""

    def __init__(self, app: Application, server: asyncio.Server, state: ServerState) -> None:
        self._app = app
        self._server = server
        self._state = state
        self.port: int = server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Not ready any more, no new connections, watches ended, requests finished; what is left then is cut."""
        await self._app.drain()
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(limits.DRAIN_S):
                while self._state.tasks:
                    await asyncio.wait(set(self._state.tasks))
        except TimeoutError:
            _log.warning("requests_cut", count=len(self._state.tasks))
            for task in set(self._state.tasks):
                task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
        _log.info("server_stopped")


async def listen(app: Application, host: str, port: int, tls: Tls | None = None) -> Listener:
    """Starts to serve; raises OSError when the address cannot be had."""
    # What uvicorn would log is answered, counted or logged here already.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app, http=Connection, ws="none", loop="none", lifespan="off", log_config=None, access_log=False,
        proxy_headers=False, server_header=False, date_header=False, timeout_keep_alive=int(limits.KEEP_ALIVE_S),
    )  # fmt: skip
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(config, state, {}, loop),
        host,
        port,
        ssl=tls_context(tls) if tls is not None else None,
        ssl_handshake_timeout=limits.HANDSHAKE_TIMEOUT_S if tls is not None else None,
        backlog=BACKLOG,
    )
    listener = Listener(app, server, state)
    _log.info("server_started", host=host, port=listener.port, tls=tls is not None, cell=app.cell)
    return listener


async def serve(
    app: Application, host: str, port: int, tls: Tls | None = None, *, stop: asyncio.Event, started: Any = None
) -> None:  # fmt: skip
    """Listens until `stop` is set, then ends in good order. `started` is called with the listener."""
    listener = await listen(app, host, port, tls)
    if started is not None:
        started(listener)
    await stop.wait()
    await listener.stop()
