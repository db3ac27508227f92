"""The sample objects of `holdfast up`: read from examples/, fitted to the regions there are, applied once.

The files are plain manifests: `kubectl apply -f` takes them as they are. What a platform has no region for is left
out with a remark, so that a platform of one region comes up as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

import holdfast
from holdfast.cli.exits import Stop
from holdfast.cli.http import Api
from holdfast.cli.platform.layout import Platform
from holdfast.model import kinds
from holdfast.model.placement_eligibility import satisfies_residency
from holdfast.model.placement_rules import Placement

MANAGER = "holdfast-up"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# Tenants before what lives in them, classes before what names them.
FILES = ("priorities.yaml", "tenants.yaml", "policy.yaml", "quotas.yaml", "budgets.yaml", "workloads.yaml")

Manifest = dict[str, Any]


def examples_folder() -> Path:
    """Beside the package when installed, at the top of the tree in a checkout."""
    package = Path(holdfast.__file__).parent
    for folder in (package / "examples", package.parent.parent / "examples"):
        if folder.is_dir():
            return folder
    raise Stop(
        "the sample manifests are missing",
        why=f"no examples folder beside {package}",
        next_step="install Holdfast again, or use --no-samples",
    )


def load_manifests(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def region_manifests(platform: Platform) -> list[Manifest]:
    """The regions themselves: part of every platform, samples or not."""
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
                # One machine needs no long patience: several missed reports and the others' word are soon there.
                "lostAfterSeconds": 12,
            },
        }
        for region in platform.regions
    ]


def sample_manifests(platform: Platform) -> tuple[list[Manifest], list[str]]:
    """The samples that make sense on this platform, in the order to apply them, and remarks on the others."""
    folder = examples_folder()
    fitting: list[Manifest] = []
    remarks: list[str] = []
    for name in FILES:
        for manifest in load_manifests(folder / name):
            fitted, remark = fit(manifest, platform)
            if fitted is not None:
                fitting.append(as_kubectl_applies(fitted))
            if remark:
                remarks.append(remark)
    return fitting, remarks


def fit(manifest: Manifest, platform: Platform) -> tuple[Manifest | None, str]:
    """One sample, fitted to the regions there are; None and a remark when none of them can hold it."""
    what = f"{manifest['kind']} {manifest['metadata']['name']}"
    names = {region.name for region in platform.regions}
    spec = manifest.get("spec", {})
    if manifest["kind"] == "RecoveryBudget" and spec["region"] not in names:
        return None, f"{what} left out: there is no region {spec['region']}"
    if manifest["kind"] != "Workload":
        return manifest, ""
    rules = spec.get("placement", {})
    residency = Placement(residency=tuple(sorted(rules.get("residency", ()))))
    if not any(satisfies_residency(residency, region.residency) for region in platform.regions):
        return None, f"{what} left out: no region carries {', '.join(residency.residency)}"
    if rules.get("spreadRegions", 0) > len(names):
        fewer = {**rules, "spreadRegions": len(names)}
        return {**manifest, "spec": {**spec, "placement": fewer}}, f"{what}: spread over {len(names)} region(s)"
    return manifest, ""


def as_kubectl_applies(manifest: Manifest) -> Manifest:
    """With kubectl's own record of what was applied: without it, the first `kubectl apply` of a sample warns."""
    text = json.dumps(manifest, separators=(",", ":"), sort_keys=True) + "\n"
    meta = manifest["metadata"]
    return {**manifest, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), LAST_APPLIED: text}}}


def apply_all(api: Api, manifests: list[Manifest]) -> None:
    """Server-side apply of each, in order; safe to repeat."""
    for manifest in manifests:
        api.apply(manifest, kinds.BY_NAME[manifest["kind"]].plural, manager=MANAGER)
