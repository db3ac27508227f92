"""The parts of a platform and the samples it applies."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest

from holdfast.cli.commands.up import up
from holdfast.foundation.exit_codes import CommandError
from holdfast.model import kinds
from holdfast.platform import port_overlap
from holdfast.platform.layout import PORT_SPACING, Layout, Platform, design_platform
from holdfast.platform.programs import programs
from holdfast.platform.sample_manifests import (
    EXAMPLES,
    FILES,
    example_manifests,
    examples_folder,
    front_workload,
    load_manifests,
    region_manifests,
    sample_manifests,
)

THREE = ("us-east", "eu-central", "eu-west")


def default_platform() -> Platform:
    return design_platform(THREE, agents_per_region=2, port_base=7400, samples=True)


def test_ports_of_a_platform_do_not_overlap() -> None:
    platform = design_platform(THREE, agents_per_region=5, port_base=9000, samples=True)
    ports = [int(url.rpartition(":")[2]) for _, url in platform.cells]
    for region in platform.regions:
        for agent in region.agents:
            ports.extend(range(agent.ports[0], agent.ports[1] + 1))
    assert len(ports) == len(set(ports))
    assert min(ports) == 9000


def test_port_ranges_of_platforms_with_the_documented_spacing_do_not_overlap() -> None:
    platform = default_platform()
    assert platform.port_range == (7400, 7899), "docs/tour.md and `up --help` name it"
    assert platform.port_range[1] - platform.port_range[0] < PORT_SPACING


def test_overlap_with_a_running_platform_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, mine = Layout(tmp_path / "other"), Layout(tmp_path / "mine")
    other.prepare()
    other.save(default_platform())
    monkeypatch.setattr(port_overlap, "running_platforms", lambda: [other.root, tmp_path / "gone"])
    far, near = (
        design_platform(THREE, agents_per_region=2, port_base=base, samples=True)
        for base in (7400 + PORT_SPACING, 7600)
    )
    assert not [*port_overlap.overlap_warnings(mine, far), *port_overlap.overlap_warnings(other, default_platform())]
    (said,) = port_overlap.overlap_warnings(mine, near)
    assert f"ports 7600-8099 of this platform overlap with 7400-7899 of platform {other.root}" in said
    assert "next: holdfast up --port-base 8400" in said


def test_default_platform_has_documented_size() -> None:
    platform = default_platform()
    assert [r.name for r in platform.regions] == list(THREE)
    assert [r.port for r in platform.regions] == [7401, 7402, 7403]
    for region in platform.regions:
        assert {agent.zone for agent in region.agents} == set(region.zones)
        assert len(region.zones) == 2
        assert any(agent.gpus for agent in region.agents)
    assert platform.regions[0].residency == ("us",)
    assert platform.regions[1].residency == platform.regions[2].residency == ("eu",)


def test_port_base_without_enough_ports_is_refused() -> None:
    with pytest.raises(CommandError, match="not enough ports"):
        design_platform(THREE, agents_per_region=50, port_base=60000, samples=False)
    with pytest.raises(CommandError):
        design_platform(THREE, agents_per_region=1, port_base=80, samples=False)


def test_platform_is_loaded_as_saved(layout: Layout) -> None:
    layout.prepare()
    platform = default_platform()
    layout.save(platform)
    assert layout.load() == platform


@pytest.mark.parametrize("name", FILES)
def test_samples_are_valid_manifests(name: str) -> None:
    """Unknown fields are errors in an example."""
    for manifest in load_manifests(examples_folder() / name):
        kind = kinds.BY_NAME[manifest["kind"]]
        item = msgspec.convert(manifest, kind.type)
        if kind.default is not None:
            item = kind.default(item)
        assert list(kind.validate(item, None)) == []
        known = msgspec.to_builtins(item)
        assert unknown_fields(manifest.get("spec", {}), known.get("spec", {})) == []
        assert manifest["apiVersion"] == kind.api_version
        assert kind.namespaced == ("namespace" in manifest["metadata"])


def unknown_fields(manifest_value: object, started: object, path: str = "spec") -> list[str]:
    if isinstance(manifest_value, dict):
        if not isinstance(started, dict):
            return [path]
        return [
            wrong
            for key, value in manifest_value.items()
            for wrong in (unknown_fields(value, started[key], f"{path}.{key}") if key in started else [f"{path}.{key}"])
        ]
    return []


def test_every_example_file_is_applied() -> None:
    assert {path.name for path in examples_folder().glob("*.yaml")} == set(FILES)


def test_samples_reference_existing_objects() -> None:
    manifests, remarks = sample_manifests(default_platform())
    assert remarks == []
    tenants = {m["metadata"]["name"] for m in manifests if m["kind"] == "Tenant"}
    classes = {m["metadata"]["name"] for m in manifests if m["kind"] == "PriorityClass"}
    workloads = [m for m in manifests if m["kind"] == "Workload"]
    assert {w["metadata"]["name"] for w in workloads} == {
        "risk-api",
        "billing-api",
        "search-indexer",
        "fraud-batch",
        "analytics",
    }
    for workload in workloads:
        assert workload["metadata"]["namespace"] in tenants
        assert workload["spec"]["priorityClassName"] in classes


def test_samples_are_adapted_to_fewer_regions() -> None:
    platform = design_platform(("us-west",), agents_per_region=2, port_base=7400, samples=True)
    manifests, remarks = sample_manifests(platform)
    names = {m["metadata"]["name"] for m in manifests if m["kind"] == "Workload"}
    assert "billing-api" not in names
    risk = next(m for m in manifests if m["metadata"]["name"] == "risk-api")
    assert risk["spec"]["placement"]["spreadRegions"] == 1
    assert not [m for m in manifests if m["kind"] == "RecoveryBudget"]
    assert any("billing-api omitted" in remark for remark in remarks)


def test_regions_are_valid_objects() -> None:
    for manifest in region_manifests(default_platform()):
        kind = kinds.BY_NAME["Region"]
        assert list(kind.validate(msgspec.convert(manifest, kind.type), None)) == []


def test_programs_start_global_cell_first_and_agents_last(layout: Layout) -> None:
    started = programs(default_platform(), layout)
    assert [p.start_order for p in started] == sorted(p.start_order for p in started)
    assert len(started) == 1 + 3 + 6 + 2 + 1 + 1
    without = msgspec.structs.replace(default_platform(), provider=False)
    assert {p.name for p in started} - {p.name for p in programs(without, layout)} == {"provider"}
    assert len({p.name for p in started}) == len(started)
    assert all(argument.startswith("/") for p in started for argument in p.argv if argument.endswith((".crt", ".key")))


def test_agents_tell_tasks_the_local_name_server(tmp_path: Path) -> None:
    platform = default_platform()
    agents = [p.argv for p in programs(platform, Layout(tmp_path)) if p.name.startswith("agent-")]
    assert agents and all(argv[argv.index("--dns") + 1] == "127.0.0.1:7499" for argv in agents)


def test_examples_of_the_command_are_those_of_the_platform() -> None:
    (option,) = [p for p in up.params if p.name == "example"]
    assert isinstance(option.type, click.Choice) and set(option.type.choices) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_applied_tenant_first_and_without_its_variants(name: str) -> None:
    platform = design_platform(THREE, agents_per_region=2, port_base=7400, samples=False, example=name)
    manifests, remarks = example_manifests(platform, name)
    kinds_applied = [m["kind"] for m in manifests if m["kind"] != "PriorityClass"]
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert not remarks and kinds_applied[0] == "Tenant" and len(set(names)) == len(names)
    tenant, _, workload = front_workload(platform).partition("/")
    (front,) = [m for m in manifests if m["kind"] == "Workload" and m["metadata"]["name"] == workload]
    assert front["metadata"]["namespace"] == tenant and "image" not in front["spec"]["template"]


def test_example_fits_a_platform_of_one_region() -> None:
    platform = design_platform(("us-east",), agents_per_region=1, port_base=7400, samples=False, example="shop")
    manifests, remarks = example_manifests(platform, "shop")
    (web,) = [m for m in manifests if m["metadata"]["name"] == "web"]
    assert web["spec"]["placement"]["spreadRegions"] == 1
    assert any("RecoveryBudget shop-eu-west omitted" in remark for remark in remarks)


def test_platform_without_samples_has_no_workload_to_call() -> None:
    plain = design_platform(THREE, agents_per_region=2, port_base=7400, samples=False)
    assert front_workload(plain) == "" and front_workload(default_platform()) == "payments/risk-api"
