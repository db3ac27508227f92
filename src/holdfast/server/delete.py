"""Deletes one object, or all that match. An object with finalizers is only marked; the response shows which
happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.foundation.batches import batches, send_divided
from holdfast.model import limits
from holdfast.model.binding import Binding
from holdfast.model.errors import BadRequest, Conflict, NotFound
from holdfast.model.meta import Key, Object
from holdfast.model.validation import unsupported
from holdfast.model.writes import Delete
from holdfast.server import decoding, eviction, status
from holdfast.server.read import parse_revision, requested_selection, require_object, response_encoder, target_resource
from holdfast.server.representations import ListMeta
from holdfast.server.request import Request, Response
from holdfast.server.request_bodies import decode_body
from holdfast.server.write import WRITE_ATTEMPTS

if TYPE_CHECKING:
    from holdfast.server.app import Application

PROPAGATION_POLICIES = ("Background", "Foreground", "Orphan")


class DeleteOptions(msgspec.Struct, frozen=True):
    propagation: str = "Background"
    uid: str = ""
    revision: int = 0
    dry_run: bool = False
    forced: bool = False
    """A grace period of 0, as `kubectl delete --force` sends it."""


async def delete(app: Application, request: Request) -> Response:
    resource = target_resource(request)
    shape = response_encoder(app, request)  # an unsupported response form is refused before anything is deleted
    options = await _options(request)
    name = request.target.name
    for attempt in range(WRITE_ATTEMPTS):
        before = require_object(app, request)
        if options.uid and options.uid != before.uid:
            why = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {before.uid}"
            raise status.conflict(resource.kind, name, why)
        shown_revision = resource.view_of(before, app.objects).revision
        if options.revision and options.revision != shown_revision:
            why = (
                f"Precondition failed: ResourceVersion in precondition: {options.revision}, "
                f"ResourceVersion in object meta: {shown_revision}"
            )
            raise status.conflict(resource.kind, name, why)
        if isinstance(before, Binding) and resource.to_view is not None:
            await eviction.delete_pod(app, request, before, forced=options.forced, dry_run=options.dry_run)
            return Response(status.success(resource.kind, name, before.uid))
        try:
            left = (await _commit(app, request, options, [before]))[0]
        except Conflict:
            if options.uid or options.revision or attempt == WRITE_ATTEMPTS - 1:
                raise
            continue
        if left is None:
            return Response(status.success(resource.kind, name, before.uid))
        return Response(shape.encode_one(left))
    raise status.conflict(resource.kind, name)


async def delete_collection(app: Application, request: Request) -> Response:
    """Deletes all that match now, in batches. Objects that vanish in the meantime are skipped."""
    resource = target_resource(request)
    shape = response_encoder(app, request)
    options = await _options(request)
    wanted = requested_selection(request)
    found, revision = app.objects.list(
        resource.stored, request.target.namespace, fields=wanted.indexed_terms(resource.stored.type) or None
    )
    found = [item for item in found if wanted.matches(resource.view_of(item, app.objects))]
    for batch in batches(found, limits.BATCH_WRITES_MAX):
        await send_divided(
            batch, lambda some: _commit(app, request, options, some), lambda item, gone: None, (NotFound, Conflict)
        )
    return Response(await shape.encode_list(found, ListMeta(str(revision))))


async def _commit(
    app: Application, request: Request, options: DeleteOptions, items: Sequence[Object]
) -> tuple[Object | None, ...]:
    resource = target_resource(request)
    writes = [
        Delete(
            resource.stored.name,
            Key(item.metadata.namespace, item.metadata.name),
            item.uid,
            if_revision=options.revision,
            propagation=options.propagation,
        )
        for item in items
    ]
    warnings: list[str] = []
    what = f"{request.id} {request.method} {request.path}"
    done = await app.gate.commit(request.principal, writes, dry_run=options.dry_run, request=what, warnings=warnings)
    request.warnings += warnings
    return done.objects


async def _options(request: Request) -> DeleteOptions:
    """DeleteOptions from the body or the query parameters, or defaults."""
    body = await request.body()
    data: Any = decode_body(request.content_type, body) if body.strip() else {}
    if not isinstance(data, dict):
        raise BadRequest("request body: must be a DeleteOptions object")
    propagation = data.get("propagationPolicy") or request.query.get("propagationPolicy", "")
    if not propagation and "orphanDependents" in data:
        propagation = "Orphan" if data["orphanDependents"] else "Background"
    propagation = propagation or "Background"
    if propagation not in PROPAGATION_POLICIES:
        cause = unsupported("propagationPolicy", str(propagation), PROPAGATION_POLICIES)
        raise status.HttpRefusal(
            422, "Invalid", f"DeleteOptions is invalid: propagationPolicy: {cause.message}", (cause,)
        )
    preconditions = data.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise BadRequest("DeleteOptions.preconditions: must be an object with uid and resourceVersion")
    uid, revision = preconditions.get("uid") or "", preconditions.get("resourceVersion") or ""
    if not isinstance(uid, str) or not isinstance(revision, str):
        raise BadRequest("DeleteOptions.preconditions: uid and resourceVersion must be strings")
    dry_run = data.get("dryRun") or []
    if not isinstance(dry_run, list) or any(value != "All" for value in dry_run):
        raise BadRequest('DeleteOptions.dryRun: must be ["All"] or empty')
    return DeleteOptions(
        propagation=propagation,
        uid=uid,
        revision=parse_revision(revision, "preconditions.resourceVersion"),
        dry_run=bool(dry_run) or decoding.is_dry_run(request),
        forced=data.get("gracePeriodSeconds") == 0 or request.query.get("gracePeriodSeconds") == "0",
    )
