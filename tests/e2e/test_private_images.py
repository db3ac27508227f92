"""A real platform and a registry that asks for a login: pull secrets, values in containers, termination messages."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.image_registry import Registry, running_registry, shell_layer
from tests.e2e.image_platform import platform_with_images
from tests.e2e.test_secrets import files_with, forms
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]
LOOP = 'while true; do echo "saw $TOKEN $(cat /etc/app/token)" >&2; sleep 0.2; done'


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    root = tmp_path_factory.mktemp("registry")
    with running_registry(root) as open_registry:
        open_registry.push("private/shell:1", [shell_layer()], Env=["PATH=/bin"], User="app")
    with running_registry(root, login=True) as running:
        yield running


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> Iterator[RunningPlatform]:
    folder = tmp_path_factory.mktemp("private")
    with platform_with_images(folder, registry, "--no-samples", "--regions", "us-east") as running:
        running.apply(*TENANCY)
        yield running


def workload(name: str, registry: Registry, script: str, **template: Any) -> dict[str, Any]:
    image = {
        "image": registry.reference("private/shell:1"),
        "imagePullSecrets": [{"name": "regcred"}],
        "command": ["sh", "-c", script],
        "resources": {"cpu": "50m", "memory": "64Mi"},
        "terminationGraceSeconds": 1,
    }
    meta = {"name": name, "namespace": "acme"}
    spec = {"replicas": 1, "template": {**image, **template}}
    return {"apiVersion": V1, "kind": "Workload", "metadata": meta, "spec": spec}


def secret(value: str) -> dict[str, Any]:
    meta = {"name": "db", "namespace": "acme"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"token": value}}


def explained(platform: RunningPlatform, name: str) -> str:
    return holdfast("explain", f"acme/{name}", "--state", str(platform.state), check=False).stdout


def output(platform: RunningPlatform, name: str) -> str:
    logs = platform.state.glob(f"agents/*/oci/tasks/acme_{name}-*/output.log")
    return "\n".join(path.read_text(errors="replace") for path in logs)


def test_private_image_runs_with_its_pull_secret_and_values_that_are_nowhere_on_disk(
    platform: RunningPlatform, registry: Registry
) -> None:
    first, second = (f"canary-{secrets.token_urlsafe(16)}" for _ in range(2))
    # Prints digests only: the output is on disk.
    script = LOOP.replace("$TOKEN $(cat /etc/app/token)", "${#TOKEN} $(cat /etc/app/token | md5sum)")
    values = {
        "envValues": [{"name": "TOKEN", "secret": "db", "key": "token"}],
        "files": [{"path": "/etc/app", "secret": "db", "onChange": "Ignore"}],
    }
    platform.apply(workload("reader", registry, script, **values))
    wait_until(lambda: "Secret regcred" in explained(platform, "reader"), "the missing pull secret is named")
    login = ("--docker-username=tenant", "--docker-password=secret", f"--docker-server={registry.address}")
    platform.kubectl("--context", "global", "-n", "acme", "create", "secret", "docker-registry", "regcred", *login)
    wait_until(lambda: "Secret db: does not exist" in explained(platform, "reader"), "the missing Secret is named", 60)
    assert "fix:     create it: kubectl --context global -n acme create secret generic db" in explained(
        platform, "reader"
    )
    platform.apply(secret(first))
    wait_until(lambda: f"saw {len(first)}" in output(platform, "reader"), "the container has the value", 60)
    before = output(platform, "reader").splitlines()[-1].split("saw ")[1]

    platform.apply(secret(second))
    holdfast("rollout", "restart", "acme/reader", "--state", str(platform.state))

    def restarted() -> list[str]:
        found = platform.state.glob("agents/*/oci/tasks/acme_reader-*/output.log")
        lines = [path.read_text(errors="replace").splitlines() for path in found]
        return [one[0].split("saw ")[1] for one in lines] if len(lines) > 1 and all(lines) else []

    shown = wait_until(restarted, "a replica of the restart runs", 90)
    assert [text for text in shown if text != before], "its first line has the content that the restart followed"
    assert len(set(shown)) == 2, "no replica of the restart began with the content before"

    logins = ("dGVuYW50OnNlY3JldA", '"password":"secret"', "tenant:secret")
    wanted = (*forms(first), *forms(second), *(text.encode() for text in logins))
    own = (platform.state / "applied.json",)  # what this test applied
    assert files_with(platform.state, wanted, own) == []
    in_memory = files_with(Path("/dev/shm"), (*forms(first), *forms(second)))
    assert in_memory and all("/acme_reader-" in path for path in in_memory)
    platform.kubectl("--context", "global", "-n", "acme", "delete", "workload", "reader", "--timeout=60s")
    wait_until(lambda: not files_with(Path("/dev/shm"), forms(second)), "the values are removed with the task")


def test_failing_container_says_why_in_its_status_and_in_explain(platform: RunningPlatform, registry: Registry) -> None:
    platform.apply(workload("broken", registry, "echo no database at db:5432 > /dev/termination-log; exit 3"))
    wait_until(lambda: "it said: no database at db:5432" in explained(platform, "broken"), "explain shows it", 60)
    shown = json.loads(platform.kubectl("--context", "us-east", "-n", "acme", "get", "replicas", "-o", "json"))
    (replica,) = (item for item in shown["items"] if item["spec"]["workload"] == "broken")
    assert replica["status"]["execution"]["lastExit"]["terminationMessage"] == "no database at db:5432"
