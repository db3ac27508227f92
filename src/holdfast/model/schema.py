"""The schema of every kind as a tree, derived from its msgspec type.

OpenAPI documents, strict decoding and server-side apply read this tree, so that all of them agree with the types.
`walk` reports every invalid field, not only the first, and returns the data without unknown fields and nulls. If it
reports no cause, the returned data converts to the type.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect as shapes

from holdfast.model.artifact import Artifact
from holdfast.model.binding import DeviceClaim
from holdfast.model.config_references import ConfigFile, EnvValue
from holdfast.model.errors import Cause
from holdfast.model.field_notes import FIELD_NOTES
from holdfast.model.kinds import BY_TYPE, Kind
from holdfast.model.meta import Condition, Object, ObjectMeta, OwnerReference
from holdfast.model.node import Device
from holdfast.model.regional_field_notes import REGIONAL_NOTES
from holdfast.model.registry_login import PullSecret
from holdfast.model.secret import Secret
from holdfast.model.shared_field_notes import SHARED_NOTES
from holdfast.model.template import Port
from holdfast.model.validation import required, unsupported
from holdfast.model.written_field_notes import WRITTEN_NOTES

# Field errors reported for one object. Validation stops there: the object is refused anyway.
MAX_CAUSES = 100

INT64_MAX = 2**63 - 1
SPEC_NOTE = "Desired state."
STATUS_NOTE = "Observed state, written by controllers."

# Server-side apply merges lists of these types by key. Every other list is replaced as a whole.
LIST_KEYS: dict[type[Any], tuple[str, ...]] = {
    Condition: ("type",),
    OwnerReference: ("uid",),
    Port: ("name",),
    EnvValue: ("name",),
    PullSecret: ("name",),
    ConfigFile: ("path",),
    Artifact: ("name",),
    Device: ("id",),
    DeviceClaim: ("id",),
}
# Fields of the stored form that are no part of the API: clients can neither see nor send them.
NOT_SERVED = frozenset({(Secret, "sealed")})
LIST_SETS = frozenset({(ObjectMeta, "finalizers")})
# Time fields, which OpenAPI declares as `date-time`.
_TIMES = frozenset({"creationTimestamp", "deletionTimestamp", "lastTransitionTime", "time"})


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the tree. An empty `type` allows any value; `json_types` lists the types of a union."""

    type: str = ""
    title: str = ""
    format: str = ""
    description: str = ""
    """Description of the field; without one, the description of its type."""
    type_description: str = ""
    """The docstring of the type."""
    enum: tuple[str, ...] = ()
    default: Any = msgspec.UNSET
    fields: dict[str, Schema] = {}
    required: tuple[str, ...] = ()
    values: Schema | None = None
    items: Schema | None = None
    positions: tuple[Schema, ...] = ()
    json_types: tuple[str, ...] = ()
    list_type: str = ""
    list_keys: tuple[str, ...] = ()
    optional: bool = False
    """Whether the object may be absent. With server-side apply, the manager that adds it owns its presence."""


ANY_VALUE = Schema()
_TEXT = Schema(type="string")


class RepeatedKeys(dict[str, Any]):
    """An object with duplicate keys. The last value applies; `repeated` lists the keys."""

    repeated: tuple[str, ...] = ()


class Findings(msgspec.Struct):
    """Result of a walk: type errors, unknown fields and duplicate keys."""

    causes: list[Cause] = []
    unknown: list[str] = []
    repeated: list[str] = []

    @property
    def full(self) -> bool:
        """Whether the walk should stop: enough errors are known, and the data will be refused."""
        return len(self.causes) >= MAX_CAUSES

    def add_unknown(self, path: str) -> None:
        # Unknown fields may only cause a warning, so they never end the walk: known fields may follow.
        if len(self.unknown) < MAX_CAUSES:
            self.unknown.append(path)

    def add_repeated(self, paths: Iterable[str]) -> None:
        self.repeated += list(paths)[: MAX_CAUSES - len(self.repeated)]


_known: dict[type[Any], Schema] = {}


def schema_of(kind: Kind) -> Schema:
    """The schema of a kind as clients see it, with apiVersion and kind."""
    return object_schema(kind.type)


def object_schema(type_: type[Object]) -> Schema:
    found = _known.get(type_)
    if found is None:
        made = _struct(shapes.type_info(type_))
        fields = {"apiVersion": _TEXT, "kind": _TEXT, **made.fields}
        for name, note in (("spec", SPEC_NOTE), ("status", STATUS_NOTE)):
            if name in fields and not fields[name].description:
                fields[name] = msgspec.structs.replace(fields[name], description=note)
        row = BY_TYPE.get(type_)
        says = row.note if row is not None else made.type_description
        found = _known[type_] = msgspec.structs.replace(made, fields=fields, type_description=says, description=says)
    return found


