"""Get and list. A list shows one revision. Long lists are paged, and every page shows the revision of the first."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.gate.allowance import READ_VERBS
from holdfast.gate.event_scope import is_hidden
from holdfast.model import limits
from holdfast.model.errors import BadRequest, Cause, Expired, Invalid
from holdfast.model.meta import Object
from holdfast.server import selectors, status
from holdfast.server.content_negotiation import object_form
from holdfast.server.representations import ListMeta, ResponseEncoder
from holdfast.server.request import Request, Response
from holdfast.server.resources import Resource
from holdfast.server.selectors import Selection

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Objects read at once for an unfiltered list, if the client requests larger pages. The rest takes further reads.
LIST_PAGE_OBJECTS_MAX = 10_000
# Wait for a resourceVersion that this server has not seen. At the limit: 504 (list) or 410 (watch), as in Kubernetes.
FUTURE_REVISION_WAIT_S = 3.0

# Highest resourceVersion accepted from a client. A higher one is refused with 400.
MAX_REVISION = 2**62


class ContinueToken(msgspec.Struct, frozen=True):
    """Content of a continue token: the revision of the first page and the last key that was examined."""

    revision: int
    after: str
    resource: str
    namespace: str


class ListOptions(msgspec.Struct, frozen=True):
    """Which state a read wants: the newest, at least a revision, or exactly one."""

    revision: int = 0
    exact: bool = False


async def get(app: Application, request: Request) -> Response:
    resource = target_resource(request)
    options = requested_revision(request)
    await refresh_unless_versioned(app, request)
    await wait_for_revision(app, resource, options.revision)
    item = require_object(app, request)
    return Response(response_encoder(app, request).encode_one(item))


def target_resource(request: Request) -> Resource:
    resource = request.target.resource
    assert resource is not None  # only handlers of resource routes call this
    return resource


def require_object(app: Application, request: Request) -> Object:
    """The object that the request names. Raises NotFound, for a write also if the object belongs to another node or
    region: reads were authorized by the object's fields.
    """
    resource = target_resource(request)
    item = app.objects.get(resource.stored, request.target.namespace, request.target.name)
    writes = request.target.verb not in READ_VERBS
    if item is None and resource.find_ended is not None and not writes:
        item = resource.find_ended(app.objects, request.target.namespace, request.target.name)
    if item is not None and writes and is_hidden(request.principal, app.cell, resource.stored, item, app.objects):
        why = f"{resource.kind.singular} {item.key}: belongs to another node or region"
        app.gate.audit.record_refusal(
            request.principal, request.target.verb, resource.kind.plural, "OutOfScope", message=why, request=request.id
        )
        item = None
    if item is None:
        raise status.not_found(resource.kind, request.target.name)
    return item


def response_encoder(app: Application, request: Request) -> ResponseEncoder:
    form = object_form(request.headers.get("accept", ""))
    include = request.query.get("includeObject", "")
    return ResponseEncoder(
        target_resource(request), form, now=app.ports.clock.now, include=include, objects=app.objects
    )


def requested_selection(request: Request) -> Selection:
    kind = target_resource(request).kind
    fields = request.query.get("fieldSelector", "")
    if request.target.name:
        # A watch of one object by its path equals a watch with a selector for its name.
        fields = f"metadata.name={request.target.name}" + (f",{fields}" if fields else "")
    return selectors.parse(kind, request.query.get("labelSelector", ""), fields)


def parse_revision(text: str, field: str = "resourceVersion") -> int:
    """A revision as clients send it; empty and "0" both mean any revision."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > MAX_REVISION:
        raise BadRequest(f'{field}: Invalid value: "{text[:40]}": must be a resourceVersion returned by the server')
    return int(text)


def requested_revision(request: Request) -> ListOptions:
    text = request.query.get("resourceVersion", "")
    match = request.query.get("resourceVersionMatch", "")
    revision = parse_revision(text)
    problem = ""
    if match and match not in ("Exact", "NotOlderThan"):
        raise _invalid(
            "resourceVersionMatch",
            "FieldValueNotSupported",
            'Unsupported value: supported values: "Exact", "NotOlderThan"',
        )
    if match and not text:
        problem = "resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif match and request.query.get("continue"):
        problem = "resourceVersionMatch is forbidden when continue is provided"
    elif match == "Exact" and revision == 0:
        problem = 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
    if problem:
        raise _invalid("resourceVersionMatch", "FieldValueForbidden", f"Forbidden: {problem}")
    return ListOptions(revision, match == "Exact")


def _invalid(field: str, reason: str, message: str) -> Invalid:
    return Invalid(f"ListOptions is invalid: {field}: {message}", (Cause(field, reason, message),))


async def refresh_unless_versioned(app: Application, request: Request) -> None:
    """A read without a revision sees every acknowledged write, whichever server of the cell committed it."""
    if not request.query.get("resourceVersion"):
        await app.objects.newest_revision(target_resource(request).stored)


