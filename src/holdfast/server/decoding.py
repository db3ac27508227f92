"""Decodes request data to a typed object: apiVersion and kind, names, strict field validation, types.

Reports all errors at once. The result converts to the kind's type; the gate decides whether the write is allowed and
valid.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.model.errors import BadRequest, Cause, Invalid
from holdfast.model.meta import Object
from holdfast.model.schema import Findings, RepeatedKeys, is_clean, object_schema, walk
from holdfast.model.secret import KEY_CHARS_MAX
from holdfast.model.validation import unsupported
from holdfast.server import status
from holdfast.server.request import Request
from holdfast.server.resources import Resource

FIELD_VALIDATION_MODES = ("Ignore", "Warn", "Strict")


def is_dry_run(request: Request) -> bool:
    value = request.query.get("dryRun", "")
    if value not in ("", "All"):
        raise _bad_option("dryRun", value, ("All",))
    return value == "All"


def _bad_option(name: str, value: str, choices: tuple[str, ...]) -> Invalid:
    cause = unsupported(name, value, choices)
    return Invalid(f"request options are invalid: {name}: {cause.message}", (cause,))


def field_validation(request: Request) -> str:
    value = request.query.get("fieldValidation", "") or "Warn"
    if value not in FIELD_VALIDATION_MODES:
        raise _bad_option("fieldValidation", value, FIELD_VALIDATION_MODES)
    return value


def apply_url_identity(request: Request, resource: Resource, data: dict[str, Any], *, name: str = "") -> dict[str, Any]:
    """The data with apiVersion, kind, namespace and name filled in from the URL. Raises BadRequest on a
    contradiction.
    """
    kind = resource.kind
    for field, wanted in (("apiVersion", kind.api_version), ("kind", kind.name)):
        found = data.get(field) or wanted
        if found != wanted:
            what = "API version" if field == "apiVersion" else "kind"
            raise BadRequest(f"{what} does not match the URL (expected {wanted}, found {str(found)[:80]})")
    meta = data.get("metadata")
    if meta is None:
        meta = {}
    if not isinstance(meta, dict):
        raise BadRequest("metadata: must be an object with a name")
    namespace = request.target.namespace
    if meta.get("namespace") not in (None, "", namespace):
        message = "the namespace of the provided object does not match the namespace sent on the request"
        raise BadRequest(message)
    if name and meta.get("name") not in (None, "", name):
        found_name = str(meta["name"])[:80]
        raise BadRequest(f"metadata.name does not match the URL (expected {name}, found {found_name})")
    metadata = _copied(meta)
    metadata.update({"namespace": namespace} if namespace else {}, **({"name": name} if name else {}))
    made = _copied(data)
    made.update(apiVersion=kind.api_version, kind=kind.name, metadata=metadata)
    return made


def _copied(data: dict[str, Any]) -> dict[str, Any]:
    """A copy that keeps the list of duplicate keys."""
    if not isinstance(data, RepeatedKeys):
        return dict(data)
    made = RepeatedKeys(data)
    made.repeated = data.repeated
    return made


def validate_fields(request: Request, resource: Resource, data: dict[str, Any]) -> dict[str, Any]:
    """The data without unknown fields, which are dropped, reported or refused as `fieldValidation` says. Raises all
    type errors.
    """
    strictness = field_validation(request)
    found = Findings()
    data = _with_plain_content(resource, data, found)
    schema = object_schema(resource.kind.type)
    kept: dict[str, Any] = data if is_clean(schema, data) else walk(schema, data, found)
    problems = [f'unknown field "{path}"' for path in found.unknown]
    problems += [f'duplicate field "{path}"' for path in found.repeated]
    if problems and strictness == "Strict":
        kind = resource.kind
        listed = ", ".join(problems)
        message = f'{kind.name} in version "v1" cannot be handled as a {kind.name}: strict decoding error: {listed}'
        raise BadRequest(message)
    if strictness == "Warn":
        request.warnings += problems
    if found.causes:
        raise status.invalid(resource.kind, _name_of(data), tuple(found.causes))
    return kept


def _with_plain_content(resource: Resource, data: dict[str, Any], found: Findings) -> dict[str, Any]:
    """The data of a Secret or ConfigMap in its stored form, so that field owners and patches name stored fields.

    `stringData` of a Secret becomes `data`. Base64 may be wrapped in lines, as in Kubernetes.
    """
    if resource.kind.group or resource.kind.name not in ("Secret", "ConfigMap"):
        return data
    made = _copied(data)
    field = "data" if resource.kind.name == "Secret" else "binaryData"
    content, texts = made.get(field), made.get("stringData")
    found.causes += _base64_causes(field, content)
    if isinstance(content, dict):
        # A key without a value is an empty value, as kubectl writes it.
        made[field] = {
            k: "".join(v.split()) if isinstance(v, str) else "" if v is None else v for k, v in content.items()
        }
    if field == "data" and isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values()):
        del made["stringData"]
        encoded = {key: base64.b64encode(text.encode(errors="replace")).decode() for key, text in texts.items()}
        made["data"] = {**made[field], **encoded} if isinstance(content, dict) else encoded
    return made


def _base64_causes(field: str, content: Any) -> Iterator[Cause]:
    for key, text in content.items() if isinstance(content, dict) else ():
        try:
            base64.b64decode("".join(text.split()) if isinstance(text, str) else "", validate=True)
        except ValueError:
            yield Cause(f"{field}[{key[:KEY_CHARS_MAX]}]", "FieldValueInvalid", "Invalid value: must be base64")


def to_object(resource: Resource, data: dict[str, Any]) -> Object:
    """The typed object of data that passed `validate_fields`."""
    plain = {key: value for key, value in data.items() if key not in ("apiVersion", "kind")}
    try:
        item: Object = msgspec.convert(plain, resource.kind.type)
    except (msgspec.ValidationError, RecursionError, OverflowError) as wrong:
        cause = Cause("", "FieldValueInvalid", str(wrong))
        raise status.invalid(resource.kind, _name_of(data), (cause,)) from wrong
    return item


def _name_of(data: dict[str, Any]) -> str:
    meta = data.get("metadata")
    name = meta.get("name", "") if isinstance(meta, dict) else ""
    return name if isinstance(name, str) else ""
