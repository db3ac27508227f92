"""`/console/api/drills`: the drills that can be started here, the newest one with its progress and report, and starting
one. Only operators start drills. A drill runs where the platform's supervisor runs, never in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.console.drill_desk import DRILL_NAME_CHARS_MAX, DrillDesk, DrillRequest
from holdfast.console.viewer import read_refusal
from holdfast.model.errors import BadRequest, Conflict, Forbidden
from holdfast.model.principal import OPERATORS
from holdfast.server.console import require_viewer, secured, service_of
from holdfast.server.request import Request, Response, json_response

if TYPE_CHECKING:
    from holdfast.server.app import Application

NOT_LOCAL = "this cell was not started by `holdfast up`, and a drill kills processes of its own machine"


class DrillStart(msgspec.Struct, frozen=True):
    name: str
    region: str


async def read(app: Application, request: Request) -> Response:
    """`GET /console/api/drills`."""
    viewer = require_viewer(app, request)
    refused = read_refusal(viewer, "recoveries")
    if refused is not None:
        raise Forbidden(refused.message, facts=refused.facts)
    desk = service_of(app).drills
    answer: dict[str, Any] = {"why": NOT_LOCAL, "local": False, "drills": [], "newest": None}
    if desk is not None:
        answer |= {"local": True, "why": desk.refusal_reason(), "drills": desk.catalog(), "newest": desk.state()}
        answer |= {"progress": desk.progress(), "report": desk.report()}
    return secured(json_response(msgspec.to_builtins(answer)))


async def start(app: Application, request: Request) -> Response:
    """`POST /console/api/drills`: starts a drill; with `dryRun=All` only checks whether it would start."""
    if OPERATORS not in request.principal.groups:
        message = f'User "{request.principal.name}" is not an operator'
        app.gate.audit.record_refusal(
            request.principal, "create", "console/drills", "Forbidden", message=message, request=request.id
        )
        raise Forbidden(f"drill: {message}")
    try:
        wanted = msgspec.json.decode(await request.body(), type=DrillStart)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise BadRequest(f"drill: cannot decode the request ({wrong})") from wrong
    desk = _desk(app)
    _check_known(app, desk, wanted)
    if "dryRun" in request.query:
        if (why := desk.refusal_reason()) != "":
            raise Conflict(f"drill {wanted.name}: would not start ({why})")
        return secured(json_response({"dryRun": True}))
    text = f"drill {wanted.name} in region {wanted.region}"
    app.gate.audit.record_use(request.principal, "create", "console/drills", message=text, request=request.id)
    await app.gate.audit.flush()  # a drill may kill this process
    desk.ask(DrillRequest(app.ports.ids.uid(), wanted.name, wanted.region, request.principal.name))
    return secured(json_response({"asked": True}, 202))


def _desk(app: Application) -> DrillDesk:
    desk = service_of(app).drills
    if desk is None:
        raise Conflict(f"drill: not started here ({NOT_LOCAL}); next: holdfast drill run NAME --region REGION")
    return desk


def _check_known(app: Application, desk: DrillDesk, wanted: DrillStart) -> None:
    if wanted.name not in {entry.name for entry in desk.catalog()}:
        raise BadRequest(f"drill {wanted.name[:DRILL_NAME_CHARS_MAX]}: not found; next: holdfast drill list")
    if wanted.region not in service_of(app).reader.region_names():
        raise BadRequest(f"region {wanted.region[:DRILL_NAME_CHARS_MAX]}: not found")