async def wait_for_revision(app: Application, resource: Resource, revision: int) -> None:
    """Waits briefly for a revision that this server has not seen yet."""
    head = app.objects.head(resource.stored)
    if revision <= head:
        return
    if not await app.objects.wait_for(resource.stored, revision, timeout_s=FUTURE_REVISION_WAIT_S):
        raise status.future_revision(revision, app.objects.head(resource.stored))


async def list_objects(app: Application, request: Request) -> Response:
    resource = target_resource(request)
    wanted = requested_selection(request)
    options = requested_revision(request)
    limit = requested_limit(request)
    token = request.query.get("continue", "")
    if token:
        page = await _next_page(app, request, wanted, limit, token)
    else:
        if not options.exact:
            await refresh_unless_versioned(app, request)
            await wait_for_revision(app, resource, options.revision)
        page = await _first_page(app, request, wanted, limit, options)
    items, meta = page
    return Response(await response_encoder(app, request).encode_list(items, meta))


def requested_limit(request: Request) -> int:
    text = request.query.get("limit", "")
    if not text:
        return 0
    if not text.isascii() or not text.lstrip("-").isdigit() or len(text) > 19:
        raise BadRequest(f'limit: Invalid value: "{text[:40]}": must be a whole number')
    return max(0, int(text))


Page = tuple[Sequence[Object], ListMeta]


async def _first_page(app: Application, request: Request, wanted: Selection, limit: int, options: ListOptions) -> Page:
    resource, namespace = target_resource(request), request.target.namespace
    if options.exact and options.revision != app.objects.head(resource.stored):
        if options.revision > app.objects.head(resource.stored):
            raise status.future_revision(options.revision, app.objects.head(resource.stored))
        return await _collect(app, request, wanted, limit, at=options.revision, after="")
    if limit and wanted.matches_all:
        # The cost of a page depends on its size, not on the number of objects.
        page = await app.objects.page(resource.stored, namespace, at=None, after="", limit=limit)
        if not page.more:
            return page.items, ListMeta(str(page.revision))
        token = _continue(page.items[-1], page.revision, resource, namespace)
        return page.items, ListMeta(str(page.revision), token, page.remaining)
    found, revision = app.objects.list(
        resource.stored, namespace, fields=wanted.indexed_terms(resource.stored.type) or None
    )
    if not wanted.matches_all:
        found = [item for item in found if wanted.matches(resource.view_of(item, app.objects))]
    if not limit or len(found) <= limit:
        return found, ListMeta(str(revision))
    kept = found[:limit]
    return kept, ListMeta(str(revision), _continue(kept[-1], revision, resource, namespace), 0)


def _continue(last: Object, revision: int, resource: Resource, namespace: str) -> str:
    after = resource.stored.store_key(last.metadata.namespace, last.metadata.name)
    return _encode_continue(ContinueToken(revision, after, resource.kind.resource, namespace))


async def _next_page(app: Application, request: Request, wanted: Selection, limit: int, token: str) -> Page:
    resource, namespace = target_resource(request), request.target.namespace
    place = _decode_continue(token)
    if place.resource != resource.kind.resource or place.namespace != namespace:
        raise BadRequest("continue: the token belongs to another list; next: start the list again")
    if place.revision > app.objects.head(resource.stored):
        raise Expired("continue: the token is from before a restore of the store; next: start the list again")
    try:
        return await _collect(app, request, wanted, limit, at=place.revision, after=place.after)
    except Expired as old:
        message = "The provided continue parameter is too old to display a consistent list result; start the list again"
        raise Expired(message) from old


async def _collect(app: Application, request: Request, wanted: Selection, limit: int, *, at: int, after: str) -> Page:
    """Up to `limit` matching objects of one past revision, read from the store page by page."""
    resource, namespace = target_resource(request), request.target.namespace
    kept: list[Object] = []
    more = True
    remaining = 0
    while more and (not limit or len(kept) < limit):
        size = (
            min(limit - len(kept), LIST_PAGE_OBJECTS_MAX) if limit and wanted.matches_all else limits.LIST_PAGE_OBJECTS
        )
        page = await app.objects.page(resource.stored, namespace, at=at, after=after, limit=size)
        more, remaining = page.more, page.remaining
        for item in page.items:
            after = resource.stored.store_key(item.metadata.namespace, item.metadata.name)
            if wanted.matches(resource.view_of(item, app.objects)):
                kept.append(item)
                if limit and len(kept) == limit:
                    more = more or item is not page.items[-1]
                    break
        if not page.items:
            break
    if not (limit and len(kept) == limit and more):
        return kept, ListMeta(str(at))
    token = _encode_continue(ContinueToken(at, after, resource.kind.resource, namespace))
    return kept, ListMeta(str(at), token, remaining if wanted.matches_all else 0)


def _encode_continue(place: ContinueToken) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _decode_continue(token: str) -> ContinueToken:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        place = msgspec.json.decode(raw, type=ContinueToken)
    except (ValueError, msgspec.MsgspecError) as wrong:
        raise BadRequest("continue: invalid token; next: use the token of the previous page") from wrong
    if place.revision < 1 or place.revision > MAX_REVISION or not place.after.startswith("/"):
        raise BadRequest("continue: invalid token; next: use the token of the previous page")
    return place
