"""A shell in the console: `GET /console/api/regions/REGION/pods/TENANT/NAME/exec`, a WebSocket of the page.

Regions connect to the global cell, never the other way. So the global cell asks on the region's stream of queries, the
region opens a WebSocket for this one session, and runs `exec` in its own API under the user's name. Authorized and
audited in both cells. The session ends with the console session, the role, or the command.

A page cannot set a header of a WebSocket, so it sends its key as a subprotocol (`session_key`); the origin is required.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from holdfast.console.region_calls import RegionRequest
from holdfast.console.region_hub import limited_reason
from holdfast.console.viewer import Viewer
from holdfast.foundation.tasks import cancel_quietly
from holdfast.model.errors import BadRequest, Fault, Forbidden, Overloaded, Unavailable
from holdfast.model.pod_session import outcome_of_failure
from holdfast.model.principal import Principal
from holdfast.server.agent_sessions import AgentLink, WaitingSession, accept_session
from holdfast.server.console import require_viewer, service_of
from holdfast.server.console_regions import require_access
from holdfast.server.pod_sessions import CLIENT_MESSAGE_BYTES_MAX, WEBSOCKET_PROTOCOLS, WebSocketChannels
from holdfast.server.request import Request, UpgradedStream, UpgradeResponse
from holdfast.server.session_relay import Relay, SessionMeter
from holdfast.server.websocket import WebSocket, accept_headers, choose_subprotocol, is_websocket

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Open shells of all users, and of one. Further ones get 429.
SHELLS_MAX = 128
SHELLS_PER_USER_MAX = 8
# Length of a shell's command. A longer one is run with `holdfast exec`.
SHELL_COMMAND_CHARS_MAX = 1000


async def shell(app: Application, request: Request) -> UpgradeResponse:
    region, tenant, name = (request.target.parameters[part] for part in ("region", "tenant", "name"))
    require_access(app, request, "create", "pods", "exec", tenant, name)
    viewer = require_viewer(app, request)
    if not viewer.reaches(region):
        app.gate.audit.record_refusal(
            request.principal, "exec", "pods/exec", "Forbidden", message=region, request=request.id
        )
        raise Forbidden(limited_reason(region))
    if not is_websocket(request):
        raise BadRequest("shell: expected a WebSocket handshake")
    command = request.all_values("command")
    if not command or not command[0] or sum(map(len, command)) > SHELL_COMMAND_CHARS_MAX:
        raise BadRequest(f"command: expected 1 to {SHELL_COMMAND_CHARS_MAX} characters")
    headers = accept_headers(request, choose_subprotocol(request, "sec-websocket-protocol", WEBSOCKET_PROTOCOLS))
    words = [("command", word) for word in command]
    query = urlencode([*words, ("stdin", "true"), ("stdout", "true"), ("tty", "true")])
    wanted = RegionRequest(method="GET", path=f"/api/v1/namespaces/{tenant}/pods/{name}/exec", query=query)
    what = f"replica {tenant}/{name} in region {region}, from the console: {' '.join(command)}"
    app.gate.audit.record_use(request.principal, "exec", "pods/exec", message=what, request=request.id)
    await app.gate.audit.flush()  # a session that cannot be recorded does not open

    async def serve(stream: UpgradedStream) -> None:
        meter, why = SessionMeter(app.ports.clock.monotonic()), "the client disconnected"
        client = WebSocketChannels(WebSocket(stream, CLIENT_MESSAGE_BYTES_MAX))
        try:
            async with _region_session(app, region, viewer, wanted) as link:
                why = await Relay(app, client, link, meter).run()
        except Fault as fault:
            why = fault.message
            await client.finish(outcome_of_failure(fault.message, fault.reason, fault.code))
        except (ConnectionError, TimeoutError):
            return
        finally:
            took_s = app.ports.clock.monotonic() - meter.began_s
            text = f"ended ({why}; {took_s:.1f} s, {meter.bytes_in} bytes in, {meter.bytes_out} bytes out): {what}"
            app.gate.audit.record_use(request.principal, "exec", "pods/exec", message=text, request=request.id)

    def still_allowed(who: Principal) -> bool:
        return app.access_refusal(who, "create", "pods", "exec", tenant, name) is None

    return UpgradeResponse("websocket", serve, headers=headers, still_allowed=still_allowed)


@asynccontextmanager
async def _region_session(
    app: Application, region: str, viewer: Viewer, wanted: RegionRequest
) -> AsyncGenerator[AgentLink]:
    """The region's side of a session, which ends with the block. Raises Unavailable and Overloaded."""
    service = service_of(app)
    own = sum(one.tenant == viewer.name for one in service.shells.values())
    for whose, found, limit in (("this cell", len(service.shells), SHELLS_MAX), ("you", own, SHELLS_PER_USER_MAX)):
        if found >= limit:
            raise Overloaded(f"{whose}: too many open shells (limit {limit}); next: close some", retry_after_s=0.0)
    session_id = service.hub.new_id(region)
    waiting = WaitingSession(viewer.name, region, asyncio.get_running_loop().create_future(), asyncio.Event())
    service.shells[session_id] = waiting
    asking = asyncio.ensure_future(service.hub.ask_session(region, viewer, session_id, wanted))
    either: set[asyncio.Future[Any]] = {waiting.opened, asking}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.opened.done():
            raise Unavailable(f"{asking.result()}; next: holdfast exec")
        link = waiting.opened.result()
        try:
            yield link
        finally:
            await link.close()
    finally:
        service.shells.pop(session_id, None)
        waiting.ended.set()
        await cancel_quietly(asking)


async def region_side(app: Application, request: Request) -> UpgradeResponse:
    """`GET /region/v1/REGION/sessions/ID`: the region opens a session that it was asked for."""
    return accept_session(request, service_of(app).shells, request.target.parameters["region"])
