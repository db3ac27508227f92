"""`GET /api/v1/namespaces/{namespace}/pods/{name}/log`: `kubectl logs` of a replica, served by its node's agent.

The same agent call as `POST /agent/v1/replicas/…`, for principals that may read the replica, with plain text as the
response. A pod that has ended is not listed any more, but its log can be read by its name (`ended_pods`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from holdfast.model import limits
from holdfast.model.agent_rpc import AgentCall, AgentCallArguments, AgentCallKind, LogLine
from holdfast.model.binding import Binding
from holdfast.model.errors import BadRequest, Unavailable
from holdfast.model.times import parse_time
from holdfast.server import agent_rpc_hub
from holdfast.server.read import require_object
from holdfast.server.request import Request, StreamResponse

if TYPE_CHECKING:
    from holdfast.server.app import Application


class AgentLogRow(LogLine, frozen=True):
    """What an agent posts: a log line, or an error."""

    error: str = ""


class LogFormat(msgspec.Struct, frozen=True):
    """Requested format: lines not older than `oldest_s`, at most `max_bytes` (0: all), with or without timestamps."""

    oldest_s: float
    max_bytes: int
    timestamps: bool

    def line(self, row: AgentLogRow) -> bytes:
        if row.error:
            return f"error: {row.error}\n".encode()
        if self.oldest_s and row.at and parse_time(row.at) < self.oldest_s:
            return b""
        return f"{row.at} {row.text}\n".encode() if self.timestamps else f"{row.text}\n".encode()


_decoder = msgspec.json.Decoder(AgentLogRow)


async def log(app: Application, request: Request) -> StreamResponse:
    binding = require_object(app, request)
    assert isinstance(binding, Binding)  # pods are stored as Bindings
    since_s = _number(request, "sinceSeconds", 0)
    oldest = app.ports.clock.now() - since_s if since_s else _since_time(request)
    shape = LogFormat(oldest, _number(request, "limitBytes", 0), timestamps=request.flag("timestamps"))
    tail = _number(request, "tailLines", limits.LOG_TAIL_LINES_MAX)
    previous = request.flag("previous")
    arguments = AgentCallArguments(
        kind=AgentCallKind.LOGS,
        tail=tail,
        follow=request.flag("follow") and not previous,
        attempt=binding.spec.intent.attempt,
        previous=previous,
        program=request.query.get("container", ""),
    )
    call = AgentCall(id="", arguments=arguments, namespace=binding.metadata.namespace, replica=binding.spec.replica)
    rows = _rows(agent_rpc_hub.send_call(app, binding.spec.node, call))
    first = await anext(rows, None)
    if first is not None and first.error:
        await rows.aclose()
        if previous:
            raise BadRequest(f"previous terminated container of {request.target.name} not found: {first.error}")
        raise Unavailable(f"node {binding.spec.node}: {first.error}")
    return StreamResponse(_text(first, rows, shape), content_type="text/plain")


def _since_time(request: Request) -> float:
    given = request.query.get("sinceTime", "")
    try:
        return parse_time(given) if given else 0.0
    except ValueError:
        raise BadRequest(f"sinceTime: must be a time such as 2026-01-31T12:00:00Z, found {given[:40]}") from None


def _number(request: Request, name: str, default: int) -> int:
    given = request.query.get(name, "")
    if not given:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > 12:
        raise BadRequest(f"{name}: must be a whole number, found {given[:40]}")
    return min(int(given), limits.LOG_TAIL_LINES_MAX) if name == "tailLines" else int(given)


async def _rows(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[AgentLogRow]:
    """The agent posts complete lines only."""
    async with aclosing(chunks):
        async for chunk in chunks:
            for line in chunk.splitlines():
                if line.strip():
                    yield _decoder.decode(line)


async def _text(first: AgentLogRow | None, rows: AsyncGenerator[AgentLogRow], shape: LogFormat) -> AsyncIterator[bytes]:
    """Lines as text, up to `max_bytes`. Closing the generator ends the agent call."""
    left = shape.max_bytes
    async with aclosing(rows):
        row = first
        while row is not None:
            piece = shape.line(row)[: left if shape.max_bytes else None]
            left -= len(piece)
            if piece:  # an empty chunk would end the response
                yield piece
            if shape.max_bytes and left <= 0:
                return
            row = await anext(rows, None)
