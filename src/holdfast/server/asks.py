"""Questions to agents: logs, commands and use. They ride the agent's own outbound stream; nothing dials a node.

An agent keeps `GET /node/v1/NODE/asks` open and hears one question per line; it posts what it finds to
`/node/v1/NODE/answers/ID` until there is no more, or until it is told that nobody listens. `POST /ask/v1/…` is how
people ask, and its answer streams back what the agent posts. Always: a question is heard only by the node it is about;
who is slow to read slows only the agent's answer to them. An agent talks to one API server: ask that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.gate.authorize import authorize
from holdfast.model import limits
from holdfast.model.asking import Ask, Kind, Question
from holdfast.model.errors import BadRequest, Fault, Forbidden, NotFound, Refused, Unavailable
from holdfast.model.kinds import BY_NAME
from holdfast.model.replica import Replica
from holdfast.server.request import Request, Response, StreamResponse, json_response

if TYPE_CHECKING:
    from holdfast.server.app import Application

_REPLICA, _NODE = BY_NAME["Replica"], BY_NAME["Node"]
_NDJSON = "application/x-ndjson"
_decoder = msgspec.json.Decoder(Question)
_encoder = msgspec.json.Encoder()


class Hub:
    """Who listens, and who waits for an answer. Bounded: a full queue holds the agent's post back."""

    def __init__(self) -> None:
        self.agents: dict[str, asyncio.Queue[Ask | None]] = {}
        self.waiting: dict[str, asyncio.Queue[bytes | None]] = {}
        self.begun: dict[str, None] = {}
        """Questions whose agent has been heard, if only to say that there is nothing to say yet."""


async def listen(app: Application, request: Request) -> StreamResponse:
    """`GET /node/v1/NODE/asks`: a newer stream of the same agent ends the older one."""
    node = _own_node(request)
    before = app.asks.agents.get(node)
    if before is not None:
        before.put_nowait(None)
    queue: asyncio.Queue[Ask | None] = asyncio.Queue()
    app.asks.agents[node] = queue
    return StreamResponse(_questions(app, node, queue), content_type=_NDJSON)


async def _questions(app: Application, node: str, queue: asyncio.Queue[Ask | None]) -> AsyncIterator[bytes]:
    try:
        yield b"\n"
        while True:
            try:
                async with asyncio.timeout(limits.ASK_SILENCE_S):
                    ask = await queue.get()
            except TimeoutError:
                yield b"\n"  # so that both sides notice when the other is gone
                continue
            if ask is None:
                return
            yield _encoder.encode(ask) + b"\n"
    finally:
        if app.asks.agents.get(node) is queue:
            del app.asks.agents[node]


async def answer(app: Application, request: Request) -> Response:
    """`POST /node/v1/NODE/answers/ID`: `more` in the answer says whether anybody still listens."""
    node = _own_node(request)
    ask_id = request.target.parameters["id"]
    queue = app.asks.waiting.get(ask_id)
    if queue is None or not ask_id.startswith(f"{node}."):
        return json_response({"more": False})
    data = await request.body()
    if data or ask_id not in app.asks.begun:
        app.asks.begun[ask_id] = None
        await queue.put(data or b"\n")
    if request.flag("end"):
        await queue.put(None)
    return json_response({"more": ask_id in app.asks.waiting})


def _own_node(request: Request) -> str:
    node = request.target.parameters["node"]
    if not request.principal.is_node(node):
        raise Forbidden(f'User "{request.principal.name}" is not the agent of node {node}')
    return node


async def ask_replica(app: Application, request: Request) -> StreamResponse:
    """`POST /ask/v1/replicas/TENANT/REPLICA`: logs of it, or a command beside it."""
    tenant, name = request.target.parameters["tenant"], request.target.parameters["replica"]
    question = _question(await request.body())
    if question.kind is Kind.EXEC:
        refused = authorize(request.principal, "create", "replicas", "exec", tenant, name, cell=app.cell)
    else:
        refused = authorize(request.principal, "get", "replicas", "", tenant, name, cell=app.cell)
    _check(app, request, refused, question)
    replica = app.objects.get(_REPLICA, tenant, name) if app.cell != "global" else None
    if not isinstance(replica, Replica):
        raise NotFound(f"there is no replica {tenant}/{name} in the {app.cell} cell")
    node = replica.status.placement.node
    if not node:
        raise NotFound(f"replica {tenant}/{name} is on no node at the moment")
    ask = Ask(id="", question=question, namespace=tenant, replica=name)
    return StreamResponse(asked(app, node, ask), content_type=_NDJSON)


async def ask_node(app: Application, request: Request) -> StreamResponse:
    """`POST /ask/v1/nodes/NODE`: what its work uses."""
    node = request.target.parameters["node"]
    question = _question(await request.body())
    _check(app, request, authorize(request.principal, "get", "nodes", "", "", node, cell=app.cell), question)
    if app.cell == "global" or app.objects.get(_NODE, "", node) is None:
        raise NotFound(f"there is no node {node} in the {app.cell} cell")
    return StreamResponse(asked(app, node, Ask(id="", question=question)), content_type=_NDJSON)


def _question(body: bytes) -> Question:
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRequest(f"the question cannot be decoded: {wrong}") from wrong


def _check(app: Application, request: Request, refused: Refused | None, question: Question) -> None:
    if refused is not None:
        app.gate.audit.refused(request.principal, "ask", question.kind, refused.reason, message=refused.message)
        raise Forbidden(refused.message, facts=refused.facts)


def asked(app: Application, node: str, ask: Ask) -> AsyncGenerator[bytes]:
    """Sends the question on its way; what comes back are chunks of whole JSON lines, some of them blank."""
    agent = app.asks.agents.get(node)
    if agent is None:
        raise Unavailable(f"the agent of node {node} is not connected to this server; it may be down, or on its way")
    if len(app.asks.waiting) >= limits.ASKS_MAX:
        raise Unavailable(f"{limits.ASKS_MAX} questions are being answered already; ask again later")
    ask_id = f"{node}.{app.ports.ids.uid()}"
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(limits.ASK_CHUNKS_HELD)
    app.asks.waiting[ask_id] = queue
    agent.put_nowait(msgspec.structs.replace(ask, id=ask_id))
    return _answers(app, ask_id, queue, ask.question)


async def _answers(
    app: Application, ask_id: str, queue: asyncio.Queue[bytes | None], question: Question
) -> AsyncGenerator[bytes]:
    """Until the agent says that it is done; a blank line now and then proves that the way is open."""
    first = True
    try:
        while True:
            try:
                async with asyncio.timeout(limits.ASK_SILENCE_S):
                    data = await queue.get()
            except TimeoutError:
                if first and question.kind is not Kind.EXEC:
                    yield _encoder.encode({"error": "the agent did not answer in time"}) + b"\n"
                    return
                yield b"\n"
                continue
            if data is None:
                return
            first = False
            yield data
    except Fault:
        return
    finally:
        app.asks.waiting.pop(ask_id, None)
        app.asks.begun.pop(ask_id, None)
        while not queue.empty():  # lets a post that waits for room end
            queue.get_nowait()
