"""What `kubectl explain --recursive` shows: every field of every kind is described, in both versions of OpenAPI."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.server.kubernetes_protobuf import _FieldBudget, _fields
from holdfast.server.openapi import OpenApiDocuments, document
from holdfast.server.resources import GROUPS

CELLS = ("global", "west")


def undescribed(schemas: dict[str, Any]) -> list[str]:
    found = []
    for name, schema in schemas.items():
        if name.endswith("List"):
            continue
        for field, shown in schema.get("properties", {}).items():
            parts = [part["$ref"] for part in shown.get("allOf", ()) if "$ref" in part]
            below = schemas[parts[0].rpartition("/")[2]] if parts else {}
            if not shown.get("description") and not below.get("description"):
                found.append(f"{name.rpartition('.')[2]}.{field}")
    return found


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("group", GROUPS)
def test_every_field_of_every_kind_is_described(cell: str, group: str) -> None:
    schemas = document(cell, group)["components"]["schemas"]
    assert schemas and undescribed(schemas) == []


@pytest.mark.parametrize("cell", CELLS)
def test_v2_document_has_the_definitions_and_paths_of_all_groups(cell: str) -> None:
    body = OpenApiDocuments(cell).v2()
    top: dict[int, bytes] = {}
    for number, value in _fields(body, _FieldBudget(100)):
        assert isinstance(value, bytes)
        top[number] = value
    assert top[1] == b"2.0"
    names = set()
    for _, entry in _fields(top[9], _FieldBudget(10_000)):
        assert isinstance(entry, bytes)
        named = next(value for number, value in _fields(entry, _FieldBudget(10)) if number == 1)
        assert isinstance(named, bytes)
        names.add(named.decode())
    wanted = {name for group in GROUPS for name in document(cell, group)["components"]["schemas"]}
    assert names == wanted
    assert b"dryRun" in top[8] and len(body) < 3_000_000
