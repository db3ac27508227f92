"""A shell in the console: `GET /console/api/regions/REGION/pods/TENANT/NAME/exec`, a WebSocket of the page.

A session through the global cell (`region_sessions`): the region runs `exec` in its own API. Authorized and audited in
both cells. The session ends with the console session, the role, or the command.

A page cannot set a header of a WebSocket, so it sends its key as a subprotocol (`session_key`); the origin is required.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from holdfast.console.region_calls import RegionRequest
from holdfast.console.region_hub import limited_reason
from holdfast.model.errors import BadRequest, Fault, Forbidden
from holdfast.model.pod_session import outcome_of_failure
from holdfast.model.principal import Principal
from holdfast.server.console import require_viewer
from holdfast.server.console_regions import require_access
from holdfast.server.pod_sessions import CLIENT_MESSAGE_BYTES_MAX, WEBSOCKET_PROTOCOLS, WebSocketChannels
from holdfast.server.region_sessions import region_session
from holdfast.server.request import Request, UpgradedStream, UpgradeResponse
from holdfast.server.session_relay import Relay, SessionMeter
from holdfast.server.websocket import WebSocket, accept_headers, choose_subprotocol, is_websocket

if TYPE_CHECKING:
    from holdfast.server.app import Application

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
            async with region_session(app, region, viewer, wanted) as link:
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
