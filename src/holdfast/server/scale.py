"""The scale subresource: autoscaling/v1 Scale, as `kubectl scale` and autoscalers use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.model.errors import BadRequest, Cause
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.meta import Object
from holdfast.server import managed_fields, patches, status
from holdfast.server.read import require_object, target_resource
from holdfast.server.request import Request, Response
from holdfast.server.request_bodies import decode_json, decode_object_body
from holdfast.server.write import JSON_PATCH, MERGE, IntendedObject, update_with_retry

if TYPE_CHECKING:
    from holdfast.server.app import Application


def scale_of(workload: Any) -> dict[str, Any]:
    meta = workload.metadata
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "creationTimestamp": meta.creation_timestamp,
        },
        "spec": {"replicas": workload.spec.replicas},
        "status": {
            "replicas": workload.status.summary.replicas,
            "selector": workload.status.summary.selector or f"{LABEL_WORKLOAD}={meta.name}",
        },
    }


def _encode_scale(workload: Object) -> bytes:
    return status.encode(scale_of(workload))


async def get_scale(app: Application, request: Request) -> Response:
    return Response(_encode_scale(require_object(app, request)))


async def update_scale(app: Application, request: Request) -> Response:
    data = decode_object_body(request.content_type, await request.body())
    return await _change_scale(app, request, lambda current: data)


async def patch_scale(app: Application, request: Request) -> Response:
    how: Callable[[Any, Any], Any]
    match request.content_type:
        case "application/merge-patch+json" | "application/strategic-merge-patch+json":
            document, how = decode_json(await request.body()), patches.merge_patch
        case "application/json-patch+json":
            document, how = decode_json(await request.body()), patches.json_patch
        case other:
            raise status.unsupported_media_type(other or "no type", f"{MERGE}, {JSON_PATCH}")
    return await _change_scale(app, request, lambda current: how(current, document))


async def _change_scale(app: Application, request: Request, wanted: Any) -> Response:
    resource = target_resource(request)

    def change(before: Object, current: dict[str, Any]) -> IntendedObject:
        scale = wanted(scale_of(before))
        if not isinstance(scale, dict) or not isinstance(scale.get("spec", {}), dict):
            raise BadRequest("Scale: must be an object with spec.replicas")
        replicas = scale.get("spec", {}).get("replicas", 0)
        if isinstance(replicas, bool) or not isinstance(replicas, int) or not 0 <= replicas < 2**31:
            rule = f"Invalid value: {str(replicas)[:40]}: must be a non-negative integer"
            cause = Cause("spec.replicas", "FieldValueInvalid", rule)
            raise status.invalid(resource.kind, request.target.name, (cause,))
        meta = scale.get("metadata") or {}
        if not isinstance(meta, dict) or meta.get("name") not in (None, "", request.target.name):
            raise BadRequest(f"metadata.name does not match the URL (expected {request.target.name})")
        given = meta.get("resourceVersion") or current["metadata"]["resourceVersion"]
        data = {
            **current,
            "metadata": {**current["metadata"], "resourceVersion": given},
            "spec": {**current["spec"], "replicas": replicas},
        }
        if meta.get("uid"):
            data["metadata"]["uid"] = meta["uid"]
        return IntendedObject(data, managed_fields.parse(before.metadata.managed_fields))

    return await update_with_retry(app, request, change, shown=_encode_scale)


def scale_schema() -> dict[str, Any]:
    """The OpenAPI schema of Scale."""
    count = {"type": "integer", "format": "int32", "default": 0}
    return {
        "type": "object",
        "description": "Desired and actual number of replicas of a workload.",
        "properties": {
            "apiVersion": {"type": "string", "description": "Always autoscaling/v1."},
            "kind": {"type": "string", "description": "Always Scale."},
            "metadata": {
                "type": "object",
                "description": "Metadata of the workload.",
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "spec": {"type": "object", "description": "Desired replicas.", "properties": {"replicas": count}},
            "status": {
                "type": "object",
                "description": "Serving replicas, and the selector of the workload's replicas.",
                "properties": {"replicas": count, "selector": {"type": "string"}},
            },
        },
        "x-kubernetes-group-version-kind": [{"group": "autoscaling", "version": "v1", "kind": "Scale"}],
    }
