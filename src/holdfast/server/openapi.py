"""OpenAPI documents, generated once from the schema tree. kubectl validates, explains and applies with them.

The root names each v3 document with a hash of its content, so that clients can cache it forever. The v2 document is
made from them on first use, for kubectl before 1.27.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.meta import GROUP, ObjectMeta
from holdfast.model.schema import Schema, object_schema
from holdfast.server import status
from holdfast.server.discovery import visible_resources
from holdfast.server.openapi_v2 import encode_document
from holdfast.server.request import Request, Response, json_response
from holdfast.server.resources import GROUPS, Resource
from holdfast.server.scale import scale_schema

if TYPE_CHECKING:
    from holdfast.server.app import Application

V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_FOREVER = [(b"cache-control", b"public, immutable"), (b"expires", b"Thu, 31 Dec 2099 23:59:59 GMT")]
_META_NAME = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_QUERY = {
    "dryRun": "All: nothing is stored, and the response shows the result that would be stored.",
    "fieldManager": "Name of the actor that makes this change.",
    "fieldValidation": "How to treat unknown or duplicate fields: Ignore, Warn or Strict.",
}
_PATCH_QUERY = {**_QUERY, "force": "Takes ownership of conflicting fields."}
_LIST_QUERY = {
    "labelSelector": "Restricts the list by labels.",
    "fieldSelector": "Restricts the list by fields.",
    "limit": "Maximum number of objects in one response.",
    "continue": "Token of the previous page.",
    "resourceVersion": "Revision to read, or to watch from.",
    "watch": "Returns a stream of changes.",
}


class OpenApiDocuments:
    """All documents of one cell, with their hashes."""

    def __init__(self, cell: str) -> None:
        self.by_path: dict[str, bytes] = {}
        self.hashes: dict[str, str] = {}
        self._v2 = b""
        self._cell = cell
        for group in GROUPS:
            path = f"apis/{group}/v1" if group else "api/v1"
            body = msgspec.json.encode(document(cell, group))
            self.by_path[path] = body
            self.hashes[path] = hashlib.sha256(body).hexdigest()[:32].upper()
        self.root = {
            "paths": {
                path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"} for path, digest in self.hashes.items()
            }
        }

    def v2(self) -> bytes:
        if not self._v2:
            self._v2 = encode_document(document(self._cell, group) for group in GROUPS)
        return self._v2


async def openapi_root(app: Application, request: Request) -> Response:
    return json_response(app.openapi_documents.root)


async def group_document(app: Application, request: Request) -> Response:
    """`/openapi/v3/api/v1` and `/openapi/v3/apis/{group}/{version}`"""
    parameters = request.target.parameters
    path = f"apis/{parameters['group']}/{parameters['version']}" if "group" in parameters else "api/v1"
    body = app.openapi_documents.by_path.get(path)
    if body is None:
        raise status.HttpRefusal(404, "NotFound", "OpenAPI document of this group and version: not found")
    digest = app.openapi_documents.hashes[path]
    etag = f'"{digest}"'
    headers = [(b"etag", etag.encode()), (b"vary", b"Accept")]
    if request.query.get("hash") == digest:
        headers += _FOREVER
    if request.headers.get("if-none-match", "") == etag:
        return Response(b"", 304, headers=headers)
    return Response(body, headers=headers)


async def openapi_v2(app: Application, request: Request) -> Response:
    """Only as protobuf: no client reads v2 as JSON."""
    return Response(app.openapi_documents.v2(), content_type=V2_TYPE)


# Documents -----------------------------------------------------------------------------------------------------


def document(cell: str, group: str) -> dict[str, Any]:
    components: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for resource in visible_resources(cell, group):
        name = _define_kind(resource, components)
        paths.update(_paths(resource, name))
    if any(resource.kind.scalable for resource in visible_resources(cell, group)):
        components["io.k8s.api.autoscaling.v1.Scale"] = scale_schema()
    return {
        "openapi": "3.0.0",
        "info": {"title": "Holdfast", "version": "v1", "description": "A multi-region scheduler control plane."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
        },
    }


def _prefix(group: str) -> str:
    return "dev.holdfast.v1." if group == GROUP else "io.k8s.api.core.v1." if not group else f"io.k8s.{group}.v1."


def _define_kind(resource: Resource, components: dict[str, Any]) -> str:
    kind = resource.kind
    schema = object_schema(kind.type)
    name = _define(schema, _prefix(kind.group), components)
    components[name]["x-kubernetes-group-version-kind"] = [_gvk(resource)]
    # For `kubectl explain`: the docstrings of these fields are for developers.
    components[name]["properties"]["apiVersion"]["description"] = f"Always {kind.api_version}."
    components[name]["properties"]["kind"]["description"] = f"Always {kind.name}."
    listed = f"{name}List"
    components[listed] = {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "items": {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}},
        },
        "x-kubernetes-group-version-kind": [{**_gvk(resource), "kind": f"{kind.name}List"}],
    }
    return name


def _define(schema: Schema, prefix: str, components: dict[str, Any]) -> str:
    """Adds an object's schema to the components and returns its name there."""
    name = _META_NAME if schema.title == ObjectMeta.__name__ else prefix + schema.title
    if name in components:
        return name
    made: dict[str, Any] = {"type": "object"}
    components[name] = made
    if schema.type_description:
        made["description"] = schema.type_description
    made["properties"] = {key: _render(field, prefix, components) for key, field in schema.fields.items()}
    if schema.required and name != _META_NAME:
        made["required"] = [field for field in schema.required if field != "metadata"] or None
        if made["required"] is None:
            del made["required"]
    return name


