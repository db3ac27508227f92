"""Requests that the global cell's console makes in this region on behalf of a signed-in user, run in this process.

The same routes, authorization, flow control, gate and audit as for a request over HTTP. Only the groups of people are
taken from the global cell, and only the requests of `region_calls.PERMITTED` are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.contract import SessionLink
from holdfast.console.region_calls import (
    CALL_RESPONSE_BYTES_MAX,
    CALL_TIMEOUT_S,
    NODE_FIELDS,
    PERMITTED,
    RegionRequest,
    RegionResponse,
)
from holdfast.model.errors import Forbidden
from holdfast.model.pod_session import SESSION_MESSAGE_BYTES_MAX, Channel, outcome_of_code
from holdfast.model.principal import Principal
from holdfast.server.request import Request, Send, UpgradedStream
from holdfast.server.session_relay import ClientLink
from holdfast.server.status import status_dict

if TYPE_CHECKING:
    from holdfast.server.app import Application

_encoder = msgspec.json.Encoder()
_USAGE = "/agent/v1/nodes/{node}"
_METRICS = "/apis/metrics.k8s.io/"


def check_permitted(request: Request) -> None:
    """Refuses every request that this process does not make on behalf of users."""
    target, route = request.target, request.target.route
    if target.resource is not None:
        wanted = (target.verb, target.resource.kind.plural, target.subresource)
    elif route is not None and route.pattern.startswith(_METRICS):
        wanted = ("get", "metrics", "")
    else:
        wanted = ("call", "nodes", "usage") if route is not None and route.pattern == _USAGE else ("", "", "")
    if wanted not in request.permitted:
        raise Forbidden(f"{request.method} {request.path[:100]}: not served to the console of the global cell")


class AssertedCalls:
    """Implements `console.region_calls.RegionApi`. `permitted` are verbs, resources and subresources."""

    def __init__(self, app: Application, permitted: frozenset[tuple[str, str, str]] = PERMITTED) -> None:
        self._app = app
        self._permitted = permitted

    async def call(self, who: Principal, request: RegionRequest) -> RegionResponse:
        data = request.body.encode()
        if self._permitted is PERMITTED and request.method == "PATCH" and not _changes_only_scheduling(data):
            expected = ", ".join(sorted(NODE_FIELDS))
            message = f"node: the console changes only {expected}; next: kubectl patch in the region"
            return RegionResponse(code=403, body=_encoder.encode(status_dict(Forbidden(message))).decode())
        headers = [(b"user-agent", b"console"), (b"content-length", b"%d" % len(data))]
        if request.content_type:
            headers.append((b"content-type", request.content_type.encode()))
        if request.accept:
            headers.append((b"accept", request.accept.encode()))
        scope = self._scope(who, request, headers)
        captured = _Captured(data)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._app(scope, captured.receive, captured.send)
        except TimeoutError:
            if not captured.code:
                return RegionResponse(
                    code=504, body=f"no response within {CALL_TIMEOUT_S:g} s", content_type="text/plain"
                )
        except _Enough:
            pass
        return captured.response()

    def _scope(self, who: Principal, request: RegionRequest, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        return {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "query_string": request.query.encode(),
            "headers": headers,
            "holdfast.asserted_principal": who,
            "holdfast.permitted": self._permitted,
        }

    async def run_session(self, who: Principal, request: RegionRequest, link: SessionLink) -> None:
        scope = self._scope(who, request, [(b"user-agent", b"console"), (b"content-length", b"0")])
        response = _SessionResponse(link)
        exchange = _UplinkExchange(response.send)
        scope["holdfast.exchange"], scope["holdfast.client_link"] = exchange, UplinkChannels(link)
        await self._app(scope, response.receive, response.send)
        if not exchange.upgraded:
            await link.send(Channel.ERROR, response.outcome())


class UplinkChannels(ClientLink):
    """A client of a session whose WebSocket ends in the global cell, which keeps the connection alive."""

    def __init__(self, link: SessionLink) -> None:
        self._link = link

    async def receive(self) -> tuple[int, bytes] | None:
        return await self._link.receive()

    async def send(self, channel: int, data: bytes) -> None:
        await self._link.send(channel, data)

    async def ping(self) -> None:
        """The global cell does."""

    async def finish(self, outcome: bytes) -> None:
        await self._link.send(Channel.ERROR, outcome)


class _NoBytes(UpgradedStream):
    """The session's messages travel over its link, not over a connection of its own."""

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing is open."""


class _UplinkExchange:
    """Implements `server.request.HttpExchange` for a request of this process that becomes a session."""

    body_complete = True

    def __init__(self, send: Send) -> None:
        self.upgraded = False
        self._send = send

    async def respond(
        self, code: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, last: bool = False
    ) -> None:
        await self._send({"type": "http.response.start", "status": code, "headers": list(headers)})
        await self._send({"type": "http.response.body", "body": body})

    def upgrade(self, protocol: str, headers: Iterable[tuple[bytes, bytes]]) -> UpgradedStream:
        self.upgraded = True
        return _NoBytes()


class _SessionResponse:
    """The response of a session that did not leave HTTP: a log, line by line as it comes, or a refusal."""

    def __init__(self, link: SessionLink) -> None:
        self._link = link
        self._code = 0
        self._refusal = b""
        self._is_read = False

    async def receive(self) -> MutableMapping[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while await self._link.receive() is not None:
            pass
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        body: bytes = message.get("body", b"")
        if message["type"] == "http.response.start":
            self._code = message["status"]
        elif self._code != 200:
            self._refusal += body
        else:
            for start in range(0, len(body), SESSION_MESSAGE_BYTES_MAX):
                await self._link.send(Channel.STDOUT, body[start : start + SESSION_MESSAGE_BYTES_MAX])

    def outcome(self) -> bytes:
        return self._refusal if self._code != 200 else outcome_of_code(0)


def _changes_only_scheduling(patch: bytes) -> bool:
    try:
        return msgspec.json.decode(patch, type=_NodePatch).spec.keys() <= NODE_FIELDS
    except msgspec.MsgspecError:
        return False


class _NodePatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    spec: dict[str, Any]


class _Enough(Exception):
    """The response has reached its limit."""


class _Captured:
    """Sends one body, and keeps the response up to its limit."""

    def __init__(self, body: bytes) -> None:
        self.code = 0
        self._inbox = [body]
        self._type = "application/json"
        self._parts: list[bytes] = []
        self._size = 0

    async def receive(self) -> MutableMapping[str, Any]:
        if self._inbox:
            return {"type": "http.request", "body": self._inbox.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.code = message["status"]
            self._type = dict(message["headers"]).get(b"content-type", b"application/json").decode()
            return
        self._parts.append(message.get("body", b""))
        self._size += len(self._parts[-1])
        if self._size > CALL_RESPONSE_BYTES_MAX:
            raise _Enough

    def response(self) -> RegionResponse:
        body = b"".join(self._parts)[:CALL_RESPONSE_BYTES_MAX].decode(errors="replace")
        return RegionResponse(
            code=self.code, body=body, content_type=self._type, cut=self._size > CALL_RESPONSE_BYTES_MAX
        )
