"""The sample objects of `holdfast up`: read from examples/, adapted to the platform's regions, applied once.

The files are plain manifests for `kubectl apply -f`. A sample that fits no region is omitted with a remark, so that a
platform of one region also starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import yaml

import holdfast
from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError
from holdfast.model import kinds
from holdfast.model.placement_eligibility import satisfies_residency
from holdfast.model.placement_rules import PlacementRules
from holdfast.platform.layout import Platform

MANAGER = "holdfast-up"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# In this order: tenants before their objects, priority classes before workloads that use them.
FILES = ("priorities.yaml", "tenants.yaml", "policy.yaml", "quotas.yaml", "budgets.yaml", "workloads.yaml")

Manifest = dict[str, Any]


class Example(msgspec.Struct, frozen=True):
    """An application for `holdfast up --example`. `front` is the workload that users call, as TENANT/WORKLOAD."""

    folder: str
    front: str


EXAMPLES = {"shop": Example(folder="shop", front="shop/web")}
SAMPLES_FRONT = "payments/risk-api"


def examples_folder() -> Path:
    """The examples directory: inside the installed package, or at the top of a checkout."""
    package = Path(holdfast.__file__).parent
    for folder in (package / "examples", package.parent.parent / "examples"):
        if folder.is_dir():
            return folder
    raise CommandError(
        f"samples: the examples directory is missing (expected beside {package})",
        next_step="holdfast up --no-samples, or install holdfast again",
    )


def load_manifests(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def region_manifests(platform: Platform) -> list[Manifest]:
    """The Region objects of the platform."""
    return [
        {
            "apiVersion": "holdfast.dev/v1",
            "kind": "Region",
            "metadata": {"name": region.name},
            "spec": {
                "zones": list(region.zones),
                "residency": list(region.residency),
                "endpoint": region.url,
                "cost": region.cost,
                # Short, because on one machine reports and witness probes are not delayed by a network.
                "lostAfterSeconds": 12,
            },
        }
        for region in platform.regions
    ]


def sample_manifests(platform: Platform) -> tuple[list[Manifest], list[str]]:
    """The samples that fit the platform, in the order to apply them, and remarks on changed or omitted ones."""
    return _fitting(platform, [examples_folder() / name for name in FILES])


def example_manifests(platform: Platform, name: str) -> tuple[list[Manifest], list[str]]:
    """The files of an example by name, as `kubectl apply -f FOLDER` reads them, after the priority classes."""
    folder = examples_folder()
    return _fitting(platform, [folder / "priorities.yaml", *sorted((folder / EXAMPLES[name].folder).glob("*.yaml"))])


def front_workload(platform: Platform) -> str:
    """TENANT/WORKLOAD that a user of this platform can call; empty without samples."""
    if platform.example in EXAMPLES:
        return EXAMPLES[platform.example].front
    return SAMPLES_FRONT if platform.samples else ""


def _fitting(platform: Platform, paths: list[Path]) -> tuple[list[Manifest], list[str]]:
    fitting: list[Manifest] = []
    remarks: list[str] = []
    for path in paths:
        for manifest in load_manifests(path):
            fitted, remark = fit_to_regions(manifest, platform)
            if fitted is not None:
                fitting.append(with_last_applied(fitted))
            if remark:
                remarks.append(remark)
    return fitting, remarks


def fit_to_regions(manifest: Manifest, platform: Platform) -> tuple[Manifest | None, str]:
    """The sample adapted to the platform's regions and an optional remark. None if no region can hold it."""
    what = f"{manifest['kind']} {manifest['metadata']['name']}"
    names = {region.name for region in platform.regions}
    spec = manifest.get("spec", {})
    if manifest["kind"] == "RecoveryBudget" and spec["region"] not in names:
        return None, f"{what} omitted: region {spec['region']} does not exist"
    if manifest["kind"] != "Workload":
        return manifest, ""
    rules = spec.get("placement", {})
    residency = PlacementRules(residency=tuple(sorted(rules.get("residency", ()))))
    if not any(satisfies_residency(residency, region.residency) for region in platform.regions):
        return None, f"{what} omitted: no region has residency {', '.join(residency.residency)}"
    if rules.get("spreadRegions", 0) > len(names):
        fewer = {**rules, "spreadRegions": len(names)}
        return {**manifest, "spec": {**spec, "placement": fewer}}, f"{what}: spread over {len(names)} region(s)"
    return manifest, ""


def with_last_applied(manifest: Manifest) -> Manifest:
    """The manifest with kubectl's last-applied annotation. Without it, `kubectl apply` of a sample prints a warning."""
    text = json.dumps(manifest, separators=(",", ":"), sort_keys=True) + "\n"
    meta = manifest["metadata"]
    return {**manifest, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), LAST_APPLIED: text}}}


def apply_manifests(api: CellApi, manifests: list[Manifest]) -> None:
    """Applies the manifests in order with server-side apply. Idempotent."""
    for manifest in manifests:
        api.apply(manifest, kinds.BY_NAME[manifest["kind"]].plural, manager=MANAGER)
