"""The manifests in examples/ are valid, reference existing tenants and run executable programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast.model.kinds import BY_NAME
from holdfast.platform.layout import design_platform
from holdfast.platform.sample_manifests import FILES, LAST_APPLIED, examples_folder, with_last_applied

FOLDER = examples_folder()
ALL = sorted(FOLDER.rglob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(FOLDER)))
def test_example_is_valid_and_applies_alone(path: Path) -> None:
    samples = {d["metadata"]["name"] for d in documents(FOLDER / "tenants.yaml")}
    # The parts of an application are applied together, with the file of its tenant first.
    files = [path, *(f for f in path.parent.glob("*.yaml") if f.name == "01-tenant.yaml")]
    if path.parent.parent != FOLDER.parent:
        files += path.parent.parent.glob("01-tenant.yaml")
    tenants = {d["metadata"]["name"] for file in files for d in documents(file) if d["kind"] == "Tenant"}
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


def test_billing_sample_limits_its_disruption() -> None:
    (billing,) = [d for d in documents(FOLDER / "workloads.yaml") if d["metadata"]["name"] == "billing-api"]
    assert billing["spec"]["disruption"] == {"maxUnavailable": 1}
    assert billing["spec"]["placement"] == {"residency": ["eu"]}


def test_billing_sample_has_nodes_and_quota_of_its_own() -> None:
    (tenant,) = [d for d in documents(FOLDER / "tenants.yaml") if d["metadata"]["name"] == "billing"]
    assert tenant["spec"]["isolation"] == "Dedicated"
    assert [d["metadata"]["name"] for d in documents(FOLDER / "quotas.yaml") if d["metadata"]["namespace"] == "billing"]
    names = ("us-east", "eu-central", "eu-west")
    platform = design_platform(names, agents_per_region=2, port_base=7400, samples=True)
    dedicated = {region.name: [a.name for a in region.agents if a.tenant == "billing"] for region in platform.regions}
    assert dedicated == {"us-east": [], "eu-central": ["eu-central-billing"], "eu-west": ["eu-west-billing"]}
    plain = design_platform(names, agents_per_region=2, port_base=7400, samples=False)
    assert not any(agent.tenant for region in plain.regions for agent in region.agents)
