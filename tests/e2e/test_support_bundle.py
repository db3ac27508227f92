"""The bundle of a real platform has the facts and none of the secrets that were planted in it; a lost cell is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until
from tests.support.test_archive import bundle_files

from holdfast.drills import outage
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(400)]
ENV_VALUE = "planted-environment-7f3a91"
LOST = "us-east"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("bundle") / "state"
    regions = ("--regions", f"{LOST},eu-west", "--agents", "1", "--no-samples")
    with running_platform(state, *regions) as running:
        yield running


def planted(platform: RunningPlatform) -> dict[str, str]:
    """Secrets in an object, in a log, and in the platform's own files."""
    workload: dict[str, Any] = {
        "apiVersion": V1,
        "kind": "Workload",
        "metadata": {"name": "web", "namespace": "acme"},
        "spec": {
            "replicas": 1,
            "template": {
                "command": ["sleep", "1000"],
                "env": {"DATABASE_PASSWORD": ENV_VALUE},
                "resources": {"cpu": "100m", "memory": "64Mi"},
            },
        },
    }
    platform.apply(*TENANCY, workload)
    wait_until(lambda: platform.workload("web").get("stages"), "the workload has a replica", within_s=120)
    token = holdfast("token", "create", "planted", "--operator", "--state", str(platform.state)).stdout.strip()
    layout = Layout(platform.state)
    key = next(path.read_text() for path in sorted(layout.pki.glob("*.key")) if "PRIVATE KEY" in path.read_text())
    lines = [f"token {token}", f"header Authorization: Bearer {token}", f"environment {ENV_VALUE}", key]
    with layout.log("cell-global").open("a") as log:
        log.write("\n".join(lines) + "\n")
        log.write(json.dumps({"event": "planted", "key": key, "env": {"DATABASE_PASSWORD": ENV_VALUE}}) + "\n")
    body = [line for line in key.splitlines() if line and not line.startswith("-----")]
    return {"token": token, "environment": ENV_VALUE, **{f"key line {i}": line for i, line in enumerate(body)}}


def test_bundle_of_a_platform_has_its_facts_and_no_secret(platform: RunningPlatform, tmp_path: Path) -> None:
    secrets = planted(platform)
    state = ("--state", str(platform.state))
    with_all = tmp_path / "all.tar.gz"
    printed = json.loads(holdfast("support-bundle", *state, "--to", str(with_all), "-o", "json").stdout)
    assert printed["unreachable"] == {}
    files = bundle_files(with_all)
    assert_no_secret(files, secrets)
    assert with_all.stat().st_mode & 0o077 == 0
    workloads = json.loads(files["cells/global/objects/workloads.json"])
    assert workloads[0]["spec"]["template"]["env"] == {"DATABASE_PASSWORD": "[redacted]"}
    assert b"planted" in files["logs/cell-global.log"]
    assert b"holdfast_" in files["cells/eu-west/metrics.txt"]
    assert json.loads(files["cells/eu-west/store.json"])["damage"] == ""
    assert json.loads(files["cells/global/audit.json"])["counts"]
    assert {cell["name"] for cell in json.loads(files["status.json"])["cells"]} == {"global", LOST, "eu-west"}
    assert json.loads(files["host.json"])["kernel"]
    for place in (f"cells/{LOST}", "cells/global", "agents/eu-west-1"):
        assert json.loads(files[f"{place}/version.json"])["format"] == 1
    manifest = json.loads(files["manifest.json"])
    assert sorted(part["path"] for part in manifest["parts"]) == sorted(set(files) - {"manifest.json"})
    assert json.loads(files["cells/global/release.json"])["gitVersion"]
    assert any(row["what"].startswith("JoinToken") for row in manifest["leftOut"])

    again = holdfast("support-bundle", *state, "--to", str(with_all), check=False)
    assert again.returncode == 2
    assert "exists" in again.stderr


@pytest.mark.parametrize("through", ["directory", "kubeconfig"])
def test_bundle_with_cells_down_has_the_others_and_names_them(
    platform: RunningPlatform, tmp_path: Path, through: str
) -> None:
    layout = Layout(platform.state)
    down = ["cell-global", f"cell-{LOST}"]
    outage.hold_down(layout, down)
    try:
        outage.kill_processes(layout, down)
        bundle = tmp_path / "down.tar.gz"
        state = str(platform.state if through == "directory" else platform.state / "kubeconfig")
        completed = holdfast("support-bundle", "--state", state, "--to", str(bundle))
    finally:
        outage.allow_restart(layout, down)
        wait_until(lambda: all(cell["ready"] for cell in platform.status()["cells"]), "all cells are back")
    for cell in ("global", LOST):
        assert f"cell {cell}: not in the bundle" in completed.stderr
    files = bundle_files(bundle)
    assert set(json.loads(files["manifest.json"])["unreachable"]) == {"global", LOST}
    assert json.loads(files["cells/eu-west/objects/nodes.json"])
    assert not any(name.startswith("cells/global/objects/") for name in files)
    assert ("logs/cell-global.log" in files) == (through == "directory")


def assert_no_secret(files: dict[str, bytes], secrets: dict[str, str]) -> None:
    for name, content in files.items():
        for what, secret in secrets.items():
            assert secret.encode() not in content, f"{what} in {name}"
        assert b"PRIVATE KEY" not in content, name
