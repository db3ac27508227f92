"""One HTTP request and its response, as handlers see them. Reads bodies within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from holdfast.console.sessions import ConsoleSession
from holdfast.model.errors import BadRequest
from holdfast.model.principal import Principal
from holdfast.server import status
from holdfast.server.router import RouteTarget

if TYPE_CHECKING:
    from holdfast.server.session_relay import ClientLink

# Largest body of a resource, a commit or an agent's response. A larger one is refused with 413. The same limit as
# kube-apiserver.
MAX_BODY_BYTES = 3 * 1024 * 1024
# Largest body of a request that carries only options: reviews, evictions, deletions, scale, calls to agents.
MAX_OPTIONS_BYTES = 64 * 1024
# Largest body of a join, the only one that is read from an unauthenticated client. A request has about 2 KiB.
MAX_JOIN_BYTES = 16 * 1024
# Time to send the request body. After that, the request is refused with 408.
BODY_TIMEOUT_S = 30.0
# Time for an unauthenticated client to send the request body.
ANONYMOUS_BODY_TIMEOUT_S = 5.0

CONSOLE_RESOURCES = "/console/api/resources"
"""Prefix of the API's resources for pages of the console."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
# Query parameters of one request. More are refused with 400. Each argument of an exec command is one.
MAX_QUERY_FIELDS = 256


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


class UpgradedStream(Protocol):
    """Interface of `upgrade.RawStream`: the bytes of a connection that no longer speaks HTTP."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class UpgradeResponse(msgspec.Struct):
    """101: the connection leaves HTTP, and `serve` owns it until it returns. If cancelled, `serve` tells the client why
    its session ends.
    """

    protocol: str
    serve: Callable[[UpgradedStream], Awaitable[None]]
    headers: list[tuple[bytes, bytes]] = []
    still_allowed: Callable[[Principal], bool] = lambda who: True
    """Whether the principal, authenticated again, may keep the session. A session can outlive a role."""


AnyResponse = Response | StreamResponse | UpgradeResponse


class HttpExchange(Protocol):
    """Interface of `listener.ConnectionExchange`."""

    @property
    def body_complete(self) -> bool: ...

    async def respond(
        self, code: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, last: bool = False
    ) -> None: ...

    def upgrade(self, protocol: str, headers: Iterable[tuple[bytes, bytes]]) -> UpgradedStream: ...


class Request:
    """Passed to handlers. `warnings` become Warning headers of the response."""

    def __init__(self, scope: Scope, receive: Receive, *, request_id: str) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: bytes = scope.get("raw_path", b"")
        """The path as the client sent it, before it was decoded; empty for requests inside the process."""
        self.id = request_id
        self.headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self._pairs = _query_pairs(scope.get("query_string", b""))
        self.query = _first_values(self._pairs)
        self.peer_certificate: Mapping[str, Any] | None = scope.get("holdfast.peer_certificate")
        self.scheme: str = scope.get("scheme", "http")
        self.console_only: bool = scope.get("holdfast.console_only", False)
        """Whether the connection has no TLS although the API requires it: only the console is served."""
        self.through_console = False
        """Whether a page of the console uses the API: its session is the credential."""
        self.console_session: ConsoleSession | None = None
        self.session_is_live: Callable[[], bool] | None = None
        """For a request of a console session: whether the session is still valid."""
        self.still_allowed: Callable[[Principal], bool] = lambda who: True
        """For an open session: whether the caller, authenticated again, may keep it."""
        self._raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.principal = Principal(name="system:anonymous")
        self.caller = self.principal
        """Who the credential proves, without the rights of bound roles."""
        self.asserted_principal: Principal | None = scope.get("holdfast.asserted_principal")
        """The signed-in user for whom the console of the global cell makes this request; see `asserted_calls`."""
        self.client_link: ClientLink | None = scope.get("holdfast.client_link")
        """The client's side of a session that the console of the global cell asked for; see `asserted_calls`."""
        self.permitted: frozenset[tuple[str, str, str]] = scope.get("holdfast.permitted", frozenset())
        self.target = RouteTarget()
        self.warnings: list[str] = []
        self.abort: Callable[[], None] = scope.get("holdfast.abort", lambda: None)
        """Closes the connection at once, for a client that no longer reads."""
        self.exchange: HttpExchange | None = scope.get("holdfast.exchange")
        """Sends a complete response in one write, if our own listener serves the request; else None."""
        client = scope.get("client")
        self.address: str = client[0] if client else ""
        self.count_body: Callable[[int], None] = lambda size: None
        """Called with the size of each chunk before it is kept. Raises Overloaded if the caller's share is used up."""
        self._receive = receive
        self._body: bytes | None = None

    def use_resource_path(self) -> None:
        """Turns `/console/api/resources/apis/…` into `/apis/…`: the same resources, with the console's session."""
        if self.path.startswith(CONSOLE_RESOURCES):
            self.path = self.path[len(CONSOLE_RESOURCES) :]
            self.through_console = True

    def flag(self, name: str) -> bool:
        """A boolean query parameter as clients write it: `true`, `1`, or the bare name."""
        value = self.query.get(name)
        return value is not None and value.lower() in ("", "1", "t", "true")

    def all_values(self, name: str) -> tuple[str, ...]:
        """Every value of a repeated query parameter, in order."""
        return tuple(value for key, value in self._pairs if key == name)

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
        """The whole body. Refuses a body that is above the route's limit or arrives too slowly."""
        if self._body is None:
            limit = self.target.route.max_body_bytes if self.target.route is not None else 0
            declared = self.headers.get("content-length", "0")
            if declared.isdigit() and len(declared) < 20 and int(declared) > limit:
                raise status.too_large(limit)
            if self.exchange is not None and self.exchange.body_complete:
                self._body = await self._read(limit)
                return self._body
            timeout_s = BODY_TIMEOUT_S if self.principal.groups else ANONYMOUS_BODY_TIMEOUT_S
            try:
                async with asyncio.timeout(timeout_s):
                    self._body = await self._read(limit)
            except TimeoutError as slow:
                message = f"request body: did not arrive within {timeout_s:g} s"
                raise status.request_timeout(message) from slow
        return self._body

    def discard_body(self) -> None:
        """Releases a body that was read. For a request that is decided and waits to be answered."""
        if self._body is not None:
            self._body = b""

    async def _read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise status.too_large(limit)
            self.count_body(len(chunk))
            parts.append(chunk)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def disconnected(self) -> None:
        """Returns when the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _query_pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as many:
        raise BadRequest(f"query: too many parameters (limit {MAX_QUERY_FIELDS})") from many


def _first_values(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """The first value of every parameter. Handlers ignore unknown ones."""
    found: dict[str, str] = {}
    for name, value in pairs:
        found.setdefault(name, value)
    return found


def json_response(value: Any, code: int = 200) -> Response:
    return Response(status.encode(value), code)


def text_response(text: str, code: int = 200) -> Response:
    return Response(text.encode(), code, "text/plain; charset=utf-8")
