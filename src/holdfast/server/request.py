"""One HTTP request and its response, as handlers see them. Reads bodies within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from holdfast.model.errors import BadRequest
from holdfast.model.principal import Principal
from holdfast.server import status
from holdfast.server.router import RouteTarget

# Largest request body. A larger one is refused with 413. The same limit as kube-apiserver.
MAX_BODY_BYTES = 3 * 1024 * 1024
# Time to send the request body. Then the request is refused with 408.
BODY_TIMEOUT_S = 30.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
# Query parameters of one request. More are refused with 400.
MAX_QUERY_FIELDS = 64


class ClientDisconnected(Exception):
    """The client disconnected before it had sent its request."""


class Response(msgspec.Struct):
    """A complete response."""

    body: bytes
    code: int = 200
    content_type: str = JSON
    headers: list[tuple[bytes, bytes]] = []


class StreamResponse(msgspec.Struct):
    """A streaming response: chunks are sent as they come. A client that stops reading is disconnected."""

    chunks: AsyncIterator[bytes]
    content_type: str = JSON
    headers: list[tuple[bytes, bytes]] = []


AnyResponse = Response | StreamResponse


class HttpExchange(Protocol):
    """Interface of `listener.ConnectionExchange`."""

    @property
    def body_complete(self) -> bool: ...

    async def respond(
        self, code: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, last: bool = False
    ) -> None: ...


class Request:
    """Passed to handlers. `warnings` become Warning headers of the response."""

    def __init__(self, scope: Scope, receive: Receive, *, request_id: str) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.id = request_id
        self.headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.query = _query(scope.get("query_string", b""))
        self.peer_certificate: Mapping[str, Any] | None = scope.get("holdfast.peer_certificate")
        self._raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.principal = Principal(name="system:anonymous")
        self.target = RouteTarget()
        self.warnings: list[str] = []
        self.abort: Callable[[], None] = scope.get("holdfast.abort", lambda: None)
        """Closes the connection at once, for a client that no longer reads."""
        self.exchange: HttpExchange | None = scope.get("holdfast.exchange")
        """Sends a complete response in one write, if our own listener serves the request; else None."""
        self._receive = receive
        self._body: bytes | None = None

    def flag(self, name: str) -> bool:
        """A boolean query parameter as clients write it: `true`, `1`, or the bare name."""
        value = self.query.get(name)
        return value is not None and value.lower() in ("", "1", "t", "true")

    def all_headers(self, name: str) -> list[str]:
        """Every value of a repeated header."""
        wanted = name.encode()
        return [value.decode("latin-1") for key, value in self._raw_headers if key == wanted]

    @property
    def has_unread_body(self) -> bool:
        """Whether the client announced a body that was not read."""
        return self._body is None and (
            self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers
        )

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").split(";", 1)[0].strip().lower()

    @property
    def field_manager(self) -> str:
        """The writer's name for managedFields: set by the client, or the first word of its User-Agent."""
        named = self.query.get("fieldManager", "")
        if len(named) > 128 or not named.isprintable():
            raise BadRequest("fieldManager: must be at most 128 printable characters")
        return named or self.headers.get("user-agent", "").split("/", 1)[0].strip()[:128] or "unknown"

    async def body(self) -> bytes:
        """The whole body. Refuses a body that is too large or arrives too slowly."""
        if self._body is None:
            declared = self.headers.get("content-length", "0")
            if declared.isdigit() and len(declared) < 20 and int(declared) > MAX_BODY_BYTES:
                raise status.too_large(MAX_BODY_BYTES)
            if self.exchange is not None and self.exchange.body_complete:
                self._body = await self._read()
                return self._body
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    self._body = await self._read()
            except TimeoutError as slow:
                message = f"request body: did not arrive within {BODY_TIMEOUT_S:g} s"
                raise status.request_timeout(message) from slow
        return self._body

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise status.too_large(MAX_BODY_BYTES)
            parts.append(chunk)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def disconnected(self) -> None:
        """Returns when the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _query(raw: bytes) -> dict[str, str]:
    """The first value of every parameter. Handlers ignore unknown ones."""
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as many:
        raise BadRequest(f"query: too many parameters (limit {MAX_QUERY_FIELDS})") from many
    for name, value in pairs:
        found.setdefault(name, value)
    return found


def json_response(value: Any, code: int = 200) -> Response:
    return Response(status.encode(value), code)


def text_response(text: str, code: int = 200) -> Response:
    return Response(text.encode(), code, "text/plain; charset=utf-8")