def _render(schema: Schema, prefix: str, components: dict[str, Any]) -> dict[str, Any]:
    if schema.type == "object" and schema.fields:
        made: dict[str, Any] = {"allOf": [{"$ref": f"#/components/schemas/{_define(schema, prefix, components)}"}]}
        if schema.description:
            made["description"] = schema.description
        made["default"] = {}
        return made
    made = {}
    if schema.json_types:
        made["x-kubernetes-int-or-string"] = True
        made["oneOf"] = [{"type": name} for name in schema.json_types if name != "integer"]
    elif schema.type:
        made["type"] = schema.type
    else:
        made["x-kubernetes-preserve-unknown-fields"] = True
    for key, value in (("format", schema.format), ("description", schema.description)):
        if value:
            made[key] = value
    if schema.enum:
        made["enum"] = list(schema.enum)
    if schema.default is not msgspec.UNSET:
        made["default"] = schema.default
    if schema.values is not None:
        made["additionalProperties"] = _item(schema.values, prefix, components)
    if schema.type == "array":
        item = schema.items or (schema.positions[0] if schema.positions else Schema())
        made["items"] = _item(item, prefix, components)
        made["x-kubernetes-list-type"] = schema.list_type or "atomic"
        if schema.list_keys:
            made["x-kubernetes-list-map-keys"] = list(schema.list_keys)
        if schema.positions:
            made["minItems"] = made["maxItems"] = len(schema.positions)
    return made


def _item(schema: Schema, prefix: str, components: dict[str, Any]) -> dict[str, Any]:
    """Without the description of its type: kubectl explain prints the type's behind that of the item."""
    made = _render(schema, prefix, components)
    if schema.fields and schema.description == schema.type_description:
        made.pop("description", None)
    return made


def _gvk(resource: Resource) -> dict[str, str]:
    return {"group": resource.kind.group, "version": "v1", "kind": resource.kind.name}


def _paths(resource: Resource, name: str) -> dict[str, Any]:
    kind = resource.kind
    base = f"/apis/{kind.group}/v1" if kind.group else "/api/v1"
    one = f"{base}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{base}/{kind.plural}"
    made: dict[str, Any] = {
        one: {
            "parameters": _path_parameters(kind.namespaced, named=False),
            "get": _operation(resource, "list", f"{name}List", _LIST_QUERY),
            "post": _operation(resource, "create", name, _QUERY, body=name),
            "delete": _operation(resource, "deletecollection", f"{name}List", _LIST_QUERY),
        },
        f"{one}/{{name}}": {
            "parameters": _path_parameters(kind.namespaced, named=True),
            "get": _operation(resource, "get", name, {}),
            "put": _operation(resource, "update", name, _QUERY, body=name),
            "patch": _operation(resource, "patch", name, _PATCH_QUERY, patch=True),
            "delete": _operation(resource, "delete", name, {"dryRun": _QUERY["dryRun"]}),
        },
    }
    if kind.namespaced:
        made[f"{base}/{kind.plural}"] = {"get": _operation(resource, "listAll", f"{name}List", _LIST_QUERY)}
    for below in resource.subresources:
        schema_name = "io.k8s.api.autoscaling.v1.Scale" if below == "scale" else name
        made[f"{one}/{{name}}/{below}"] = {
            "parameters": _path_parameters(kind.namespaced, named=True),
            "put": _operation(resource, f"update{below}", schema_name, _QUERY, body=schema_name),
        }
        if below != "finalize":
            made[f"{one}/{{name}}/{below}"] |= {
                "get": _operation(resource, f"get{below}", schema_name, {}),
                "patch": _operation(resource, f"patch{below}", schema_name, _PATCH_QUERY, patch=True),
            }
    return made


def _path_parameters(namespaced: bool, *, named: bool) -> list[dict[str, Any]]:
    names = [*(["namespace"] if namespaced else []), *(["name"] if named else [])]
    return [{"name": n, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for n in names]


def _operation(
    resource: Resource, verb: str, schema_name: str, query: dict[str, str], *, body: str = "", patch: bool = False
) -> dict[str, Any]:
    """One operation. kubectl finds the kind of a path by the extension, and reads the query parameters from PATCH."""
    scaled = schema_name.endswith(".Scale")
    made: dict[str, Any] = {
        "operationId": f"{verb}{resource.kind.name}",
        "parameters": [_query_parameter(key, description) for key, description in query.items()],
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": _ref(schema_name)}}},
            "default": {"description": "A Status object with the error."},
        },
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}
        if scaled
        else _gvk(resource),
    }
    if body:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    if patch:
        types = ("application/merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml")
        free = {"x-kubernetes-preserve-unknown-fields": True}
        made["requestBody"] = {"required": True, "content": {name: {"schema": free} for name in types}}
    return made


def _query_parameter(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
