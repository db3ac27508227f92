"""Sessions with agents: the API asks on the agent's stream of calls, and the agent opens a WebSocket for the session.

No server connects to a node. Messages are those of `model.pod_session`. Nothing is queued here: a message is read
from one side only after the other side has taken the one before, so a slow reader slows its own session and costs no
memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.agent_rpc import AgentCall, AgentCallArguments, AgentCallKind
from holdfast.model.binding import Binding
from holdfast.model.errors import BadRequest, Overloaded, Unavailable
from holdfast.model.pod_session import SESSION_MESSAGE_BYTES_MAX, Channel, SessionArguments
from holdfast.server.request import Request, UpgradedStream, UpgradeResponse
from holdfast.server.websocket import WebSocket, WebSocketError, accept_headers, is_websocket

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Open sessions per API server, tenant and node. A connection through a forwarded port is one. Further ones get 429.
SESSIONS_MAX = 1_000
SESSIONS_PER_TENANT_MAX = 64
SESSIONS_PER_NODE_MAX = 64
# Time for the agent to open its side of a session. After that, the session fails; the agent may be an older release.
SESSION_OPEN_TIMEOUT_S = 10.0

AGENT_PROTOCOL = "session.holdfast.dev"


class AgentLink:
    """The agent's side of one session."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> tuple[int, bytes] | None:
        """The next message; None when the agent is gone."""
        try:
            message = await self._websocket.receive()
        except (WebSocketError, ConnectionError):
            return None
        return (message[0], message[1:]) if message else None

    async def send(self, channel: int, data: bytes) -> None:
        """Sends data of any size, in messages. Raises ConnectionError if the agent is gone."""
        for start in range(0, max(1, len(data)), SESSION_MESSAGE_BYTES_MAX):
            await self._websocket.send(bytes((channel,)) + data[start : start + SESSION_MESSAGE_BYTES_MAX])

    async def close_channel(self, channel: Channel) -> None:
        await self.send(Channel.CLOSE, bytes((channel,)))

    async def ping(self) -> None:
        await self._websocket.ping()

    async def close(self) -> None:
        await self._websocket.close()


class WaitingSession(msgspec.Struct, eq=False):
    """A session that was asked for. `opened` receives the agent's side; `ended` releases the agent's connection."""

    tenant: str
    node: str
    opened: asyncio.Future[AgentLink]
    ended: asyncio.Event


def _check_limits(sessions: dict[str, WaitingSession], tenant: str, node: str) -> None:
    of_tenant = sum(one.tenant == tenant for one in sessions.values())
    on_node = sum(one.node == node for one in sessions.values())
    for what, found, limit in (
        ("this API server", len(sessions), SESSIONS_MAX),
        (f"tenant {tenant}", of_tenant, SESSIONS_PER_TENANT_MAX),
        (f"node {node}", on_node, SESSIONS_PER_NODE_MAX),
    ):
        if found >= limit:
            raise Overloaded(f"{what}: too many open sessions (limit {limit}); next: close some", retry_after_s=0.0)


@asynccontextmanager
async def agent_session(app: Application, binding: Binding, arguments: SessionArguments) -> AsyncGenerator[AgentLink]:
    """A session with the agent of the binding's node, which ends with the block. Raises Unavailable and Overloaded."""
    node, tenant = binding.spec.node, binding.metadata.namespace
    hub = app.agent_rpc
    agent = hub.agents.get(node)
    if agent is None:
        raise Unavailable(f"node {node}: its agent is not connected to this server; next: retry, or restart the agent")
    _check_limits(hub.sessions, tenant, node)
    session_id = f"{node}.{app.ports.ids.uid()}"
    waiting = WaitingSession(tenant, node, asyncio.get_running_loop().create_future(), asyncio.Event())
    hub.sessions[session_id] = waiting
    try:
        call = AgentCall(
            id=session_id,
            arguments=AgentCallArguments(kind=AgentCallKind.LOGS, tail=0),
            namespace=tenant,
            replica=binding.spec.replica,
            session=msgspec.structs.replace(arguments, binding=binding.metadata.name),
        )
        agent.put_nowait(call)
        try:
            async with asyncio.timeout(SESSION_OPEN_TIMEOUT_S):
                link = await waiting.opened
        except TimeoutError:
            why = f"its agent did not open the session within {SESSION_OPEN_TIMEOUT_S:g} s"
            raise Unavailable(f"node {node}: {why}; next: retry, and compare the versions of agent and cell") from None
        try:
            yield link
        finally:
            await link.close()
    finally:
        hub.sessions.pop(session_id, None)
        waiting.ended.set()


async def agent_side(app: Application, request: Request) -> UpgradeResponse:
    """`GET /node/v1/NODE/sessions/ID`: the agent opens a session that it was asked for."""
    sessions = app.agent_rpc.sessions
    return accept_session(request, sessions, request.target.parameters["node"])


def accept_session(request: Request, sessions: Mapping[str, WaitingSession], opener: str) -> UpgradeResponse:
    """The other end of a session that waits for `opener`: an agent, or a region."""
    session_id = request.target.parameters["id"]
    if not is_websocket(request):
        raise BadRequest("session: expected a WebSocket handshake")
    waiting = sessions.get(session_id)
    if waiting is None or waiting.node != opener or waiting.opened.done():
        raise BadRequest(f"session {session_id[:300]}: not asked for, or ended")

    async def serve(stream: UpgradedStream) -> None:
        if waiting.opened.done():
            return
        waiting.opened.set_result(AgentLink(WebSocket(stream, SESSION_MESSAGE_BYTES_MAX + 1)))
        await waiting.ended.wait()

    return UpgradeResponse("websocket", serve, headers=accept_headers(request, AGENT_PROTOCOL))
