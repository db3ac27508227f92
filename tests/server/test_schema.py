"""The schema tree matches the types, and data that passes it always converts."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.field_notes import FIELD_NOTES
from holdfast.model.kinds import ALL, BY_NAME
from holdfast.model.regional_field_notes import REGIONAL_NOTES
from holdfast.model.schema import Findings, RepeatedKeys, Schema, is_clean, schema_of, walk
from holdfast.model.shared_field_notes import SHARED_NOTES
from holdfast.model.written_field_notes import WRITTEN_NOTES
from holdfast.server.resources import CORE_NODE, NAMESPACE, POD

from .conftest import workload
from .test_lists import bare

VIEWS = (CORE_NODE, NAMESPACE, POD)


def structs(schema: Schema, found: dict[str, Schema]) -> dict[str, Schema]:
    if schema.fields and schema.title not in found:
        found[schema.title] = schema
    for inner in (*schema.fields.values(), *filter(None, (schema.values, schema.items)), *schema.positions):
        structs(inner, found)
    return found


def test_field_notes_name_existing_fields() -> None:
    known: dict[str, Schema] = {}
    for kind in (*ALL, *VIEWS):
        structs(schema_of(kind), known)
    for type_name, notes in (*FIELD_NOTES.items(), *WRITTEN_NOTES.items(), *REGIONAL_NOTES.items()):
        assert type_name in known, type_name
        assert set(notes) <= set(known[type_name].fields), type_name
        assert all(note.endswith(".") for note in notes.values())
    assert SHARED_NOTES.keys() <= {field for schema in known.values() for field in schema.fields}
    assert all(note.endswith(".") for note in SHARED_NOTES.values())


def test_every_field_has_a_description() -> None:
    known: dict[str, Schema] = {}
    for kind in (*ALL, *VIEWS):
        structs(schema_of(kind), known)
    fields = {(title, name): field for title, schema in known.items() for name, field in schema.fields.items()}
    # `apiVersion` and `kind` of a whole object are described where the OpenAPI document is made.
    missing = [key for key, field in fields.items() if not field.description and key[1] not in ("apiVersion", "kind")]
    assert not missing, "describe it in model/field_notes.py or model/written_field_notes.py"


def test_every_kind_has_description() -> None:
    for kind in ALL:
        schema = schema_of(kind)
        assert schema.description == kind.note and kind.note.endswith("."), kind.name
        assert all(schema.fields[part].description for part in ("spec", "status") if part in schema.fields), kind.name


def test_bare_object_of_every_kind_passes_schema() -> None:
    for kind in ALL:
        data = msgspec.json.decode(msgspec.json.encode(bare(kind.type)))
        found = Findings()
        kept = walk(schema_of(kind), data, found)
        assert not found.causes and not found.unknown, (kind.name, found)
        assert msgspec.convert(kept, kind.type) == bare(kind.type)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "port", "cpu", "x"]), inner),
    max_leaves=6,
)


@st.composite
def damaged(draw: Any) -> Any:
    """A workload with any number of its parts replaced by junk."""
    item = workload()
    paths = [
        ("spec",),
        ("spec", "replicas"),
        ("spec", "template"),
        ("spec", "template", "ports"),
        ("metadata", "labels"),
        ("spec", "template", "resources"),
        ("spec", "placement"),
        ("spec", "recovery"),
        ("spec", "type"),
    ]
    for path in draw(st.lists(st.sampled_from(paths), max_size=3)):
        at = item
        for name in path[:-1]:
            at = at[name] if isinstance(at, dict) and isinstance(at.get(name), dict) else {}
        at[path[-1]] = draw(junk)
    return item


@settings(max_examples=400, deadline=None)
@given(damaged())
def test_data_that_passes_schema_converts_to_type(item: Any) -> None:
    kind = BY_NAME["Workload"]
    found = Findings()
    kept = walk(schema_of(kind), item, found)
    if not found.causes:
        plain = {key: value for key, value in kept.items() if key not in ("apiVersion", "kind")}
        msgspec.convert(plain, kind.type)


@settings(max_examples=400, deadline=None)
@given(damaged())
def test_clean_data_passes_schema_unchanged(item: Any) -> None:
    schema, found = schema_of(BY_NAME["Workload"]), Findings()
    kept = walk(schema, item, found)
    if is_clean(schema, item):
        assert not found.causes and not found.unknown and not found.repeated
        assert msgspec.json.encode(kept) == msgspec.json.encode(item)


def test_ordinary_body_is_clean() -> None:
    assert is_clean(schema_of(BY_NAME["Workload"]), workload())


def test_body_with_unknown_null_or_repeated_field_is_not_clean() -> None:
    schema = schema_of(BY_NAME["Workload"])
    spec = workload()["spec"]
    for wrong in ({**spec, "x": 1}, {**spec, "replicas": None}, {**spec, "replicas": True}, RepeatedKeys(spec)):
        assert not is_clean(schema, {**workload(), "spec": wrong}), wrong
