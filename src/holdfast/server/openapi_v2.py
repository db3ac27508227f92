"""OpenAPI v2 as protobuf, for kubectl before 1.27: explain, client-side validation, diff and server-side dry run.

kubectl reads only the gnostic form of the document, whose field numbers are below. It is made from the v3 documents, so
both describe the same fields. References must stand alone in v2: a field's own description stays beside the reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

_REF_V3, _REF_V2 = "#/components/schemas/", "#/definitions/"
_EXTENSIONS = (
    "x-kubernetes-group-version-kind",
    "x-kubernetes-action",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
)
_OPERATIONS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}


def encode_document(documents: Iterable[dict[str, Any]]) -> bytes:
    """The v3 documents of all groups as one v2 document."""
    paths: list[bytes] = []
    definitions: dict[str, bytes] = {}
    for document in documents:
        for name, item in document["paths"].items():
            paths.append(_message(2, _text(1, name) + _message(2, _path_item(item))))
        for name, schema in document["components"]["schemas"].items():
            definitions.setdefault(name, _named_schema(name, schema))
    info = _text(1, "Holdfast") + _text(2, "v1")
    return b"".join(
        (_text(1, "2.0"), _message(2, info), _message(8, b"".join(paths)), _message(9, b"".join(definitions.values())))
    )


def _path_item(item: dict[str, Any]) -> bytes:
    return b"".join(_message(number, _operation(item[name])) for name, number in _OPERATIONS.items() if name in item)


def _operation(operation: dict[str, Any]) -> bytes:
    parameters = [
        _message(8, _message(1, _message(2, _message(3, _query_parameter(parameter)))))
        for parameter in operation["parameters"]
    ]
    response = _message(1, _text(1, "200") + _message(2, _message(1, _text(1, "OK"))))
    return b"".join(
        (_text(5, operation["operationId"]), *parameters, _message(9, response), _extensions(operation, 13))
    )


def _query_parameter(parameter: dict[str, Any]) -> bytes:
    return b"".join(
        (_text(2, "query"), _text(3, parameter["description"]), _text(4, parameter["name"]), _text(6, "string"))
    )


def _named_schema(name: str, schema: dict[str, Any]) -> bytes:
    return _message(1, _text(1, name) + _message(2, _schema(schema)))


def _schema(schema: dict[str, Any]) -> bytes:
    described = _text(4, schema.get("description", ""))
    reference = schema.get("$ref") or next((part["$ref"] for part in schema.get("allOf", ()) if "$ref" in part), "")
    if reference:
        return _text(1, reference.replace(_REF_V3, _REF_V2)) + described
    parts = [described]
    type_, form = schema.get("type", ""), schema.get("format", "")
    if schema.get("x-kubernetes-int-or-string"):
        type_, form = "string", "int-or-string"
    parts.append(_text(2, form))
    if type_:
        parts.append(_message(22, _text(1, type_)))
    parts += [_text(19, name) for name in schema.get("required", ())]
    if "additionalProperties" in schema:
        parts.append(_message(21, _message(1, _schema(schema["additionalProperties"]))))
    if "items" in schema:
        parts.append(_message(23, _message(1, _schema(schema["items"]))))
    if schema.get("properties"):
        named = (_named_schema(name, field) for name, field in schema["properties"].items())
        parts.append(_message(25, b"".join(named)))
    parts.append(_extensions(schema, 31))
    return b"".join(parts)


def _extensions(owner: dict[str, Any], number: int) -> bytes:
    """JSON is YAML, which the extension's value must be."""
    found = (name for name in _EXTENSIONS if name in owner)
    return b"".join(
        _message(number, _text(1, name) + _message(2, _bytes(2, msgspec.json.encode(owner[name])))) for name in found
    )


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode()) if value else b""


def _message(number: int, value: bytes) -> bytes:
    return _bytes(number, value)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
