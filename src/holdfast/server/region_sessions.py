"""Sessions with tasks through the global cell: a shell of the console, and kubectl on the context of the global cell.

Regions connect to the global cell, never the other way. So the global cell asks on the region's stream of queries, the
region opens a WebSocket for this one session, and serves the request in its own API under the user's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast.console.region_calls import RegionRequest
from holdfast.console.viewer import Viewer
from holdfast.foundation.tasks import cancel_quietly
from holdfast.model.errors import Overloaded, Unavailable
from holdfast.server.agent_sessions import AgentLink, WaitingSession, accept_session
from holdfast.server.console import service_of
from holdfast.server.request import Request, UpgradeResponse

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Open sessions of one user through the global cell. Each connection of a forwarded port is one. Further ones get 429.
REGION_SESSIONS_PER_USER_MAX = 32
# Open sessions of all users through the global cell. Further ones get 429.
REGION_SESSIONS_MAX = 128


@asynccontextmanager
async def region_session(
    app: Application, region: str, viewer: Viewer, wanted: RegionRequest
) -> AsyncGenerator[AgentLink]:
    """The region's side of a session, which ends with the block. Raises Unavailable and Overloaded."""
    service = service_of(app)
    own = sum(one.tenant == viewer.name for one in service.task_sessions.values())
    for whose, found, limit in (
        ("this cell", len(service.task_sessions), REGION_SESSIONS_MAX),
        ("you", own, REGION_SESSIONS_PER_USER_MAX),
    ):
        if found >= limit:
            what = f"{whose}: too many open sessions through the global cell (limit {limit})"
            raise Overloaded(f"{what}; next: close some, or use the context of region {region}", retry_after_s=0.0)
    session_id = service.hub.new_id(region)
    waiting = WaitingSession(viewer.name, region, asyncio.get_running_loop().create_future(), asyncio.Event())
    service.task_sessions[session_id] = waiting
    asking = asyncio.ensure_future(service.hub.ask_session(region, viewer, session_id, wanted))
    either: set[asyncio.Future[Any]] = {waiting.opened, asking}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.opened.done():
            raise Unavailable(f"{asking.result()}; next: use the context of the region (kubectl --context {region})")
        link = waiting.opened.result()
        try:
            yield link
        finally:
            await link.close()
    finally:
        service.task_sessions.pop(session_id, None)
        waiting.ended.set()
        await cancel_quietly(asking)


async def region_side(app: Application, request: Request) -> UpgradeResponse:
    """`GET /region/v1/REGION/sessions/ID`: the region opens a session that it was asked for."""
    return accept_session(request, service_of(app).task_sessions, request.target.parameters["region"])
