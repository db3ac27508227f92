"""The manifests in examples/ are valid, reference existing tenants and run executable programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast.model.kinds import BY_NAME
from holdfast.platform.sample_manifests import FILES, LAST_APPLIED, examples_folder, with_last_applied

FOLDER = examples_folder()
ALL = sorted(FOLDER.rglob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(FOLDER)))
def test_example_is_valid_and_applies_alone(path: Path) -> None:
    samples = {d["metadata"]["name"] for d in documents(FOLDER / "tenants.yaml")}
    tenants = {d["metadata"]["name"] for d in documents(path) if d["kind"] == "Tenant"}
    for document in documents(path):
        kind = BY_NAME[document["kind"]]
        assert document["apiVersion"] == kind.api_version
        item = msgspec.convert(document, kind.type)
        if kind.default is not None:
            item = kind.default(item)
        assert [c.message for c in kind.validate(item, None)] == []
        if kind.namespaced:
            assert document["metadata"]["namespace"] in samples | tenants
    assert path.read_text().startswith("#"), "it begins with a comment on its purpose"


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(FOLDER)))
def test_program_of_example_is_executable(path: Path) -> None:
    for document in documents(path):
        command = document.get("spec", {}).get("template", {}).get("command", [])
        if command[:2] == ["python3", "-m"]:
            found = importlib.util.find_spec(command[2])
            assert found is not None and found.origin is not None
            assert '__name__ == "__main__"' in Path(found.origin).read_text(), f"{command[2]} would exit at once"


def test_samples_are_applied_like_kubectl() -> None:
    for name in FILES:
        for document in documents(FOLDER / name):
            applied = with_last_applied(document)
            assert msgspec.json.decode(applied["metadata"]["annotations"][LAST_APPLIED]) == document
            assert LAST_APPLIED not in document["metadata"].get("annotations", {}), "the manifest itself is unchanged"
