"""`kubectl top` in the API of the global cell: the regions' measurements as one list.

The caller is authorized again in each region. A region that does not answer is named in a Warning; unlike objects, old
measurements are not shown.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from holdfast.console.region_calls import RegionRequest, RegionResponse
from holdfast.console.viewer import Viewer
from holdfast.model.errors import Fault
from holdfast.model.kinds import BY_NAME
from holdfast.server.console import service_of
from holdfast.server.fleet_objects import asking_caller
from holdfast.server.request import Request

if TYPE_CHECKING:
    from holdfast.server.app import Application

_REGION = BY_NAME["Region"]


async def items(app: Application, request: Request) -> list[dict[str, Any]]:
    """The measurements of the regions that the caller reaches, in the order of the regions' names."""
    viewer = asking_caller(app, request)
    regions = sorted(item.metadata.name for item in app.objects.list(_REGION)[0])
    answers = await asyncio.gather(*(_ask(app, request, region, viewer) for region in regions))
    found: list[dict[str, Any]] = []
    for region, answer in zip(regions, answers, strict=True):
        if isinstance(answer, str):
            request.warnings.append(f"region {region}: not shown; {answer}")
        elif answer.code == 200 and not answer.cut:
            body = msgspec.json.decode(answer.body)
            found += body.get("items", [body])
        elif answer.cut or answer.code != 404:
            why = "its answer is too long; next: name a namespace" if answer.cut else f"it answered {answer.code}"
            request.warnings.append(f"region {region}: not shown; {why}")
    return found


async def _ask(app: Application, request: Request, region: str, viewer: Viewer) -> RegionResponse | str:
    """The region's response, or why there is none."""
    selector = request.query.get("labelSelector", "")
    wanted = RegionRequest(
        method="GET", path=request.path, query=urlencode({"labelSelector": selector} if selector else {})
    )
    try:
        return await service_of(app).hub.call(region, viewer, wanted)
    except Fault as fault:
        return fault.message.partition("; next:")[0]
