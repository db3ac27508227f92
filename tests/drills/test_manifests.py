"""Manifests in the source of drills, commands and the platform name only fields that exist.

The client sends them with `fieldValidation=Strict`, so an unknown field fails at run time. This test finds it earlier.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.model.kinds import ALL, BY_NAME

PACKAGES = ("drills", "cli", "platform")
SOURCES = sorted(path for name in PACKAGES for path in (Path(holdfast.__file__).parent / name).rglob("*.py"))


def literal_keys(node: ast.expr | None) -> set[str]:
    if not isinstance(node, ast.Dict):
        return set()
    return {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def entry(node: ast.Dict, name: str) -> ast.expr | None:
    return next((v for k, v in zip(node.keys, node.values, strict=True) if getattr(k, "value", None) == name), None)


def unknown_fields(source: str) -> Iterator[str]:
    """Unknown keys of `spec` in dict literals with a constant `kind` of ours, also if the spec is a local name."""
    tree = ast.parse(source)
    for scope in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module)):
        named = {
            target.id: node.value
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for node in (n for n in ast.walk(scope) if isinstance(n, ast.Dict)):
            kind = entry(node, "kind")
            spec = entry(node, "spec")
            if not isinstance(kind, ast.Constant) or kind.value not in BY_NAME or spec is None:
                continue
            value = named.get(spec.id) if isinstance(spec, ast.Name) else spec
            fields = msgspec.structs.fields(BY_NAME[kind.value].type)
            typed = next(field.type for field in fields if field.name == "spec")
            known = {field.encode_name for field in msgspec.structs.fields(typed)}
            yield from (f"{kind.value}.spec.{name}" for name in sorted(literal_keys(value) - known))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_manifests_in_source_name_only_existing_fields(path: Path) -> None:
    assert sorted(set(unknown_fields(path.read_text()))) == []


def test_unknown_field_of_a_manifest_is_found() -> None:
    assert {kind.name for kind in ALL} >= {"Quota"}
    inline = 'def f(x):\n    x({"kind": "Quota", "spec": {"hard": {}, "pendingReplicas": 1}})\n'
    named = 'def f(x):\n    spec = {"zone": "a", "kapacity": {}}\n    x({"kind": "Node", "spec": spec})\n'
    assert set(unknown_fields(inline)) == {"Quota.spec.pendingReplicas"}
    assert set(unknown_fields(named)) == {"Node.spec.kapacity"}
