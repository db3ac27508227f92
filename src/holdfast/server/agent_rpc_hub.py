"""Routes calls to agents (logs, exec, usage) over the stream that each agent opened. No server connects to a node.

An agent keeps `GET /node/v1/NODE/calls` open, reads one call per line, and posts results to
`/node/v1/NODE/responses/ID` until it is done or the caller is gone. A client sends `POST /agent/v1/…` and receives the
results as a stream.

A call is sent only to the node it is about. A slow reader delays only its own call. An agent is connected to one API
server; only that server can reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.model import limits
from holdfast.model.agent_rpc import AgentCall, AgentCallArguments, AgentCallKind
from holdfast.model.errors import BadRequest, Fault, Forbidden, NotFound, Refused, Unavailable
from holdfast.model.kinds import BY_NAME
from holdfast.model.replica import Replica
from holdfast.server.request import Request, Response, StreamResponse, json_response

if TYPE_CHECKING:
    from holdfast.server.agent_sessions import WaitingSession
    from holdfast.server.app import Application

# Calls to agents in flight per server. Further calls are refused with 503.
AGENT_CALLS_MAX = 1_000
# Chunks of a response buffered for a slow client. At the limit the agent waits.
AGENT_CALL_CHUNKS_MAX = 16

_REPLICA, _NODE = BY_NAME["Replica"], BY_NAME["Node"]
_NDJSON = "application/x-ndjson"
_decoder = msgspec.json.Decoder(AgentCallArguments)
_encoder = msgspec.json.Encoder()


class AgentRpcHub:
    """Connected agents and pending calls. Bounded: a full queue delays the agent's post."""

    def __init__(self) -> None:
        self.agents: dict[str, asyncio.Queue[AgentCall | None]] = {}
        self.pending: dict[str, asyncio.Queue[bytes | None]] = {}
        self.responding: dict[str, None] = {}
        """Calls to which the agent has responded at least once, possibly with an empty chunk."""
        self.sessions: dict[str, WaitingSession] = {}
        """Sessions that are open or being opened (`agent_sessions`)."""


async def agent_stream(app: Application, request: Request) -> StreamResponse:
    """`GET /node/v1/NODE/calls`: a newer stream of the same agent ends the older one."""
    node = request.target.parameters["node"]
    before = app.agent_rpc.agents.get(node)
    if before is not None:
        before.put_nowait(None)
    queue: asyncio.Queue[AgentCall | None] = asyncio.Queue()
    app.agent_rpc.agents[node] = queue
    return StreamResponse(_call_lines(app, node, queue), content_type=_NDJSON)


async def _call_lines(app: Application, node: str, queue: asyncio.Queue[AgentCall | None]) -> AsyncIterator[bytes]:
    try:
        yield b"\n"
        while True:
            try:
                async with asyncio.timeout(limits.AGENT_CALL_KEEPALIVE_S):
                    call = await queue.get()
            except TimeoutError:
                yield b"\n"  # keepalive: both sides notice a dead connection
                continue
            if call is None:
                return
            yield _encoder.encode(call) + b"\n"
    finally:
        if app.agent_rpc.agents.get(node) is queue:
            del app.agent_rpc.agents[node]


async def agent_response(app: Application, request: Request) -> Response:
    """`POST /node/v1/NODE/responses/ID`: `more` in the response says whether the caller is still connected."""
    node = request.target.parameters["node"]
    call_id = request.target.parameters["id"]
    queue = app.agent_rpc.pending.get(call_id)
    if queue is None or not call_id.startswith(f"{node}."):
        return json_response({"more": False})
    data = await request.body()
    if data or call_id not in app.agent_rpc.responding:
        app.agent_rpc.responding[call_id] = None
        await queue.put(data or b"\n")
    if request.flag("end"):
        await queue.put(None)
    return json_response({"more": call_id in app.agent_rpc.pending})


def check_caller_is_agent(app: Application, request: Request) -> None:
    """Refuses everyone but the agent of the node in the path, before anything is read."""
    node, who = request.target.parameters["node"], request.principal
    if not who.is_node(node) or who.region != app.cell:
        message = f'User "{who.name}" is not the agent of node {node[:253]}'
        app.gate.audit.record_refusal(who, "call", "node", "Forbidden", message=message, request=request.id)
        raise Forbidden(message)


