"""Create, update, patch and delete. Every one of them ends in one commit through the gate.

A patch is a read, a change and a compare-and-swap; it is tried again while others write in between, unless the caller
named the revision it meant. A write that changes nothing is answered with the object as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model import limits
from holdfast.model.errors import BadRequest, Cause, Conflict, Invalid, NotFound
from holdfast.model.meta import ManagedFields, Object
from holdfast.model.schema import object_schema
from holdfast.model.times import seconds_text
from holdfast.model.writes import Create, Update, Write
from holdfast.server import admit, managed_fields, patches, status
from holdfast.server.apply import apply
from holdfast.server.bodies import decode_json, decode_object_body, decode_yaml
from holdfast.server.managed_fields import APPLY, UPDATE, Owner, Owners
from holdfast.server.reading import find, parse_revision, shaper, target_resource
from holdfast.server.request import Request, Response
from holdfast.server.resources import Resource

if TYPE_CHECKING:
    from holdfast.server.app import Application

MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
APPLY_TYPE, STRATEGIC = "application/apply-patch+yaml", "application/strategic-merge-patch+json"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


async def create(app: Application, request: Request) -> Response:
    resource = target_resource(request)
    shape = shaper(app, request)
    data = decode_object_body(request.content_type, await request.body())
    data = admit.identify(request, resource, data)
    if resource.kind.has_status:
        data.pop("status", None)
    data = admit.checked(request, resource, data)
    item = admit.typed(resource, data)
    if item.metadata.resource_version:
        raise BadRequest("resourceVersion should not be set on objects to be created")
    owners = _tracked(app, request, {}, None, data)
    item = _with_owners(item, owners)
    stored = await commit_one(app, request, Create(resource.to_store(item, None)))
    return Response(shape.one(stored), 201)


async def update(app: Application, request: Request) -> Response:
    resource = target_resource(request)
    data = decode_object_body(request.content_type, await request.body())
    data = admit.identify(request, resource, data, name=request.target.name)
    only_status = request.target.subresource == "status"
    if resource.kind.has_status and not only_status:
        data.pop("status", None)
    data = admit.checked(request, resource, data)
    if not data["metadata"].get("resourceVersion") and not resource.strategic:
        cause = Cause("metadata.resourceVersion", "FieldValueInvalid",
                      "Invalid value: 0: must be specified for an update")  # fmt: skip
        raise status.invalid(resource.kind, request.target.name, (cause,))

    def change(before: Object, current: dict[str, Any]) -> Changed:
        return Changed(data, _given_owners(before, data))

    return await change_object(app, request, change)


class Changed(msgspec.Struct, frozen=True):
    """What an object should become. `owners` are those to start from; `final` ones are not worked out any further."""

    data: dict[str, Any]
    owners: Owners
    final: bool = False


async def patch(app: Application, request: Request) -> Response:
    resource = target_resource(request)
    body = await request.body()
    how: Callable[[Any, Any], Any]
    match request.content_type:
        case "application/merge-patch+json":
            document = decode_json(body)
            how = patches.merge_patch
        case "application/json-patch+json":
            document = decode_json(body)
            how = patches.json_patch
        case "application/strategic-merge-patch+json" if resource.strategic:
            document = decode_json(body)
            how = patches.strategic_patch
        case "application/apply-patch+yaml" | "application/apply-patch+cbor":
            return await _apply(app, request, decode_yaml(body))
        case other:
            accepted = f"{JSON_PATCH}, {MERGE}, {APPLY_TYPE}" + (f", {STRATEGIC}" if resource.strategic else "")
            raise status.unsupported_media_type(other or "no type", accepted)
    if how is not patches.json_patch and not isinstance(document, dict):
        raise BadRequest("a merge patch must be an object")

    def change(before: Object, current: dict[str, Any]) -> Changed:
        patched = how(current, document)
        if not isinstance(patched, dict):
            raise BadRequest("the patch leaves no object")
        data = admit.identify(request, resource, patched, name=request.target.name)
        _keep_identity(data, current)
        checked = admit.checked(request, resource, data)
        return Changed(checked, _given_owners(before, checked))

    return await change_object(app, request, change)


def _keep_identity(data: dict[str, Any], current: dict[str, Any]) -> None:
    """What a patch leaves out by accident: the identity of the object cannot be patched away."""
    meta, was = data["metadata"], current["metadata"]
    for name in ("uid", "resourceVersion", "creationTimestamp"):
        if not meta.get(name) and was.get(name):
            meta[name] = was[name]


async def change_object(app: Application, request: Request, change: Any, *, shown: Any = None) -> Response:
    """Reads, changes and commits, again while others come first and the caller did not name a revision."""
    resource = target_resource(request)
    encode = shown or shaper(app, request).one  # what cannot be answered is refused before it is done
    for attempt in range(limits.WRITE_ATTEMPTS):
        request.warnings.clear()
        before = find(app, request)
        current = resource.plain(before)
        changed: Changed = change(before, current)
        write = _write(app, request, before, current, changed)
        meant = changed.data["metadata"].get("resourceVersion", "")
        named = bool(meant) and meant != before.metadata.resource_version
        if named:
            raise status.conflict(resource.kind, request.target.name)
        try:
            stored = await commit_one(app, request, write)
        except Conflict:
            if attempt == limits.WRITE_ATTEMPTS - 1 or _names_revision(request, changed, before):
                raise
            continue
        return Response(encode(stored))
    raise status.conflict(resource.kind, request.target.name)


def _names_revision(request: Request, changed: Changed, before: Object) -> bool:
    return request.method == "PUT" and bool(changed.data["metadata"].get("resourceVersion"))


def _write(app: Application, request: Request, before: Object, current: dict[str, Any], changed: Changed) -> Write:
    resource = target_resource(request)
    data = changed.data
    given_uid = data["metadata"].get("uid", "")
    if given_uid and given_uid != before.uid:
        why = f"Precondition failed: UID in precondition: {given_uid}, UID in object meta: {before.uid}"
        raise status.conflict(resource.kind, request.target.name, why)
    subresource = request.target.subresource
    if subresource == "status":
        data = {**current, "status": data.get("status", {})}
    elif resource.kind.has_status and "status" in current:
        data = {**data, "status": current["status"]}
    item = admit.typed(resource, data)
    owners = changed.owners
    if not changed.final:
        owners = _tracked(app, request, owners, current, data)
    meta = msgspec.structs.replace(item.metadata, resource_version=before.metadata.resource_version)
    if resource.tracked:
        meta = msgspec.structs.replace(meta, managed_fields=managed_fields.render(owners))
    item = msgspec.structs.replace(item, metadata=meta)
    stored_form = resource.to_store(item, before)
    return Update(stored_form, subresource="status" if subresource == "status" and resource.show is None else "")


async def commit_one(app: Application, request: Request, write: Write) -> Object:
    """One write through the gate. What a write took away for good is shown as it was last."""
    said: list[str] = []
    what = f"{request.id} {request.method} {request.path}"
    done = await app.gate.commit(
        request.principal, (write,), dry_run=admit.dry_run(request), request=what, warnings=said
    )  # fmt: skip
    request.warnings += said
    stored = done.objects[0]
    if stored is not None:
        return stored
    assert isinstance(write, Update)  # the removal of the last finalizer takes an object away
    return write.object


# managedFields ----------------------------------------------------------------------------------------------------


def _given_owners(before: Object, data: dict[str, Any]) -> Owners:
    """The owners a plain write starts from: those it sets itself, or those there are. `[]` and `[{}]` clear them."""
    given = data["metadata"].get("managedFields")
    if given is None:
        return managed_fields.parse(before.metadata.managed_fields)
    return managed_fields.parse(msgspec.convert(given, tuple[ManagedFields, ...]))


def _tracked(
    app: Application, request: Request, owners: Owners, old: dict[str, Any] | None, new: dict[str, Any]
) -> Owners:
    resource = target_resource(request)
    if not resource.tracked:
        return {}
    subresource = request.target.subresource
    return managed_fields.after_update(
        object_schema(resource.kind.type), owners, old, new, Owner(request.field_manager, UPDATE, subresource),
        now=seconds_text(app.ports.clock.now()), api_version=resource.kind.api_version,
        only_status=subresource == "status",
    )  # fmt: skip


def _with_owners(item: Object, owners: Owners) -> Object:
    meta = msgspec.structs.replace(item.metadata, managed_fields=managed_fields.render(owners))
    return msgspec.structs.replace(item, metadata=meta)


# Server-side apply ------------------------------------------------------------------------------------------------


async def _apply(app: Application, request: Request, document: Any) -> Response:
    resource = target_resource(request)
    if not isinstance(document, dict):
        raise BadRequest("the applied configuration must be an object")
    if not request.query.get("fieldManager"):
        cause = Cause("fieldManager", "FieldValueRequired", "Required value: is required for apply patch")
        raise Invalid("PatchOptions.meta.k8s.io is invalid: fieldManager: Required value", (cause,))
    config = admit.identify(request, resource, document, name=request.target.name)
    if config["metadata"].get("managedFields"):
        raise BadRequest("metadata.managedFields must be nil in an applied configuration")
    if resource.kind.has_status and request.target.subresource != "status":
        config.pop("status", None)
    config["metadata"].pop("creationTimestamp", None)
    config = admit.checked(request, resource, config)
    config["metadata"].pop("managedFields", None)
    manager = Owner(request.field_manager, APPLY, request.target.subresource)
    now = seconds_text(app.ports.clock.now())
    schema = object_schema(resource.kind.type)
    try:
        find(app, request)
    except NotFound:
        if request.target.subresource:
            raise
        return await _apply_new(app, request, config, manager, now)

    def change(before: Object, current: dict[str, Any]) -> Changed:
        if "resourceVersion" in config["metadata"]:
            parse_revision(config["metadata"]["resourceVersion"])
        done = apply(
            schema, current, config, managed_fields.parse(before.metadata.managed_fields), manager,
            force=request.flag("force"), now=now, api_version=resource.kind.api_version,
            normalize=lambda data: _normal(resource, data),
        )  # fmt: skip
        return Changed(_refreshed_annotation(request, done.data, config), done.owners, final=True)

    return await change_object(app, request, change)


async def _apply_new(
    app: Application, request: Request, config: dict[str, Any], manager: Owner, now: str
) -> Response:  # fmt: skip
    resource = target_resource(request)
    shape = shaper(app, request)
    if config["metadata"].get("uid"):
        raise status.conflict(resource.kind, request.target.name, "uid was given, and there is no such object")
    schema = object_schema(resource.kind.type)
    done = apply(
        schema, None, config, {}, manager, force=False, now=now, api_version=resource.kind.api_version,
        normalize=lambda data: data,
    )  # fmt: skip
    config["metadata"].pop("resourceVersion", None)
    item = admit.typed(resource, config)
    if resource.tracked:
        item = _with_owners(item, done.owners)
    stored = await commit_one(app, request, Create(resource.to_store(item, None)))
    return Response(shape.one(stored), 201)


def _normal(resource: Resource, data: dict[str, Any]) -> dict[str, Any]:
    """The data as it reads once stored: defaults filled in, quantities in canonical text."""
    item = admit.typed(resource, data)
    if resource.kind.default is not None:
        item = resource.kind.default(item)
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(item))
    return found


def _refreshed_annotation(request: Request, data: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """kubectl's own record of the last client-side apply is kept true, so that going back to it stays possible.

    It belongs to nobody new by that: it is the server's doing, not the applied configuration's.
    """
    annotations = data["metadata"].get("annotations", {})
    if request.field_manager != "kubectl" or LAST_APPLIED not in annotations:
        return data
    text = msgspec.json.encode(config, order="sorted").decode() + "\n"
    meta = {**data["metadata"], "annotations": {**annotations, LAST_APPLIED: text}}
    return {**data, "metadata": meta}
