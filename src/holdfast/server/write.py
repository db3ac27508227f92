"""Create, update and patch. Each ends in one commit through the gate.

A patch reads, modifies and compare-and-swaps. It is retried on concurrent writes, unless the caller named a revision. A
write that changes nothing returns the object unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.errors import BadRequest, Cause, Conflict, Invalid, NotFound
from holdfast.model.meta import ManagedFields, Object
from holdfast.model.schema import object_schema
from holdfast.model.times import seconds_text
from holdfast.model.writes import Create, Update, Write
from holdfast.server import decoding, managed_fields, patches, status
from holdfast.server.managed_fields import APPLY, UPDATE, Owner, Owners
from holdfast.server.read import parse_revision, require_object, response_encoder, target_resource
from holdfast.server.request import Request, Response
from holdfast.server.request_bodies import decode_json, decode_object_body, decode_yaml
from holdfast.server.resources import Resource
from holdfast.server.server_side_apply import apply
from holdfast.server.trace_admission import with_context

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Attempts of a patch, delete or eviction that names no resourceVersion. After that, the client gets the conflict.
WRITE_ATTEMPTS = 8

MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
APPLY_TYPE, STRATEGIC = "application/apply-patch+yaml", "application/strategic-merge-patch+json"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


async def create(app: Application, request: Request) -> Response:
    resource = target_resource(request)
    shape = response_encoder(app, request)
    data = decode_object_body(request.content_type, await request.body())
    data = decoding.apply_url_identity(request, resource, data)
    if resource.kind.has_status:
        data.pop("status", None)
    data = decoding.validate_fields(request, resource, data)
    item = decoding.to_object(resource, data)
    if item.metadata.resource_version:
        raise BadRequest("resourceVersion should not be set on objects to be created")
    owners = _updated_owners(app, request, {}, None, data)
    item = _with_owners(item, owners)
    stored = await commit_one(app, request, Create(resource.to_store(item, None)))
    return Response(shape.encode_one(stored), 201)


async def update(app: Application, request: Request) -> Response:
    resource = target_resource(request)
    data = decode_object_body(request.content_type, await request.body())
    data = decoding.apply_url_identity(request, resource, data, name=request.target.name)
    only_status = request.target.subresource == "status"
    if resource.kind.has_status and not only_status:
        data.pop("status", None)
    data = decoding.validate_fields(request, resource, data)
    if not data["metadata"].get("resourceVersion") and not resource.accepts_strategic_patch:
        cause = Cause(
            "metadata.resourceVersion", "FieldValueInvalid", "Invalid value: 0: must be specified for an update"
        )
        raise status.invalid(resource.kind, request.target.name, (cause,))

    def change(before: Object, current: dict[str, Any]) -> IntendedObject:
        return IntendedObject(data, _initial_owners(before, data))

    return await update_with_retry(app, request, change)


class IntendedObject(msgspec.Struct, frozen=True):
    """The intended object. `owners` are the field owners to start from; if `final`, they are not computed any
    further.
    """

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
        case "application/strategic-merge-patch+json" if resource.accepts_strategic_patch:
            document = decode_json(body)
            how = patches.strategic_patch
        case "application/apply-patch+yaml" | "application/apply-patch+cbor":
            return await _apply(app, request, decode_yaml(body))
        case other:
            accepted = f"{JSON_PATCH}, {MERGE}, {APPLY_TYPE}" + (
                f", {STRATEGIC}" if resource.accepts_strategic_patch else ""
            )
            raise status.unsupported_media_type(other or "no type", accepted)
    if how is not patches.json_patch and not isinstance(document, dict):
        raise BadRequest("merge patch: must be an object")

    def change(before: Object, current: dict[str, Any]) -> IntendedObject:
        patched = how(current, document)
        if not isinstance(patched, dict):
            raise BadRequest("patch: the result is not an object")
        data = decoding.apply_url_identity(request, resource, patched, name=request.target.name)
        _keep_identity(data, current)
        checked = decoding.validate_fields(request, resource, data)
        return IntendedObject(checked, _initial_owners(before, checked))

    return await update_with_retry(app, request, change)


def _keep_identity(data: dict[str, Any], current: dict[str, Any]) -> None:
    """Restores identity fields that the patch left out: they cannot be removed."""
    meta, was = data["metadata"], current["metadata"]
    for name in ("uid", "resourceVersion", "creationTimestamp"):
        if not meta.get(name) and was.get(name):
            meta[name] = was[name]


async def update_with_retry(app: Application, request: Request, change: Any, *, shown: Any = None) -> Response:
    """Reads, modifies and commits. Retries on a conflict, unless the caller named a revision."""
    resource = target_resource(request)
    encode = (
        shown or response_encoder(app, request).encode_one
    )  # an unsupported response form is refused before anything is written
    for attempt in range(WRITE_ATTEMPTS):
        request.warnings.clear()
        before = require_object(app, request)
        current = resource.to_plain(before)
        changed: IntendedObject = change(before, current)
        write = _write(app, request, before, current, changed)
        expected = changed.data["metadata"].get("resourceVersion", "")
        named = bool(expected) and expected != before.metadata.resource_version
        if named:
            raise status.conflict(resource.kind, request.target.name)
        try:
            stored = await commit_one(app, request, write)
        except Conflict:
            if attempt == WRITE_ATTEMPTS - 1 or _has_revision(request, changed, before):
                raise
            continue
        return Response(encode(stored))
    raise status.conflict(resource.kind, request.target.name)


def _has_revision(request: Request, changed: IntendedObject, before: Object) -> bool:
    return request.method == "PUT" and bool(changed.data["metadata"].get("resourceVersion"))


def _write(
    app: Application, request: Request, before: Object, current: dict[str, Any], changed: IntendedObject
) -> Write:
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
    item = decoding.to_object(resource, data)
    owners = changed.owners
    if not changed.final:
        owners = _updated_owners(app, request, owners, current, data)
    meta = msgspec.structs.replace(item.metadata, resource_version=before.metadata.resource_version)
    if resource.tracks_managed_fields:
        meta = msgspec.structs.replace(meta, managed_fields=managed_fields.render(owners))
    item = msgspec.structs.replace(item, metadata=meta)
    stored_form = resource.to_store(item, before)
    return Update(stored_form, subresource="status" if subresource == "status" and resource.to_view is None else "")


async def commit_one(app: Application, request: Request, write: Write) -> Object:
    """One write through the gate. If the write removed the object, returns its last state."""
    if app.traces_requests:
        write = with_context(app, write)
    warnings: list[str] = []
    what = f"{request.id} {request.method} {request.path}"
    done = await app.gate.commit(
        request.principal, (write,), dry_run=decoding.is_dry_run(request), request=what, warnings=warnings
    )
    request.warnings += warnings
    stored = done.objects[0]
    if stored is not None:
        return stored
    assert isinstance(write, Update)  # removing the last finalizer removes the object
    return write.object


# managedFields ----------------------------------------------------------------------------------------------------


def _initial_owners(before: Object, data: dict[str, Any]) -> Owners:
    """The owners that a plain write starts from: those in its data, else the stored ones. `[]` and `[{}]` clear
    them.
    """
    given = data["metadata"].get("managedFields")
    if given is None:
        return managed_fields.parse(before.metadata.managed_fields)
    return managed_fields.parse(msgspec.convert(given, tuple[ManagedFields, ...]))


def _updated_owners(
    app: Application, request: Request, owners: Owners, old: dict[str, Any] | None, new: dict[str, Any]
) -> Owners:
    resource = target_resource(request)
    if not resource.tracks_managed_fields:
        return {}
    subresource = request.target.subresource
    return managed_fields.after_update(
        object_schema(resource.kind.type),
        owners,
        old,
        new,
        Owner(request.field_manager, UPDATE, subresource),
        now=seconds_text(app.ports.clock.now()),
        api_version=resource.kind.api_version,
        only_status=subresource == "status",
    )


def _with_owners(item: Object, owners: Owners) -> Object:
    meta = msgspec.structs.replace(item.metadata, managed_fields=managed_fields.render(owners))
    return msgspec.structs.replace(item, metadata=meta)


# Server-side apply ------------------------------------------------------------------------------------------------


async def _apply(app: Application, request: Request, document: Any) -> Response:
    resource = target_resource(request)
    if not isinstance(document, dict):
        raise BadRequest("applied configuration: must be an object")
    if not request.query.get("fieldManager"):
        cause = Cause("fieldManager", "FieldValueRequired", "Required value: is required for apply patch")
        raise Invalid("PatchOptions.meta.k8s.io is invalid: fieldManager: Required value", (cause,))
    config = decoding.apply_url_identity(request, resource, document, name=request.target.name)
    if config["metadata"].get("managedFields"):
        raise BadRequest("metadata.managedFields must be nil in an applied configuration")
    if resource.kind.has_status and request.target.subresource != "status":
        config.pop("status", None)
    config["metadata"].pop("creationTimestamp", None)
    config = decoding.validate_fields(request, resource, config)
    config["metadata"].pop("managedFields", None)
    manager = Owner(request.field_manager, APPLY, request.target.subresource)
    now = seconds_text(app.ports.clock.now())
    schema = object_schema(resource.kind.type)
    try:
        require_object(app, request)
    except NotFound:
        if request.target.subresource:
            raise
        return await _apply_new(app, request, config, manager, now)

    def change(before: Object, current: dict[str, Any]) -> IntendedObject:
        if "resourceVersion" in config["metadata"]:
            parse_revision(config["metadata"]["resourceVersion"])
        done = apply(
            schema,
            current,
            config,
            managed_fields.parse(before.metadata.managed_fields),
            manager,
            force=request.flag("force"),
            now=now,
            api_version=resource.kind.api_version,
            normalize=lambda data: _normalized(resource, data),
        )
        return IntendedObject(_update_last_applied(request, done.data, config), done.owners, final=True)

    return await update_with_retry(app, request, change)


async def _apply_new(app: Application, request: Request, config: dict[str, Any], manager: Owner, now: str) -> Response:
    resource = target_resource(request)
    shape = response_encoder(app, request)
    app.require_access(request, "create")  # the request was authorized as a patch
    if config["metadata"].get("uid"):
        raise status.conflict(resource.kind, request.target.name, "uid is set, but the object does not exist")
    schema = object_schema(resource.kind.type)
    done = apply(
        schema,
        None,
        config,
        {},
        manager,
        force=False,
        now=now,
        api_version=resource.kind.api_version,
        normalize=lambda data: data,
    )
    config["metadata"].pop("resourceVersion", None)
    item = decoding.to_object(resource, config)
    if resource.tracks_managed_fields:
        item = _with_owners(item, done.owners)
    stored = await commit_one(app, request, Create(resource.to_store(item, None)))
    return Response(shape.encode_one(stored), 201)


def _normalized(resource: Resource, data: dict[str, Any]) -> dict[str, Any]:
    """The data in its stored form: defaults filled in, quantities canonical."""
    item = decoding.to_object(resource, data)
    if resource.kind.default is not None:
        item = resource.kind.default(item)
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(item))
    return found


def _update_last_applied(request: Request, data: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Keeps kubectl's last-applied annotation up to date, so that client-side apply can be used again later.

    The update changes no field owner: the server writes it, not the applied configuration.
    """
    annotations = data["metadata"].get("annotations", {})
    if request.field_manager != "kubectl" or LAST_APPLIED not in annotations:
        return data
    text = msgspec.json.encode(config, order="sorted").decode() + "\n"
    meta = {**data["metadata"], "annotations": {**annotations, LAST_APPLIED: text}}
    return {**data, "metadata": meta}
