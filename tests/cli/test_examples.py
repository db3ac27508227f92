"""The manifests in examples/ are true: each validates, names a tenant that exists, and runs a program that runs on."""

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
def test_an_example_is_valid_and_applies_by_itself(path: Path) -> None:
    samples = {d["metadata"]["name"] for d in documents(FOLDER / "tenants.yaml")}
    own = {d["metadata"]["name"] for d in documents(path) if d["kind"] == "Tenant"}
    for document in documents(path):
        kind = BY_NAME[document["kind"]]
        assert document["apiVersion"] == kind.api_version
        item = msgspec.convert(document, kind.type)
        if kind.default is not None:
            item = kind.default(item)
        assert [c.message for c in kind.validate(item, None)] == []
        if kind.namespaced:
            assert document["metadata"]["namespace"] in samples | own
    assert path.read_text().startswith("#"), "it begins with what it is for"


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(FOLDER)))
def test_an_examples_program_can_be_run(path: Path) -> None:
    for document in documents(path):
        command = document.get("spec", {}).get("template", {}).get("command", [])
        if command[:2] == ["python3", "-m"]:
            found = importlib.util.find_spec(command[2])
            assert found is not None and found.origin is not None
            assert '__name__ == "__main__"' in Path(found.origin).read_text(), f"{command[2]} would end at once"


def test_samples_are_applied_as_kubectl_would() -> None:
    for name in FILES:
        for document in documents(FOLDER / name):
            made = with_last_applied(document)
            assert msgspec.json.decode(made["metadata"]["annotations"][LAST_APPLIED]) == document
            assert LAST_APPLIED not in document["metadata"].get("annotations", {}), "the manifest itself is left alone"