async def call_replica_agent(app: Application, request: Request) -> StreamResponse:
    """`POST /agent/v1/replicas/TENANT/REPLICA`: logs, or exec."""
    tenant, name = request.target.parameters["tenant"], request.target.parameters["replica"]
    arguments = _decode_arguments(await request.body())
    if arguments.kind is AgentCallKind.EXEC:
        refused = app.access_refusal(request.principal, "create", "replicas", "exec", tenant, name)
    else:
        refused = app.access_refusal(request.principal, "get", "replicas", "", tenant, name)
    _require_access(app, request, refused, arguments)
    replica = app.objects.get(_REPLICA, tenant, name) if app.cell != "global" else None
    if not isinstance(replica, Replica):
        raise NotFound(f"replica {tenant}/{name}: not found in the {app.cell} cell")
    placement = replica.status.placement
    node = placement.node
    if arguments.kind is AgentCallKind.LOGS and (not node or arguments.previous):
        node = node if arguments.previous and _has_restarted(replica) else placement.last_node
    if not node:
        raise NotFound(f"replica {tenant}/{name}: {_why_no_node(replica, arguments)}")
    if node != placement.node and app.objects.get(_NODE, "", node) is None:
        what = f"its logs were on node {node}, which has been removed from the region"
        raise NotFound(f"replica {tenant}/{name}: {what}; next: holdfast explain {tenant}/{name}")
    if arguments.kind is AgentCallKind.EXEC:
        await _audit_exec(app, request, f"{tenant}/{name}", arguments.command)
    call = AgentCall(id="", arguments=arguments, namespace=tenant, replica=name)
    return StreamResponse(send_call(app, node, call), content_type=_NDJSON)


def _why_no_node(replica: Replica, arguments: AgentCallArguments) -> str:
    """Why no node can answer the call."""
    placement = replica.status.placement
    if placement.node:  # only earlier runs were asked for
        return "has no earlier run: it never restarted; next: ask for its log without --previous"
    return "not placed on a node" if placement.attempt == 1 else "its task has ended"


def _has_restarted(replica: Replica) -> bool:
    """Whether the present attempt has earlier runs, which are on the same node."""
    return replica.status.execution is not None and replica.status.execution.restarts > 0


async def call_node_agent(app: Application, request: Request) -> StreamResponse:
    """`POST /agent/v1/nodes/NODE`: resource use of its tasks."""
    node = request.target.parameters["node"]
    arguments = _decode_arguments(await request.body())
    _require_access(app, request, app.access_refusal(request.principal, "get", "nodes", "", "", node), arguments)
    if arguments.kind is not AgentCallKind.USAGE:
        raise BadRequest(f"agent call: {arguments.kind} is about a replica; next: call /agent/v1/replicas/…")
    if app.cell == "global" or app.objects.get(_NODE, "", node) is None:
        raise NotFound(f"node {node}: not found in the {app.cell} cell")
    return StreamResponse(send_call(app, node, AgentCall(id="", arguments=arguments)), content_type=_NDJSON)


async def _audit_exec(app: Application, request: Request, replica: str, command: tuple[str, ...]) -> None:
    """Records the command durably before it runs. If that fails, it does not run."""
    text = f"replica {replica}: {' '.join(command)}"
    app.gate.audit.record_use(request.principal, "exec", "replicas/exec", message=text, request=request.id)
    await app.gate.audit.flush()


def _decode_arguments(body: bytes) -> AgentCallArguments:
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadRequest(f"agent call: cannot decode the request ({wrong})") from wrong


def _require_access(app: Application, request: Request, refused: Refused | None, arguments: AgentCallArguments) -> None:
    if refused is not None:
        app.gate.audit.record_refusal(
            request.principal, "call", arguments.kind, refused.reason, message=refused.message
        )
        raise Forbidden(refused.message, facts=refused.facts)


def send_call(app: Application, node: str, call: AgentCall) -> AsyncGenerator[bytes]:
    """Sends the call to the agent. Yields chunks of complete JSON lines, some of them blank."""
    agent = app.agent_rpc.agents.get(node)
    if agent is None:
        raise Unavailable(f"node {node}: its agent is not connected to this server; next: retry, or restart the agent")
    if len(app.agent_rpc.pending) >= AGENT_CALLS_MAX:
        raise Unavailable(f"too many agent calls in progress (limit {AGENT_CALLS_MAX}); next: retry later")
    call_id = f"{node}.{app.ports.ids.uid()}"
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(AGENT_CALL_CHUNKS_MAX)
    app.agent_rpc.pending[call_id] = queue
    agent.put_nowait(msgspec.structs.replace(call, id=call_id))
    return _response_chunks(app, call_id, queue, call.arguments)


async def _response_chunks(
    app: Application, call_id: str, queue: asyncio.Queue[bytes | None], arguments: AgentCallArguments
) -> AsyncGenerator[bytes]:
    """Chunks of the agent's response. While there are none, blank lines keep the connection alive."""
    first = True
    try:
        while True:
            try:
                async with asyncio.timeout(limits.AGENT_CALL_KEEPALIVE_S):
                    data = await queue.get()
            except TimeoutError:
                if first and arguments.kind is not AgentCallKind.EXEC:
                    error = f"the agent did not respond within {limits.AGENT_CALL_KEEPALIVE_S:g} s"
                    yield _encoder.encode({"error": error}) + b"\n"
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
        app.agent_rpc.pending.pop(call_id, None)
        app.agent_rpc.responding.pop(call_id, None)
        while not queue.empty():  # unblocks a post that waits for space in the queue
            queue.get_nowait()
