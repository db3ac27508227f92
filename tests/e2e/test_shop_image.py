"""The web service of the example `shop` from an image in a real registry, on a platform that loses a region."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.agent.image_registry import Registry, program, running_registry
from tests.e2e.image_platform import platform_with_images
from tests.e2e.test_shop import SHOP, ask_until_answered, region_lost_while_it_serves, targets, workload
from tests.platforms import ROOT, RunningPlatform, holdfast, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with the image that `make image` builds."""
    folder = tmp_path_factory.mktemp("registry")
    build = [sys.executable, str(ROOT / "scripts" / "build_image.py"), "--out", str(folder / "dist")]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, timeout=300)
    with running_registry(folder / "root") as running:
        target = f"docker://{running.reference('team/holdfast:0.1.0')}"
        copy = ("copy", "--insecure-policy", "--dest-tls-verify=false", f"oci:{folder / 'dist' / 'image'}", target)
        subprocess.run([program("skopeo"), *copy], check=True, capture_output=True, timeout=120)
        yield running


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> Iterator[RunningPlatform]:
    folder = tmp_path_factory.mktemp("shop")
    with platform_with_images(folder, registry, "--example", "shop", "--agents", "2") as running:
        yield running


def images(up: RunningPlatform) -> list[str]:
    """The image of each ready replica of the web service, in all regions that answer."""
    found = []
    for region in {target.region for target in targets(up)}:
        text = up.kubectl("--context", region, "-n", "shop", "get", "replicas", "-o", "json", check=False)
        items: list[dict[str, Any]] = json.loads(text)["items"] if text else []
        blocks = [item["status"].get("execution") or {} for item in items if item["spec"]["workload"] == "web"]
        found += [str(block.get("image", "")) for block in blocks if block.get("ready")]
    return found


def test_web_service_from_an_image_serves_on_when_a_region_is_lost(
    platform: RunningPlatform, registry: Registry, tmp_path: Path
) -> None:
    manifest = yaml.safe_load((SHOP / "with-image" / "web.yaml").read_text())
    template = manifest["spec"]["template"]
    template["image"] = template["image"].replace("registry.example.com", registry.address)
    path = tmp_path / "web.json"
    path.write_text(json.dumps(manifest))
    platform.kubectl("apply", "-f", str(path))
    completed = holdfast("rollout", "status", "shop/web", "--state", str(platform.state), timeout_s=300)
    assert "Complete" in completed.stdout
    digest = workload(platform, "web")["status"]["image"]["digest"]
    wanted = {f"{template['image']}@{digest}"}
    wait_until(lambda: len(images(platform)) == 4 and set(images(platform)) == wanted, "all replicas run the image", 90)
    assert ask_until_answered(platform, "/buy/7")["receipt"]

    with region_lost_while_it_serves(platform) as lost:
        found = wait_until(lambda: images(platform), "replicas outside the lost region")
        assert len(found) >= 3 and set(found) == wanted
        assert lost not in {target.region for target in targets(platform)}
