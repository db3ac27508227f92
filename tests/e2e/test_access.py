"""Roles, people, break-glass and the audit chain on a running platform, with kubectl and the commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.platforms import TENANCY, RunningPlatform, holdfast, running_platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]
REGION = "us-east"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("access") / "state"
    with running_platform(state, "--regions", REGION, "--agents", "1", "--no-samples") as running:
        running.apply(*TENANCY)
        yield running


def run(platform: RunningPlatform, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return holdfast(*arguments, "--state", str(platform.state), check=check)


def person(platform: RunningPlatform, name: str, *role: str) -> Path:
    """The kubeconfig of a new user with a certificate."""
    run(platform, "user", "add", name, *role, "--certificate")
    path = platform.state / f"{name}.kubeconfig"
    path.write_text(run(platform, "kubeconfig", "--user", name).stdout)
    return path


def is_allowed(platform: RunningPlatform, arguments: tuple[str, ...]) -> bool:
    return "orbidden" not in platform.kubectl(*arguments, check=False)


def can_i(platform: RunningPlatform, context: str, *arguments: str) -> bool:
    answer = platform.kubectl("--context", context, "auth", "can-i", *arguments, check=False)
    words = answer.split()
    assert "yes" in words or "no" in words, answer
    return "yes" in words


def test_kubectl_creates_roles_and_asks_what_they_allow(platform: RunningPlatform) -> None:
    kubectl = platform.kubectl
    assert "holdfast:tenant-admin" in kubectl("get", "clusterroles")
    kubectl("-n", "acme", "create", "role", "deployer", "--verb=get,list,patch", "--resource=workloads.holdfast.dev")
    kubectl("-n", "acme", "create", "rolebinding", "ci", "--role=deployer", "--user=ci")
    rule = {"apiGroups": ["holdfast.dev"], "resources": ["nodes"], "verbs": ["get", "list", "patch"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "cordoner"}}
    platform.apply({**role, "rules": [rule]})  # `kubectl create clusterrole` knows only kinds of its own cell
    kubectl("create", "clusterrolebinding", "on-call", "--clusterrole=cordoner", "--group=on-call")
    assert can_i(platform, "global", "patch", "workloads.holdfast.dev", "-n", "acme", "--as=ci")
    assert not can_i(platform, "global", "delete", "workloads.holdfast.dev", "-n", "acme", "--as=ci")
    assert "workloads.holdfast.dev" in kubectl("auth", "can-i", "--list", "-n", "acme", "--as=ci")
    assert "operator" in kubectl("auth", "whoami")
    cordon = ("patch", "nodes.holdfast.dev", "--as=ann", "--as-group=on-call")
    wait_until(lambda: can_i(platform, REGION, *cordon), "the region has the copies of roles and bindings")
    refused = kubectl("delete", "clusterrole", "holdfast:viewer", check=False)
    assert "built-in roles" in refused and "next:" in refused
    file = platform.state / "reconcile.yaml"
    file.write_text(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: deployer, namespace: acme}\nrules:\n"
        "- {apiGroups: [holdfast.dev], resources: [workloads], verbs: [get, list, patch, create]}\n"
    )
    kubectl("auth", "reconcile", "-f", str(file))
    assert can_i(platform, "global", "create", "workloads.holdfast.dev", "-n", "acme", "--as=ci")


def test_people_have_their_roles_in_every_cell_and_lose_them(platform: RunningPlatform) -> None:
    config = person(platform, "tess", "--role", "tenant-admin", "--tenant", "acme")
    use = ("--kubeconfig", str(config))
    for context in ("global", REGION):
        allowed = (*use, "--context", context, "get", "events", "-n", "acme")
        wait_until(partial(is_allowed, platform, allowed), f"tess reads {context}")
        refused = platform.kubectl(*use, "--context", context, "get", "events", "-n", "default", check=False)
        assert "orbidden" in refused
    created = platform.kubectl(
        *use, "-n", "acme", "create", "rolebinding", "x", "--clusterrole=holdfast:operator", "--user=tess", check=False
    )
    assert "may not give rights" in created
    who = json.loads(run(platform, "access", "who-can", "delete", "workloads", "-n", "acme", "-o", "json").stdout)
    assert {"kind": "User", "name": "tess"} in who
    assert run(platform, "access", "check", "delete", "nodes", "--as", "tess", check=False).returncode != 0
    run(platform, "user", "remove", "tess")
    wait_until(
        lambda: "was revoked" in platform.kubectl(*use, "get", "workloads", "-n", "acme", check=False), "tess is out"
    )


def test_break_glass_is_opened_used_listed_and_reviewed_by_another(platform: RunningPlatform) -> None:
    config = person(platform, "greta", "--role", "break-glass")
    use = ("--kubeconfig", str(config))
    assert "orbidden" in platform.kubectl(*use, "get", "workloads", "-n", "acme", check=False)
    opened = holdfast(
        "break-glass",
        "open",
        "--tenant",
        "acme",
        "--reason",
        "INC-1: stuck rollout",
        "--for",
        "5m",
        "-o",
        "json",
        "--state",
        str(config),
    )
    name = json.loads(opened.stdout)["metadata"]["name"]
    platform.kubectl(*use, "get", "workloads", "-n", "acme")
    own = holdfast("break-glass", "review", name, "--note", "fine", "--state", str(config), check=False)
    assert own.returncode != 0 and "owned by approver, operator" in own.stderr
    run(platform, "break-glass", "close", name)
    assert "orbidden" in platform.kubectl(*use, "get", "workloads", "-n", "acme", check=False)
    run(platform, "break-glass", "review", name, "--note", "read only, as said")
    assert "greta" in run(platform, "break-glass", "list").stdout
    wait_until(lambda: "BreakGlassOpened" in platform.kubectl("get", "events", "-A"), "the session is an Event")


def test_audit_log_verifies_after_kills_and_shows_a_changed_row(platform: RunningPlatform) -> None:
    for round_ in range(3):
        platform.kubectl("label", "--overwrite", "tenants.holdfast.dev", "acme", f"round=r{round_}")
        os.kill(platform.pid("cell-global"), signal.SIGKILL)
        wait_until(lambda: "acme" in platform.kubectl("get", "tenants", check=False), "the global cell is back")
    found = json.loads(run(platform, "audit", "Tenant/acme", "-o", "json").stdout)["records"]
    labelled = [r for r in found if r["verb"] in ("update", "patch")]
    assert len(labelled) == 3, labelled
    for cell in ((), ("--region", REGION)):

        def signed(cell: tuple[str, ...] = cell) -> bool:
            report = json.loads(run(platform, "audit", "verify", *cell, "-o", "json").stdout)
            assert report["findings"] == [] and report["linked"] == report["records"] > 0
            return bool(report["checkpoints"])

        wait_until(signed, "a checkpoint is signed")
    export = platform.state / "export.jsonl"
    run(platform, "audit", "export", str(export))
    key = platform.state / "cells" / "global" / "audit.pub"
    clean = run(platform, "audit", "verify", "--from", str(export), "--public-key", str(key))
    assert "records" in clean.stdout
    changed = export.read_text().replace("acme", "evil", 1)
    export.write_text(changed)
    broken = run(platform, "audit", "verify", "--from", str(export), "--public-key", str(key), check=False)
    assert broken.returncode != 0 and "does not follow" in broken.stdout