def _struct(info: shapes.Type) -> Schema:
    assert isinstance(info, shapes.StructType)
    cached = _structs.get(info.cls)
    if cached is not None:
        return cached
    if info.array_like:
        positions = tuple(_schema(field.type) for field in info.fields)
        made = Schema(type="array", title=info.cls.__name__, positions=positions, list_type="atomic")
    else:
        served = [field for field in info.fields if (info.cls, field.name) not in NOT_SERVED]
        fields = {field.encode_name: _field(info.cls, field) for field in served}
        needed = tuple(field.encode_name for field in info.fields if field.required)
        made = Schema(
            type="object",
            title=info.cls.__name__,
            fields=fields,
            required=needed,
            type_description=_description(info.cls),
            description=_description(info.cls),
        )
    _structs[info.cls] = made
    return made


_structs: dict[type[Any], Schema] = {}


def _field(owner: type[Any], field: shapes.Field) -> Schema:
    made = _schema(field.type)
    changes: dict[str, Any] = {}
    if field.encode_name in _TIMES and made.type == "string":
        changes["format"] = "date-time"
    if (owner, field.name) in LIST_SETS:
        changes["list_type"] = "set"
    note = _note(owner.__name__, field.encode_name, made.description)
    if note:
        changes["description"] = note
    default = _default(field)
    if default is not msgspec.UNSET:
        changes["default"] = default
    return msgspec.structs.replace(made, **changes) if changes else made


def _note(owner: str, field: str, description: str) -> str:
    """The field's own description, else that of its type, else that of every field of the name."""
    for notes in (FIELD_NOTES, WRITTEN_NOTES, REGIONAL_NOTES):
        if field in notes.get(owner, {}):
            return notes[owner][field]
    return "" if description else SHARED_NOTES.get(field, "")


def _default(field: shapes.Field) -> Any:
    """The default shown to users: declared with `visible_default`, or a plain non-empty one."""
    if field.default_factory is not msgspec.NODEFAULT and field.default_factory not in (dict, list):
        value = field.default_factory()
        return msgspec.UNSET if isinstance(value, msgspec.Struct) else msgspec.to_builtins(value)
    if field.default not in (msgspec.NODEFAULT, None, "", (), 0, False):
        return msgspec.to_builtins(field.default)
    return msgspec.UNSET


def _schema(info: shapes.Type) -> Schema:
    match info:
        case shapes.StructType():
            return _struct(info)
        case shapes.StrType():
            return _TEXT
        case shapes.BytesType():
            return Schema(type="string", format="byte")
        case shapes.BoolType():
            return Schema(type="boolean")
        case shapes.IntType():
            return Schema(type="integer", format="int64")
        case shapes.FloatType():
            return Schema(type="number", format="double")
        case shapes.EnumType(cls=choices):
            return Schema(type="string", enum=tuple(str(c.value) for c in choices), description=_description(choices))
        case shapes.DictType(value_type=values):
            inner = _schema(values)
            return Schema(type="object", values=inner)
        case shapes.VarTupleType(item_type=item) | shapes.ListType(item_type=item):
            keys = LIST_KEYS.get(item.cls, ()) if isinstance(item, shapes.StructType) else ()
            kind_of_list = "map" if keys else "atomic"
            return Schema(type="array", items=_schema(item), list_type=kind_of_list, list_keys=keys)
        case shapes.TupleType(item_types=items):
            return Schema(type="array", positions=tuple(map(_schema, items)), list_type="atomic")
        case shapes.UnionType(types=types):
            return _union(types)
    return ANY_VALUE


def _union(types: tuple[shapes.Type, ...]) -> Schema:
    present = tuple(t for t in types if not isinstance(t, shapes.NoneType))
    if len(present) == 1:
        made = _schema(present[0])
        return msgspec.structs.replace(made, optional=True) if made.fields else made
    return Schema(json_types=tuple(_schema(t).type for t in present))


def _description(cls: type[Any]) -> str:
    """The docstring of the class itself as one paragraph; empty if only its parent has one."""
    text = cls.__dict__.get("__doc__") or ""
    return " ".join(inspect.cleandoc(text).split())


# Walking decoded data


def is_clean(schema: Schema, value: Any) -> bool:
    """Whether `walk` would find nothing and keep all of `value`. If not, `walk` says why.

    Most bodies are clean, and this takes a fraction of a walk: it builds neither paths nor a copy. It may return False
    for a rare clean value, such as a float that is an integer.
    """
    if schema.json_types:
        numeric = "number" in schema.json_types or "integer" in schema.json_types
        return (type(value) is str and "string" in schema.json_types) or (numeric and _is_clean_integer(value))
    match schema.type:
        case "string":
            return type(value) is str and (not schema.enum or value in schema.enum)
        case "object":
            return _is_clean_object(schema, value)
        case "boolean":
            return type(value) is bool
        case "integer":
            return _is_clean_integer(value)
        case "number":
            return _is_clean_integer(value) or (
                type(value) is float and math.isfinite(value) and abs(value) <= INT64_MAX
            )
        case "array":
            item = schema.items or ANY_VALUE
            return type(value) is list and not schema.positions and all(is_clean(item, inner) for inner in value)
    return value is not None and type(value) is not RepeatedKeys


