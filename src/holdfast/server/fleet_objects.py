"""Nodes, pods and replicas of all regions in the API of the global cell: get, list and logs.

Regions are asked over their uplinks, under the caller's own name, and authorize the caller again. A region that does
not answer is named in a Warning; its objects are shown as it answered last, marked with the time, or not at all.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from holdfast.console.region_calls import READ_IN_REGIONS, RegionRequest
from holdfast.console.region_lists import RegionLists, RegionQuestion, RegionReply
from holdfast.console.viewer import Viewer
from holdfast.gate.allowance import READ_VERBS
from holdfast.gate.authorize import is_served_in
from holdfast.gate.scope import GLOBAL_CELL
from holdfast.model.errors import BadRequest, Conflict, Fault, Forbidden, Unavailable
from holdfast.model.kinds import BY_NAME
from holdfast.model.labels import LABEL_REGION
from holdfast.model.times import age_text, seconds_text
from holdfast.server import status
from holdfast.server.console import service_of
from holdfast.server.content_negotiation import ResponseForm, ResponseShape, accept_header, object_form
from holdfast.server.fleet_forms import MarkedPage, column_definitions, marked_object, marked_page
from holdfast.server.read import requested_limit, requested_revision, requested_selection, target_resource
from holdfast.server.representations import INCLUDE_OBJECT_VALUES, ListMeta
from holdfast.server.request import Request, Response
from holdfast.server.resources import SESSIONS, Resource
from holdfast.server.router import RouteTarget
from holdfast.server.selectors import LabelTerm, parse_labels

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Objects of a list that the client did not limit. Above, it is refused: the response would not fit into memory.
LIST_OBJECTS_MAX = 50_000
# Newest lines of a log that is read through the global cell, unless the client wants fewer.
LOG_LINES_MAX = 2_000

_REGION = BY_NAME["Region"]
_encoder = msgspec.json.Encoder()


def is_read_in_regions(resource: Resource, cell: str) -> bool:
    """Whether this cell reads the resource from regions instead of its own store."""
    is_global = cell == GLOBAL_CELL and not is_served_in(resource.stored, cell)
    return is_global and resource.kind.plural in READ_IN_REGIONS and not resource.kind.internal


def check_served_here(target: RouteTarget, cell: str) -> None:
    """Refuses a resource that this cell neither stores nor reads from regions."""
    if target.resource is None or is_served_in(target.resource.stored, cell):
        return
    if is_read_in_regions(target.resource, cell):
        _check_is_read(target.resource, target.verb, target.subresource)
        return
    where = "in the regions" if cell == GLOBAL_CELL else "in the global cell"
    text = f"{target.resource.kind.plural}: not stored in the {cell} cell; next: request them from {where}"
    raise status.HttpRefusal(404, "NotFound", text)


def _check_is_read(resource: Resource, verb: str, subresource: str) -> None:
    """Refuses every write. Sessions with pods are relayed to their region (`fleet_sessions`)."""
    if (verb in READ_VERBS and not subresource) or subresource in ("log", *SESSIONS):
        return
    plural = f"{resource.kind.plural}/{subresource}" if subresource else resource.kind.plural
    raise status.HttpRefusal(
        405,
        "MethodNotAllowed",
        f"{plural}: only read in the global cell; next: use the context of its region (kubectl --context REGION)",
    )


class FleetToken(msgspec.Struct, frozen=True):
    """Content of a continue token: the region to continue with, its own token, and the revision of the list."""

    region: str
    token: str
    revision: str
    resource: str
    namespace: str


class FleetScope(msgspec.Struct, frozen=True):
    """Who asks which regions what."""

    regions: tuple[str, ...]
    viewer: Viewer
    question: RegionQuestion
    kind: str
    form: ResponseForm


def asking_caller(app: Application, request: Request) -> Viewer:
    """Under whose name regions are asked. The request is authorized, by a bound role too; the region does it again."""
    who = request.principal
    return Viewer(who.name, who.groups, who.tenants, app.authenticator.credential_cells(who))


def requested_scope(app: Application, request: Request) -> FleetScope:
    """Everything that can be refused is refused here, before a region is asked."""
    requested_selection(request)
    resource, viewer = target_resource(request), asking_caller(app, request)
    include = request.query.get("includeObject", "")
    if include not in INCLUDE_OBJECT_VALUES:
        raise BadRequest(f'includeObject: unsupported value "{include[:40]}" (expected Metadata, Object or None)')
    selector = request.query.get("labelSelector", "")
    terms = parse_labels(selector)
    known = (item.metadata.name for item in app.objects.list(_REGION)[0])
    own = [term for term in terms if term.key == LABEL_REGION]
    regions = [name for name in known if all(term.matches({LABEL_REGION: name}) for term in own)]
    if own:
        selector = ",".join(_term_text(term) for term in terms if term.key != LABEL_REGION)
    for region in (name for name in regions if not viewer.reaches(name)):
        request.warnings.append(f"region {region}: not shown, because your token is not valid there")
    path, fields = _object_path(request), request.query.get("fieldSelector", "")
    if request.target.name and request.target.verb == "watch":
        path = path.rstrip("/").rpartition("/")[0]
        fields = f"metadata.name={request.target.name}" + (f",{fields}" if fields else "")
    parameters = {"labelSelector": selector, "includeObject": include, "fieldSelector": fields}
    form = object_form(request.headers.get("accept", ""))
    return FleetScope(
        regions=tuple(sorted(name for name in regions if viewer.reaches(name))),
        viewer=viewer,
        question=RegionQuestion(path, tuple((k, v) for k, v in parameters.items() if v), accept_header(form)),
        kind=resource.kind.name,
        form=form,
    )


def _object_path(request: Request) -> str:
    """The path of the object, without a subresource."""
    part = request.target.subresource
    return request.path.rstrip("/").removesuffix(f"/{part}") if part else request.path


def _term_text(term: LabelTerm) -> str:
    match term.operator:
        case "exists":
            return term.key
        case "absent":
            return f"!{term.key}"
    return f"{term.key} {term.operator} ({','.join(sorted(term.values))})"


async def get(app: Application, request: Request) -> Response:
    scope, now_s = requested_scope(app, request), app.ports.clock.now()
    reply = await _find(app, request, scope)
    _warn(request, reply, now_s)
    as_table = scope.form.shape is ResponseShape.TABLE
    return Response(marked_object(reply, scope.kind, now_s, as_table=as_table))


async def region_of(app: Application, request: Request) -> str:
    """The region of the object that the path names. Raises as a get of the object does."""
    reply = await _find(app, request, requested_scope(app, request))
    if not reply.is_current:
        raise Unavailable(f"region {reply.region}: {reply.problem}; next: try again")
    return reply.region


async def _find(app: Application, request: Request, scope: FleetScope) -> RegionReply:
    """The answer of the one region that has the object."""
    lists = service_of(app).lists
    replies = await asyncio.gather(*(lists.one(region, scope.viewer, scope.question) for region in scope.regions))
    found = [reply for reply in replies if reply.code == 200 and reply.is_current]
    found = found or [reply for reply in replies if reply.code == 200]
    kind, name = target_resource(request).kind, request.target.name
    if len(found) > 1:
        where = ", ".join(reply.region for reply in found)
        raise Conflict(
            f'{kind.resource} "{name}": exists in several regions ({where}); '
            f"next: name one (kubectl --context {found[0].region})"
        )
    if not found:
        silent = [r.problem or f"region {r.region} answered {r.code}" for r in replies if _failed(r)]
        if silent:
            raise Unavailable(f'{kind.resource} "{name}": not found, but {silent[0]}; next: try again')
        raise status.not_found(kind, name)
    return found[0]


def _failed(reply: RegionReply) -> bool:
    return reply.code not in (200, 404) or bool(reply.problem)


def _warn(request: Request, reply: RegionReply, now_s: float) -> None:
    """Names a region that does not answer."""
    if not reply.code:
        request.warnings.append(f"region {reply.region}: not shown; {reply.problem}, and has not answered before")
    elif not reply.is_current:
        age = age_text(seconds_text(reply.at_s), now_s)
        request.warnings.append(f"region {reply.region}: shown as it was {age} ago; {reply.problem}")
    elif reply.code != 200:
        request.warnings.append(f"region {reply.region}: not shown; it answered {reply.code}")


async def list_objects(app: Application, request: Request) -> Response:
    scope = requested_scope(app, request)
    if requested_revision(request).exact:
        raise BadRequest("resourceVersionMatch: Exact is not supported over regions; next: list without it")
    resource, limit = target_resource(request), requested_limit(request)
    walk = FleetWalk(service_of(app).lists, scope, request, app.ports.clock.now())
    token = _decode_token(request) if request.query.get("continue") else None
    if token is None:
        revision = service_of(app).revisions.add(await walk.begin(limit or LIST_OBJECTS_MAX))
        entries = await walk.collect(scope.regions, limit)
    else:
        revision = token.revision
        entries = await walk.collect([r for r in scope.regions if r >= token.region], limit, token)
    meta = ListMeta(revision)
    if walk.next_region:
        named = (resource.kind.resource, request.target.namespace)
        after = FleetToken(walk.next_region, walk.next_token, revision, *named)
        meta = ListMeta(revision, base64.urlsafe_b64encode(msgspec.json.encode(after)).decode().rstrip("="))
    return Response(_list_body(resource, scope.form, meta, entries))


def _list_body(resource: Resource, form: ResponseForm, meta: ListMeta, entries: list[bytes]) -> bytes:
    kind, listed = resource.kind, b'"items":['
    match form.shape:
        case ResponseShape.TABLE:
            head = f'{{"kind":"Table","apiVersion":"meta.k8s.io/{form.version}"'
            listed = b'"columnDefinitions":' + _encoder.encode(column_definitions(kind.name)) + b',"rows":['
        case ResponseShape.PARTIAL:
            head = f'{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/{form.version}"'
        case _:
            head = f'{{"kind":"{kind.name}List","apiVersion":"{kind.api_version}"'
    return b"".join((head.encode(), b',"metadata":', _encoder.encode(meta), b",", listed, b",".join(entries), b"]}"))


def _decode_token(request: Request) -> FleetToken:
    text = request.query["continue"]
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=FleetToken)
    except (ValueError, msgspec.MsgspecError) as wrong:
        raise BadRequest("continue: invalid token; next: use the token of the previous page") from wrong
    resource = target_resource(request)
    if (token.resource, token.namespace) != (resource.kind.resource, request.target.namespace):
        raise BadRequest("continue: the token belongs to another list; next: start the list again")
    return token


class FleetWalk:
    """Collects the pages of one list, region by region in the order of their names.

    Afterwards `next_region` and `next_token` say where the list continues; they are empty at its end.
    """

    def __init__(self, lists: RegionLists, scope: FleetScope, request: Request, now_s: float) -> None:
        self._lists = lists
        self._scope = scope
        self._request = request
        self._now_s = now_s
        self._first: dict[str, MarkedPage | None] = {}
        self.next_region = ""
        self.next_token = ""

    async def begin(self, limit: int) -> dict[str, str]:
        """Asks all regions at once for their share of the first page. Returns the revision of each."""
        share = max(1, limit // max(1, len(self._scope.regions)))
        pages = await asyncio.gather(*(self._page(region, share, "") for region in self._scope.regions))
        self._first = dict(zip(self._scope.regions, pages, strict=True))
        return {region: page.revision for region, page in self._first.items() if page is not None}

    async def collect(self, regions: Iterable[str], limit: int, start: FleetToken | None = None) -> list[bytes]:
        """Up to `limit` entries, all of them for 0."""
        entries: list[bytes] = []
        for region in regions:
            token = start.token if start is not None and start.region == region else ""
            page = self._first.get(region)
            while True:
                if limit and len(entries) >= limit:
                    self.next_region, self.next_token = region, token
                    return entries
                room = (limit or LIST_OBJECTS_MAX) - len(entries)
                if page is None and (token or region not in self._first):
                    page = await self._page(region, room, token)
                if page is None:
                    break
                if len(page.entries) > room:
                    # A share of the first page that does not fit any more: asked again with the next page.
                    self.next_region, self.next_token = region, token
                    return entries
                entries += page.entries
                token, page = page.token, None
                if not token:
                    break
                if not limit and len(entries) >= LIST_OBJECTS_MAX:
                    raise BadRequest(f"list over all regions: more than {LIST_OBJECTS_MAX} objects; next: use limit")
        return entries

    async def _page(self, region: str, limit: int, token: str) -> MarkedPage | None:
        scope = self._scope
        reply = await self._lists.page(region, scope.viewer, scope.question, limit=limit, token=token)
        _warn(self._request, reply, self._now_s)
        if reply.code != 200:
            return None
        try:
            return marked_page(reply, scope.kind, self._now_s)
        except msgspec.MsgspecError:
            self._request.warnings.append(f"region {region}: not shown; its answer cannot be read")
            return None


async def log(app: Application, request: Request) -> Response:
    """`kubectl logs` on the global cell: the newest lines of a pod, from the region that runs it."""
    viewer, path = asking_caller(app, request), request.path
    wanted = RegionRequest(method="GET", path=path, query=log_query(request))
    hub = service_of(app).hub
    answers: list[str] = []
    for item in app.objects.list(_REGION)[0]:
        try:
            found = await hub.call(item.metadata.name, viewer, wanted)
        except Forbidden:
            continue
        except Fault as fault:
            answers.append(fault.message.partition("; next:")[0])
            continue
        if found.code == 200:
            return Response(found.body.encode(), content_type=found.content_type)
        if found.code != 404:
            return Response(found.body.encode(), found.code, found.content_type)
    kind = target_resource(request).kind
    if answers:
        raise Unavailable(f'{kind.resource} "{request.target.name}": not found, but {answers[0]}; next: try again')
    raise status.not_found(kind, request.target.name)


def log_query(request: Request) -> str:
    passed = ("sinceSeconds", "sinceTime", "limitBytes", "timestamps", "previous", "container")
    given = {name: request.query[name] for name in passed if name in request.query}
    return urlencode({"tailLines": request.query.get("tailLines", str(LOG_LINES_MAX)), **given})
