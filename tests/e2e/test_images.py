"""A platform that runs images from a real registry: one digest in all regions, moved tags, a registry that is down,
a killed agent, and tags that cannot be resolved."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.agent.image_registry import Registry, file, layer, running_registry, shell_layer
from tests.browser import chromium, tab
from tests.console_pages import signed_in
from tests.e2e.image_platform import platform_with_images
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]
REGIONS = ("us-east", "eu-west")
CONFIG: dict[str, Any] = {"Entrypoint": ["/bin/sh", "-c"], "Cmd": ["httpd -f -p $PORT -h /site"], "Env": ["PATH=/bin"]}


def site(text: str) -> list[bytes]:
    return [shell_layer(), layer([file("site/index.html", text.encode())])]


def workload(name: str, image: str, replicas: int) -> dict[str, Any]:
    template = {
        "image": image,
        "resources": {"cpu": "50m", "memory": "64Mi"},
        "ports": [{"name": "http"}],
        "probes": {"readiness": {"http": {"path": "/"}, "periodSeconds": 1}},
        "terminationGraceSeconds": 1,
    }
    return {
        "apiVersion": V1,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "acme"},
        "spec": {"replicas": replicas, "template": template},
    }


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> Iterator[RunningPlatform]:
    folder, regions = tmp_path_factory.mktemp("images"), ",".join(REGIONS)
    programs = ("runc", "slirp4netns")
    with platform_with_images(folder, registry, "--no-samples", "--regions", regions, programs=programs) as running:
        running.apply(*TENANCY)
        yield running


def replicas(platform: RunningPlatform, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for region in REGIONS:
        items = json.loads(platform.kubectl("--context", region, "-n", "acme", "get", "replicas", "-o", "json"))[
            "items"
        ]
        found += [item for item in items if item["spec"]["workload"] == name]
    return found


def images_of_ready(platform: RunningPlatform, name: str) -> list[str]:
    blocks = [item["status"].get("execution") or {} for item in replicas(platform, name)]
    return [block["image"] for block in blocks if block.get("ready")]


def stored(platform: RunningPlatform, name: str) -> dict[str, Any]:
    text = platform.kubectl("--context", "global", "-n", "acme", "get", "workload", name, "-o", "json")
    found: dict[str, Any] = json.loads(text)
    return found


def test_all_replicas_of_a_revision_run_one_digest(platform: RunningPlatform, registry: Registry) -> None:
    first = registry.push("web:1", site("one"), **CONFIG)
    image = registry.reference("web:1")
    platform.apply(workload("web", image, 2))
    wait_until(lambda: len(images_of_ready(platform, "web")) == 2, "two replicas are ready", 120)
    assert set(images_of_ready(platform, "web")) == {f"{image}@{first}"}
    assert stored(platform, "web")["status"]["image"]["digest"] == first
    assert stored(platform, "web")["spec"]["template"]["driver"] == "oci"

    moved = registry.push("web:1", site("two"), **CONFIG)
    platform.apply(workload("web", image, 4))
    wait_until(lambda: len(images_of_ready(platform, "web")) == 4, "four replicas are ready", 120)
    assert set(images_of_ready(platform, "web")) == {f"{image}@{first}"} and moved != first

    wide = platform.kubectl("--context", REGIONS[0], "-n", "acme", "get", "replicas", "-o", "wide")
    pods = json.loads(platform.kubectl("--context", REGIONS[0], "-n", "acme", "get", "pods", "-o", "json"))["items"]
    if pods:
        assert first in wide
        assert {pod["status"]["containerStatuses"][0]["imageID"] for pod in pods} == {f"{image}@{first}"}
    nodes = [
        node
        for region in REGIONS
        for node in json.loads(platform.kubectl("--context", region, "get", "nodes", "-o", "json"))["items"]
    ]
    held = {name for node in nodes for entry in node["status"].get("images", ()) for name in entry["names"]}
    assert f"{registry.reference('web')}@{first}" in held


def test_console_lists_the_images_of_a_node_with_their_size(platform: RunningPlatform, registry: Registry) -> None:
    node = replicas(platform, "web")[0]["status"]["placement"]["node"]
    region = next(name for name in REGIONS if node.startswith(name))
    with chromium() as browser, tab(browser) as opened:
        page = signed_in(platform, opened, f"/map?region={region}&node={node}").page
        images = page.locator("dd .image")
        expect(images.filter(has_text=registry.reference("web"))).to_contain_text("Mi")
        assert images.count() >= 1
        assert not opened.violations()
        assert not opened.troubles, opened.troubles


def test_killed_agent_adopts_its_containers(platform: RunningPlatform) -> None:
    before = {r["metadata"]["name"]: r["status"]["execution"]["startedAt"] for r in replicas(platform, "web")}
    node = replicas(platform, "web")[0]["status"]["placement"]["node"]
    pid = platform.pid(f"agent-{node}")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: platform.pid(f"agent-{node}") != pid, "the agent is restarted")
    wait_until(lambda: len(images_of_ready(platform, "web")) == 4, "four replicas are ready")
    after = {r["metadata"]["name"]: r["status"]["execution"]["startedAt"] for r in replicas(platform, "web")}
    assert before == after


def test_tag_that_cannot_be_resolved_is_explained_and_assigns_nothing(
    platform: RunningPlatform, registry: Registry
) -> None:
    platform.apply(workload("absent", registry.reference("absent:1"), 1))

    def refused() -> dict[str, Any]:
        conditions = {c["type"]: c for c in stored(platform, "absent").get("status", {}).get("conditions", ())}
        found: dict[str, Any] = conditions.get("ImageResolved", {})
        return found if conditions.get("Assigned", {}).get("reason") == "ImageUnresolved" else {}

    assert wait_until(refused, "the condition says why")["reason"] == "ImageNotFound"
    assert not replicas(platform, "absent")
    said = holdfast("explain", "acme/absent", "--state", str(platform.state), check=False).stdout
    assert "ImageNotFound" in said or "ImageUnresolved" in said

    registry.push("absent:1", site("late"), **CONFIG)
    wait_until(lambda: len(images_of_ready(platform, "absent")) == 1, "the workload runs once its image exists", 180)


def test_containers_with_their_own_network_serve_on_assigned_ports_and_survive_the_agent(
    platform: RunningPlatform, registry: Registry
) -> None:
    registry.push("inside:1", site("inside"), **CONFIG)
    manifest = workload("inside", registry.reference("inside:1"), 2)
    manifest["spec"]["template"] |= {"network": "Private", "ports": [{"name": "http", "containerPort": 80}]}
    platform.apply(manifest)
    wait_until(lambda: len(platform.addresses("acme/inside")) == 2, "two replicas serve", 120)
    nodes = json.loads(platform.kubectl("--context", REGIONS[0], "get", "nodes.holdfast.dev", "-o", "json"))["items"]
    assert all("oci-image-network" in node["spec"]["drivers"] for node in nodes)
    pages = [page(address) for address in platform.addresses("acme/inside")]
    assert pages == ["inside", "inside"]
    replica = replicas(platform, "inside")[0]
    node = replica["status"]["placement"]["node"]
    shown = holdfast(
        "exec", f"acme/{replica['metadata']['name']}", "--state", str(platform.state), "--", "cat", "/proc/net/dev"
    )
    assert "tap0" in shown.stdout
    before = platform.pid(f"agent-{node}")
    os.kill(before, signal.SIGKILL)
    assert [page(address) for address in platform.addresses("acme/inside")] == pages, "without its agent"
    wait_until(lambda: platform.pid(f"agent-{node}") != before, "the agent is started again")
    wait_until(lambda: len(platform.addresses("acme/inside")) == 2, "two replicas serve", 60)
    assert [page(address) for address in platform.addresses("acme/inside")] == pages
    assert {r["metadata"]["uid"] for r in replicas(platform, "inside")} >= {replica["metadata"]["uid"]}


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as reply:
        return str(reply.read().decode())


def test_cached_image_starts_while_the_registry_is_down(platform: RunningPlatform, registry: Registry) -> None:
    """Last in this file: the registry does not come back."""
    os.kill(registry.pid, signal.SIGKILL)
    gone = replicas(platform, "web")[0]
    name, region = gone["metadata"]["name"], gone["metadata"]["labels"].get("holdfast.dev/region", "")
    context = region or next(r for r in REGIONS if r in name)
    platform.kubectl("--context", context, "-n", "acme", "delete", "replica", name, "--wait=false", check=False)

    def restored() -> bool:
        uids = {r["metadata"]["uid"] for r in replicas(platform, "web")}
        return gone["metadata"]["uid"] not in uids and len(images_of_ready(platform, "web")) == 4

    wait_until(restored, "another replica runs the cached image", 120)