def _is_clean_integer(value: Any) -> bool:
    return type(value) is int and abs(value) <= INT64_MAX


def _is_clean_object(schema: Schema, value: Any) -> bool:
    if type(value) is not dict:
        return False
    values, fields = schema.values, schema.fields
    for key, inner in value.items():
        field = values if values is not None else fields.get(key)
        if field is None:
            return False
        is_text = type(inner) is str and field.type == "string" and not field.enum  # most values: no call
        if not is_text and not is_clean(field, inner):
            return False
    return all(name in value for name in schema.required)


def walk(schema: Schema, value: Any, found: Findings, path: str = "") -> Any:
    """`value` without unknown fields and nulls. Errors are added to `found`."""
    if found.full:
        return value
    if schema.json_types:
        return _walk_either(schema, value, found, path)
    match schema.type:
        case "object":
            return _walk_object(schema, value, found, path)
        case "array":
            return _walk_array(schema, value, found, path)
        case "string":
            if not isinstance(value, str):
                return _wrong_type(schema, value, found, path)
            if schema.enum and value not in schema.enum:
                found.causes.append(unsupported(path, value, schema.enum))
            return value
        case "boolean":
            return value if isinstance(value, bool) else _wrong_type(schema, value, found, path)
        case "integer" | "number":
            return _walk_number(schema, value, found, path)
    _note_repeated(value, found, path)
    return value


def _walk_object(schema: Schema, value: Any, found: Findings, path: str) -> Any:
    if not isinstance(value, dict):
        return _wrong_type(schema, value, found, path)
    _note_repeated(value, found, path)
    kept: dict[str, Any] = {}
    for key, inner in value.items():
        where = f"{path}.{key}" if path else key
        field = schema.values if schema.values is not None else schema.fields.get(key)
        if field is None:
            found.add_unknown(where)
        elif inner is not None:
            kept[key] = walk(field, inner, found, where)
        if found.full:
            return kept
    for name in schema.required:
        if name not in kept:
            found.causes.append(required(f"{path}.{name}" if path else name))
    return kept


def _walk_array(schema: Schema, value: Any, found: Findings, path: str) -> Any:
    if not isinstance(value, list | tuple):
        return _wrong_type(schema, value, found, path)
    if schema.positions:
        if len(value) != len(schema.positions):
            message = f"Invalid value: {len(value)} items: expected exactly {len(schema.positions)}"
            found.causes.append(Cause(path, "FieldValueInvalid", message))
            return value
        pairs: Iterable[tuple[Schema, Any]] = zip(schema.positions, value, strict=True)
        return [walk(item, inner, found, f"{path}[{index}]") for index, (item, inner) in enumerate(pairs)]
    item = schema.items or ANY_VALUE
    kept = []
    for index, inner in enumerate(value):
        kept.append(walk(item, inner, found, f"{path}[{index}]"))
        if found.full:
            break
    return kept


def _walk_number(schema: Schema, value: Any, found: Findings, path: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _wrong_type(schema, value, found, path)
    if isinstance(value, float) and not math.isfinite(value):
        return _wrong_type(schema, value, found, path)
    if schema.type == "number":
        return value if abs(value) <= INT64_MAX else _out_of_range(value, found, path)
    if isinstance(value, float):
        if not value.is_integer() or abs(value) > 2**53:
            return _wrong_type(schema, value, found, path)
        value = int(value)
    return value if abs(value) <= INT64_MAX else _out_of_range(value, found, path)


def _walk_either(schema: Schema, value: Any, found: Findings, path: str) -> Any:
    if isinstance(value, str) and "string" in schema.json_types:
        return value
    numeric = "number" if "number" in schema.json_types else "integer"
    if numeric in schema.json_types and isinstance(value, int | float) and not isinstance(value, bool):
        return _walk_number(Schema(type=numeric), value, found, path)
    return _wrong_type(schema, value, found, path)


def _wrong_type(schema: Schema, value: Any, found: Findings, path: str) -> Any:
    wanted = schema.type or " or ".join(schema.json_types)
    message = f'Invalid value: "{json_type(value)}": {path or "the body"} must be of type {wanted}'
    found.causes.append(Cause(path, "FieldValueTypeInvalid", message))
    return value


def _out_of_range(value: float, found: Findings, path: str) -> Any:
    message = f"Invalid value: {str(value)[:40]}: must fit into 64 bits"
    found.causes.append(Cause(path, "FieldValueInvalid", message))
    return value


def _note_repeated(value: Any, found: Findings, path: str) -> None:
    if isinstance(value, RepeatedKeys):
        found.add_repeated(f"{path}.{key}" if path else key for key in value.repeated)


def json_type(value: Any) -> str:
    """JSON type name of a decoded value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
    return "object"
